"""The answer that is being written, in a file of its own: a killed program loses less than a second of it.

It stands beside the database because rewriting pages four times a second would cost more than the text.
Format: one JSON object a line. First a header (what the answer belongs to, the glue around it), then deltas
`{"text", "ids"}`. A last line that is cut short is ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from models.engine import TokenRun
from models.reasoning import block_of
from sessions.conversation import Message, ModelRef, ReasoningPolicy
from sessions.errors import BadRequest, StoreError
from sessions.files import make_private_file, sync_folder
from sessions.locks import OsLock, is_locked

if TYPE_CHECKING:
    from sessions.store import Store  # at run time it would load the database library for everybody

WRITE_EVERY_S = 0.25
SYNC_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Partial:
    """An unfinished answer. `runs` are those of prompt messages (by id) that the store does not have yet.

    `model` is whose tokens these are, `continues` the stored answer that goes on: `text` and `ids` begin with its own.
    `reasoning` is what later prompts contain of it.
    """

    session_id: str
    question_id: int
    runs: Mapping[int, TokenRun]
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    model: ModelRef | None = None
    text: str = ""
    ids: tuple[int, ...] = ()
    continues: int | None = None
    reasoning: ReasoningPolicy = "keep"

    @property
    def run(self) -> TokenRun:
        """The answer's tokens as they would stand in the KV cache if it ended here."""
        start = len(self.opening)
        return TokenRun((*self.opening, *self.ids, *self.closing), start, start + len(self.ids))

    @property
    def kept_run(self) -> TokenRun | None:
        """The tokens that later prompts contain; None where they are not known, or the text loses its reasoning."""
        run = self.run
        return None if not run.ids or (self.reasoning == "strip" and block_of(self.text).end) else run


