"""A batch whose rows go on with a conversation: its model, its sampling, and its task policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from chatapp.bulk_rows import Batch
from chatapp.config import Settings
from chatapp.console import Narrator
from chatapp.engines import forget_kv, make_shelf
from chatapp.oneshot import check_model, load
from models.encoder import Encoder
from models.engine import Engine, Sampling
from sessions.batch_rows import Row
from sessions.conversation import Message, Session
from sessions.manager import SessionManager
from sessions.store import Store

Judge: TypeAlias = Callable[[Row], Awaitable[str | None]]
"""Says why a row is not to be asked, None if it may be."""


async def load_for(
    session: Session,
    history: Sequence[Message],
    settings: Settings,
    store: Store,
    engine: Engine,
    encoder: Encoder,
    narrator: Narrator,
    batch: Batch,
) -> tuple[Sampling, Judge]:
    """Load the conversation's model; return its sampling, and what says whether a row may be asked behind it.

    Raises `ClickException` when its model is another than the one that was named, or cannot be loaded.
    """
    if session.model and batch.names_model:
        check_model(settings, session.model, session.id)
    manager = SessionManager(
        store,
        engine,
        forget_kv=forget_kv(settings),
        shelf=make_shelf(settings),
        policy=settings.policy,
        score=encoder.scores,
    )
    usual = await load(settings, engine, narrator, manager.load(session.id))
    own = session.sampling.over(usual) if session.sampling else usual
    return own, partial(_why_not, manager, session, history, may_leave_task=batch.may_leave_task)


async def _why_not(
    manager: SessionManager, session: Session, history: Sequence[Message], row: Row, *, may_leave_task: bool
) -> str | None:
    """Return why the task policy of the conversation that rows go on with keeps one from being asked."""
    verdict = await manager.judging.verdict(session, history, row.entries[-1].text)
    if manager.judging.step(verdict) != "dialog":
        return None
    if not may_leave_task:
        return f"This looks like another task than the conversation's; --allow-off-task asks it. {verdict.reason}"
    if not manager.may_keep(session.id):
        return (
            "This looks like another task, and the policy is strict: change the task line first "
            f"(`chatapp sessions task {session.id} TEXT`)."
        )
    return None
