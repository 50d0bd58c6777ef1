"""Opens the chat window over the store and the engine, and closes them behind it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from chatapp.config import Settings, editor_command
from chatapp.engines import forget_kv, kv_gives_way, make_shelf, make_switch
from chatapp.pricing import Pricing
from chatapp.tui.app import ChatApp
from chatapp.tui.composer import Count
from chatapp.tui.desk import Tools
from chatapp.tui.modelchoice import ModelChoice
from models.encoder import Encoder
from models.engine import ModelInfo
from models.presets import recommended
from sessions.journal import recover
from sessions.manager import SessionManager
from sessions.store import Store


def open_window(settings: Settings, session_id: str | None) -> None:
    """Run the window until the user leaves. Raises our errors when it cannot even open."""
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
            prices=pricing,
            recommend=lambda info: recommended(info, settings.presets),
            tools=Tools(editor_command(), settings.config_dir / "snippets", Path.cwd()),
        )
        await window.run_async()
    finally:
        pricing.close()
        await encoder.close()
        await engine.close()


def _counter(info: ModelInfo, settings: Settings) -> Count | None:
    """What counts tokens in this process, as the engine would."""
    from models.tokens import counter_for

    counter = counter_for(Path(info.path), settings.cache_dir) if info.path else None
    return counter.count if counter else None


def models_here(settings: Settings) -> list[ModelChoice]:
    """Return the models on this machine that can be used; reads their headers."""
    from chatapp.config import model_folders
    from models.catalog import describe, entries
    from models.fit import available_memory, fit
    from models.kvbudget import size
    from models.modelfacts import FactsCache

    available = available_memory()
    choices = []
    for model in describe(entries(model_folders(settings)), FactsCache(settings.cache_dir)):
        facts = model.facts
        if facts is None or model.problem:
            continue
        found = fit(
            weights_bytes=facts.size_bytes,
            kv_elements=facts.kv_elements,
            n_ctx_train=facts.n_ctx_train,
            kv_type=settings.kv_type,
            n_ctx=settings.n_ctx,
            available_bytes=available,
        )
        told = (facts.architecture, facts.quantization, size(facts.size_bytes), model.entry.source)
        detail = " · ".join(part for part in told if part)
        choices.append(ModelChoice(model.entry.name, model.entry.path, detail, found.verdict != "too large"))
    return choices
