"""What happens at the box besides sending: files, snippets, the editor, completions, earlier messages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from textual.timer import Timer

from chatapp.console import replaced_notice
from chatapp.filefinder import FileFinder
from chatapp.safe import clean
from chatapp.texts import tr
from chatapp.tui import words
from chatapp.tui.chips import Chip, described
from chatapp.tui.completing import Completing
from chatapp.tui.drafts import SAVE_AFTER_S
from chatapp.tui.messages import PartAsked
from chatapp.tui.recall import Recall
from sessions.attachments import Part, block, name_of
from sessions.errors import BadRequest
from sessions.snippets import Snippets, filled, variables
from sessions.textfiles import TextFile, read_text

if TYPE_CHECKING:
    from chatapp.tui.app import ChatApp
    from chatapp.tui.limit import Limit

MAX_NAMED = 20
"""Files that are looked for in one draft by their names."""
_RETRY_S = (0.5, 1, 2, 4, 8, 16, 32)
_NAMED = re.compile(r"(?:^|(?<=\s))@(\S+)")


@dataclass(frozen=True, slots=True)
class Tools:
    """What the box works with: the editor's command, the folder of snippets, the folder that files are named from."""

    editor: Sequence[str] = ()
    snippets: Path = Path("snippets")
    folder: Path = Path()


