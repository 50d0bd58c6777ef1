"""The welcome of the first start: when it is shown, and what is done with the model that is chosen in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from chatapp.firststart import is_first_start, note_welcome
from chatapp.modellist import ModelChoice
from chatapp.safe import clean_line
from chatapp.texts import tr
from chatapp.tui.keymap import Keymap
from chatapp.tui.stage import UNSAVED, Stage
from chatapp.tui.switching import Switching

Remember = Callable[[ModelChoice], str | None]
"""Makes a model the usual one; returns a sentence where the next start will use another. Called in a thread."""


class Welcome:
    """Shows the welcome, by itself at the first start only, and does what is chosen in it.

    `folder` remembers that it was shown (None: it is not shown by itself).
    """

    def __init__(
        self, stage: Stage, switching: Switching, keys: Keymap, *, remember: Remember | None, folder: Path | None
    ) -> None:
        self._stage = stage
        self._switching = switching
        self._keys = keys
        self._remember = remember
        self._folder = folder

    def begin(self) -> None:
        """Welcome somebody who starts the program for the first time; not where there is no model to choose."""
        stage, folder = self._stage, self._folder
        if folder is None or not self._switching.can_choose or stage.current != UNSAVED:
            return
        if stage.ask(lambda: is_first_start(folder, "window", stage.manager)):
            note_welcome(folder, "window")
            from chatapp.tui.dialogs import GUARD_S

            self.show(guard_s=GUARD_S)

    def show(self, *, guard_s: float = 0.0) -> None:
        """Show it; for `guard_s` seconds Enter does nothing, for it may have been meant for the box."""
        from chatapp.tui.welcomescreen import WelcomeScreen

        screen = WelcomeScreen(
            self._switching.models, self._keys, choose=self._choose, loaded=self._loaded, guard_s=guard_s
        )
        self._stage.app.push_screen(screen)

    def _loaded(self) -> Path | None:
        """The file of the model that is loaded."""
        info = self._stage.talk.model.info
        return Path(info.path) if info and info.path else None

    def _choose(self, choice: ModelChoice, is_used: bool) -> None:
        if is_used or self._stage.current != UNSAVED:
            self._keep(choice)
        else:
            self._switching.use_for_new(choice, lambda: self._keep(choice))

    def _keep(self, choice: ModelChoice) -> None:
        if self._remember is not None:
            self._stage.work(self._kept(choice, self._remember), "remember", exclusive=False)

    async def _kept(self, choice: ModelChoice, remember: Remember) -> None:
        if sentence := await asyncio.to_thread(remember, choice):
            self._stage.warn(sentence)
        elif self._stage.current != UNSAVED:
            name = clean_line(choice.name, 60)
            sentence = tr("{model} is used from the next start on; /model uses it in this conversation.")
            self._stage.tell(sentence.format(model=name))
