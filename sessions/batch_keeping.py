"""Rows of a batch as conversations of their own, for whoever wants to go on with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from models.engine import Entry, ModelInfo, TokenRun
from sessions.batch import Answered
from sessions.batch_rows import Row
from sessions.conversation import ReasoningPolicy, Session, model_ref
from sessions.history import title_of
from sessions.rows import new_session_id
from sessions.transcript import Line, Transcript, insert

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody

TAG = "batch"
"""What each of these conversations is tagged with, so that they can be listed, or left out."""


class Keeper:
    """Adds a conversation for each row that was answered. Raises `StoreError`.

    Its id is made before the row's record is written, and the conversation right after that: if a kill comes in
    between, `missed` adds it in the next run.
    """

    def __init__(
        self,
        store: Store,
        shared: Sequence[Entry],
        *,
        origin: Session | None = None,
        reasoning: ReasoningPolicy = "keep",
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`shared` is what all rows begin with, `origin` the conversation that is from."""
        self._store = store
        self._shared = tuple(shared)
        self._origin = origin
        self._reasoning: ReasoningPolicy = origin.reasoning if origin else reasoning
        self._clock = clock

    def new_id(self, answered: Answered) -> str | None:
        """Return the id of the conversation to be; None for a row that failed."""
        return None if answered.error is not None else new_session_id(self._clock())

    def keep(self, session_id: str, answered: Answered, info: ModelInfo | None) -> None:
        """Add a row's conversation, with its tokens."""
        before = () if answered.row.entries[0].role == "system" else self._shared
        entries = [*before, *answered.row.entries]
        runs: Sequence[TokenRun | None] = answered.runs if info and answered.runs else [None] * len(entries)
        now = self._clock()
        lines = [
            Line(n - 1 if n else None, entry.role, entry.text, "complete", now, run)
            for n, (entry, run) in enumerate(zip(entries, runs, strict=True))
        ]
        run = answered.run if info else None
        lines.append(Line(len(lines) - 1, "assistant", answered.text, answered.status, now, run, answered.stats))
        question = title_of(answered.row.entries[-1].text)
        session = Session(
            id=session_id,
            title=question,
            task=question,
            state="open",
            system=entries[0].text if entries[0].role == "system" else None,
            model=model_ref(info) if info else None,
            created_at=now,
            updated_at=now,
            trashed_at=None,
            reasoning=self._reasoning,
            forked_from=self._origin.id if self._origin else None,
            tags=(TAG,),
        )
        with self._store.db.transaction() as db:
            insert(db, Transcript(session, tuple(lines), len(lines) - 1))

    def missed(self, row: Row, record: dict[str, Any]) -> None:
        """Add the conversation that a record names, if a kill came before it: as text, without tokens."""
        body = (record.get("response") or {}).get("body") or record
        session_id, text = body.get("session"), record.get("text")
        if text is None and "choices" in body:
            text = body["choices"][0]["message"]["content"]
        if isinstance(session_id, str) and isinstance(text, str) and not self._store.has_session(session_id):
            self.keep(session_id, Answered(row, text, status="complete"), None)