class Journal:
    """The right to write to one conversation, and the file its running answer goes to.

    Held from before the question is stored until the answer is; the lock dies with its process. A write that
    fails ends the journalling, not the answer: the answer's own transaction decides whether it was saved.
    Raises `BadRequest` when another process holds it.
    """

    def __init__(self, folder: Path, session_id: str, *, monotonic: Callable[[], float]) -> None:
        self.path = folder / f"{session_id}.jsonl"
        self._monotonic = monotonic
        self._file: int | None = None
        self._pending: tuple[list[str], list[int]] = ([], [])
        self._written_at = self._synced_at = float("-inf")
        self._lock = OsLock(_lock_path(folder, session_id))
        try:
            is_free = self._lock.take()
        except OSError as error:
            raise StoreError(f"{folder} cannot be written ({(error.strerror or '').lower()}).") from error
        if not is_free:
            raise BadRequest("This conversation is being answered in another window: wait until it is done there.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, partial: Partial) -> None:
        """Create the file with its header."""
        header = {
            "version": 1,
            "session": partial.session_id,
            "question": partial.question_id,
            "runs": [[key, list(run.ids), run.body_start, run.body_end] for key, run in partial.runs.items()],
            "opening": list(partial.opening),
            "closing": list(partial.closing),
            "model": asdict(partial.model) if partial.model else None,
            "continues": partial.continues,
            "reasoning": partial.reasoning,
        }
        try:
            make_private_file(self.path)
            self._file = os.open(self.path, os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
            os.write(self._file, _line(header))
        except OSError:
            self._give_up()

    def add(self, text: str, ids: tuple[int, ...]) -> None:
        """Take a piece of the answer; it is in the file `WRITE_EVERY_S` later if pieces keep coming."""
        self._pending[0].append(text)
        self._pending[1].extend(ids)
        if self._monotonic() - self._written_at >= WRITE_EVERY_S:
            self._write()

    def _write(self) -> None:
        (text, ids), self._pending = self._pending, ([], [])
        self._written_at = self._monotonic()
        if self._file is None or not (text or ids):
            return
        try:
            os.write(self._file, _line({"text": "".join(text), "ids": ids}))
            if self._written_at - self._synced_at >= SYNC_EVERY_S:
                os.fsync(self._file)
                if self._synced_at < 0:  # the first time, its name too
                    sync_folder(self.path.parent)
                self._synced_at = self._written_at
        except OSError:
            self._give_up()

    def discard(self) -> None:
        """Delete the file: the answer is in the store."""
        self._give_up()
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            pass  # the next `recover` finds the question answered and tries again

    def close(self) -> None:
        """Give the conversation free; a file that was not discarded is completed and waits for `recover`."""
        self._write()
        self._give_up()
        self._lock.release()

    def _give_up(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def recover(store: Store) -> list[Message]:
    """Store every answer whose writer died, as `interrupted`, and delete its journal; return the answers.

    A journal that is locked belongs to a living process and is left alone. Doing it twice changes nothing.
    """
    recovered = [recover_one(store, path.stem) for path in sorted(store.journal_dir.glob("*.jsonl"))]
    return [message for message in recovered if message]


def recover_one(store: Store, session_id: str) -> Message | None:
    """Do what `recover` does, for one conversation."""
    try:
        with Journal(store.journal_dir, session_id, monotonic=lambda: 0.0) as journal:
            return settle(store, journal)
    except BadRequest:
        return None


def peek(folder: Path, session_id: str) -> Partial | None:
    """Return the answer that is being written in a conversation, by whichever process, as far as it is on disk.

    None where none is. An answer whose process has died looks the same until `recover` has stored it.
    """
    try:
        return parse((folder / f"{session_id}.jsonl").read_bytes())
    except OSError:
        return None


def is_answering(folder: Path, session_id: str) -> bool:
    """True while a turn of a conversation goes on, in whichever process, from before its question is stored."""
    try:
        return is_locked(_lock_path(folder, session_id))
    except OSError as error:
        raise StoreError(f"{folder} cannot be written ({(error.strerror or '').lower()}).") from error


def settle(store: Store, journal: Journal) -> Message | None:
    """Store what an earlier holder of this journal left behind, and delete it."""
    try:
        partial = parse(journal.path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{journal.path} cannot be read ({(error.strerror or '').lower()}).") from error
    message = _recovered(store, partial) if partial else None
    journal.discard()
    return message


def _recovered(store: Store, partial: Partial) -> Message | None:
    """Store an unfinished answer, unless its program ended only between the answer's transaction and this."""
    found = store.message(partial.question_id if partial.continues is None else partial.continues)
    if found is None or found.session_id != partial.session_id:
        return None
    if partial.continues is not None:
        if len(partial.text) <= len(found.text):
            return None
        return store.extend_answer(
            found, partial.text, "interrupted", run=partial.kept_run, runs=partial.runs, model=partial.model
        )
    if found.role != "user" or not store.waits(found):
        return None
    return store.add_answer(
        found, partial.text, "interrupted", run=partial.kept_run, runs=partial.runs, model=partial.model
    )


def parse(content: bytes) -> Partial | None:
    """Read a journal up to the first line that is not whole; None when not even the header is."""
    header_line, *delta_lines = content.split(b"\n")
    try:
        header = json.loads(header_line)
        partial = Partial(
            session_id=str(header["session"]),
            question_id=int(header["question"]),
            runs={int(key): TokenRun(_ids(run), int(a), int(b)) for key, run, a, b in header["runs"]},
            opening=_ids(header["opening"]),
            closing=_ids(header["closing"]),
            model=_model(header.get("model")),
            continues=_number(header.get("continues")),
            reasoning="strip" if header.get("reasoning") == "strip" else "keep",
        )
    except (KeyError, TypeError, ValueError):
        return None
    text: list[str] = []
    ids: list[int] = []
    for line in delta_lines:
        try:
            delta = json.loads(line)
            new_text, new_ids = str(delta["text"]), _ids(delta["ids"])
        except (KeyError, TypeError, ValueError):
            break
        text.append(new_text)
        ids += new_ids
    return replace(partial, text="".join(text), ids=tuple(ids))


def _ids(value: list[object]) -> tuple[int, ...]:
    ids = tuple(token for token in value if isinstance(token, int) and 0 <= token < 1 << 32)
    if len(ids) != len(value):
        raise ValueError("not token ids")
    return ids


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _model(value: Any) -> ModelRef | None:
    if value is None:
        return None
    return ModelRef(str(value["weights"]), str(value["name"]), str(value["path"]), int(value["n_bytes"]))


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def _lock_path(folder: Path, session_id: str) -> Path:
    return folder / f"{session_id}.lock"
