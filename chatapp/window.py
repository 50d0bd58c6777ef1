"""Opens the chat window over the store and the engine, and closes them behind it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from click.exceptions import Exit

from chatapp.config import Settings, editor_command, language, terminal
from chatapp.engines import forget_kv, kv_gives_way, make_shelf, make_switch
from chatapp.modellist import keep_as_usual, models_here
from chatapp.power import is_on_battery
from chatapp.prefetching import Prefetching
from chatapp.pricing import Pricing
from chatapp.texts import use
from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Count
from chatapp.tui.desk import Tools
from chatapp.tui.pasting import read_pastes_in_pieces
from chatapp.tui.surroundings import Surroundings
from models.encoder import Encoder
from models.engine import ModelInfo
from models.presets import recommended
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store


def open_window(settings: Settings, session_id: str | None) -> None:
    """Run the window until the user leaves. Raises our errors when it cannot even open."""
    use(language(settings))
    with closing(Store(settings.data_dir, make_room=kv_gives_way(settings))) as store:
        recover(store)
        session = store.find(session_id) if session_id else None
        asyncio.run(_run(settings, store, session.id if session else None))


async def _run(settings: Settings, store: Store, session_id: str | None) -> None:
    engine = make_switch(settings)
    encoder = Encoder()
    pricing = Pricing(store, settings.cache_dir)
    try:
        manager = SessionManager(
            store,
            engine,
            forget_kv=forget_kv(settings),
            shelf=make_shelf(settings),
            reasoning=settings.reasoning,
            policy=settings.policy,
            score=encoder.scores,
        )
        window = ChatApp(
            manager,
            session_id=session_id,
            make_counter=lambda info: _counter(info, settings),
            models=None if settings.engine.startswith("fake") else lambda: models_here(settings),
            remember=lambda choice: keep_as_usual(settings, choice),
            prices=pricing,
            prefetcher=Prefetching(pricing, settings.cache_dir),
            recommend=lambda info: recommended(info, settings.presets),
            may_read_ahead=(lambda: not is_on_battery()) if settings.typeahead else None,
            tools=Tools(editor_command(), settings.config_dir / "snippets", Path.cwd()),
            surroundings=Surroundings(settings.keys, settings.theme, terminal(), settings.data_dir / "window"),
        )
        read_pastes_in_pieces()
        await window.run_async()
        if window.return_code:  # it broke off, and said why
            raise Exit(window.return_code)
    finally:
        pricing.close()
        await encoder.close()
        await engine.close()


def _counter(info: ModelInfo, settings: Settings) -> Count | None:
    """What counts tokens in this process, as the engine would."""
    from models.tokens import counter_for

    counter = counter_for(Path(info.path), settings.cache_dir) if info.path else None
    return counter.count if counter else None