class Desk:
    """Owner of the box's helpers."""

    def __init__(self, app: ChatApp, limit: Limit, tools: Tools) -> None:
        stage = app.stage
        self._app = app
        self._stage = stage
        self._limit = limit
        self._tools = tools
        self._snippets = Snippets(tools.snippets)
        self._finder = FileFinder(tools.folder)
        self._saving: Timer | None = None
        self._counts: dict[tuple[str, int, int], int] = {}
        self.completing = Completing(app, stage.composer, self._finder, self._attach_word)
        stage.composer.completing = self.completing
        stage.composer.recall = Recall(
            stage.composer,
            lambda: stage.current,
            lambda session_id, mark: stage.ask(lambda: stage.manager.asked(session_id, mark)),
        )

    # --- drafts ---

    def save_later(self) -> None:
        """Save the draft once the keys rest."""
        if self._saving is not None:
            self._saving.stop()
        self._saving = self._app.set_timer(SAVE_AFTER_S, self._stage.save_draft)

    # --- files ---

    def attach(self, path: str) -> None:
        """Attach a file by its path; what cannot be attached can be mended in the box."""
        self._stage.work(self._attach_named_once(path), "attach", exclusive=False)

    async def _attach_named_once(self, path: str) -> None:
        if not await self._attach(path, "") and self._stage.is_standing and not self._stage.composer.text:
            self._stage.composer.put_back(f"/attach {path}")

    def _attach_word(self, path: str, word: str) -> None:
        self._stage.work(self._attach_one(path, word), "attach", exclusive=False)

    async def _attach_one(self, path: str, word: str) -> None:
        await self._attach(path, word)

    async def _attach(self, path: str, word: str) -> bool:
        """Read a file and put its chip in the place of the word that names it; False with a notice if it cannot be."""
        stage = self._stage
        info = stage.talk.model.info
        try:
            found = await asyncio.to_thread(self._read, path, info.n_ctx if info else None)
        except BadRequest as error:
            stage.warn(str(error))
            return False
        except RuntimeError as error:  # there is no home folder
            stage.warn(tr("{path} cannot be read ({reason}).").format(path=path, reason=error))
            return False
        if not stage.is_standing or stage.composer.read_only or (word and word not in stage.composer.text):
            return False
        if found.n_replaced:
            self._app.notify(replaced_notice(found.n_replaced), severity="warning", markup=False)
        name = name_of(path)
        return stage.composer.attach(Part(name, block(name, found.text)), _note(found), instead_of=word)

    def _read(self, path: str, max_tokens: int | None) -> TextFile:
        return read_text(self._tools.folder / Path(path).expanduser(), max_tokens=max_tokens)

    def named_files(self, text: str) -> list[str]:
        """Return the files that a text names by `@PATH` without a chip."""
        found = [name for name in _NAMED.findall(text)[:MAX_NAMED] if self._is_file(name)]
        return list(dict.fromkeys(found))

    def _is_file(self, name: str) -> bool:
        try:
            return (self._tools.folder / Path(name).expanduser()).is_file()
        except (OSError, RuntimeError, ValueError):
            return False

    async def attach_named(self, names: Sequence[str]) -> bool:
        """Attach files that the draft names; False if one of them cannot be."""
        for name in names:
            if not await self._attach(name, f"@{name}"):
                return False
        return True

    def files(self, begin: str) -> Sequence[str]:
        """Complete a path; called in a thread."""
        return self._finder.find(begin)

    # --- chips ---

    async def count(self, message: PartAsked) -> None:
        """Count something attached, once for each model."""
        info = self._stage.talk.model.info
        key = (info.weights if info else "", len(message.text), hash(message.text))
        n_tokens = self._counts.get(key) or await self._limit.n_tokens(message.text)
        for wait_s in _RETRY_S:
            if n_tokens is not None or not self._stage.is_standing:
                break
            await asyncio.sleep(wait_s)  # the engine is busy, and nothing else can count
            n_tokens = await self._limit.n_tokens(message.text)
        if n_tokens is not None and self._stage.is_standing:
            self._counts[key] = n_tokens
            self._stage.composer.n_ctx = info.n_ctx if info else None
            message.take(n_tokens)

    def view(self, chip: Chip) -> None:
        """Show what a chip stands for."""
        from chatapp.tui.viewer import ViewerScreen

        self._app.push_screen(ViewerScreen(described(chip).plain, chip.part.text))

    # --- snippets ---

    def insert_snippet(self, name: str) -> None:
        """Put a snippet into the box; without a name, ask for one."""
        self._stage.converse(self._insert_snippet(name))

    async def _insert_snippet(self, name: str) -> None:
        from chatapp.tui.snippetscreens import SnippetsScreen, VariablesScreen

        stage = self._stage
        try:
            if not name:
                names = await asyncio.to_thread(self._snippets.names)
                if not names:
                    path = self._tools.snippets / "NAME.md"
                    stage.warn(tr("There is no snippet: write one to {path}.").format(path=path))
                    return
                chosen: str | None = await self._app.push_screen_wait(SnippetsScreen(names))
                if chosen is None:
                    return
                name = chosen
            text = await asyncio.to_thread(self._snippets.text, name)
        except BadRequest as error:
            stage.warn(str(error))
            return
        if wanted := variables(text):
            values = await self._app.push_screen_wait(VariablesScreen(name, wanted))
            if values is None:
                return
            text = filled(text, values)
        stage.composer.insert_text(text)

    def snippet_names(self, begin: str) -> Sequence[str]:
        """Complete a snippet's name; called in a thread."""
        try:
            return [name for name in self._snippets.names() if name.lower().startswith(begin.lower())]
        except BadRequest:
            return []

    # --- the editor ---

    def edit(self) -> None:
        """Open the draft in the user's editor; chips are words in it, and stay if those do."""
        if self._stage.composer.read_only:
            self._stage.warn(tr("The box takes no text now."))
        else:
            self._stage.converse(self._edit())

    async def _edit(self) -> None:
        from chatapp.editorfile import EditorError
        from chatapp.tui.editor import edited

        composer = self._stage.composer
        before = composer.text
        try:
            text = await edited(self._app, self._tools.editor, before)
        except EditorError as error:
            self._stage.warn(clean(str(error)))
            return
        if text != before and self._stage.is_standing:
            composer.rewrite(text)
        composer.focus()


def _note(found: TextFile) -> str:
    replaced = tr("{n} replaced").format(n=words.count(found.n_replaced)) if found.n_replaced else ""
    encoding = found.encoding if found.encoding != "UTF-8" else ""
    return ", ".join(part for part in (encoding, replaced) if part)
