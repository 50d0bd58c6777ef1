"""Many independent questions: JSONL in, JSONL out, one row after another."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from models.engine import (
    Engine,
    Event,
    Failed,
    Finished,
    Piece,
    Prepared,
    Sampling,
    Stored,
    TokenRun,
    TurnStats,
)
from sessions.conversation import MessageStatus
from sessions.errors import BadRequest
from sessions.turn import STATUS_OF, ask, checked

BOM = b"\xef\xbb\xbf"

RowId = str | int | float | bool | None
"""Whatever the row's `id` was; the answer carries it unchanged."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one input row. `line` counts from 1; `error` is None unless the status is `failed`.

    A row that failed in mid-answer keeps what it had.
    """

    id: RowId
    line: int
    text: str
    token_ids: tuple[int, ...]
    status: MessageStatus
    error: str | None
    stats: TurnStats | None


async def answer_rows(
    engine: Engine,
    lines: Iterable[bytes],
    sampling: Sampling,
    *,
    system: str | None,
    monotonic: Callable[[], float],
) -> AsyncGenerator[Answered, None]:
    """Answer each line that is not blank, in order; a row that cannot be answered is one with an error.

    All rows begin with the same system prompt, tokenized once, which an engine keeps resident between them.
    No KV is stored. Raises `BadRequest` for a system prompt without text.
    """
    if system is not None:
        system = checked(system)
    system_run: TokenRun | None = None
    for number, line in enumerate(lines, start=1):
        content = (line.removeprefix(BOM) if number == 1 else line).strip()
        if not content:
            continue
        row_id, prompt = parse(content)
        if isinstance(prompt, BadRequest):
            yield Answered(row_id, number, "", (), "failed", str(prompt), None)
            continue
        row = Answered(row_id, number, "", (), "failed", None, None)
        events = ask(engine, prompt, sampling, system=system, system_run=system_run, monotonic=monotonic)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Prepared) and system is not None:
                    system_run = event.runs[0]
                row = _after(row, event)
        yield row


def _after(row: Answered, event: Event) -> Answered:
    match event:
        case Piece(text=text, token_ids=ids):
            return replace(row, text=row.text + text, token_ids=row.token_ids + ids)
        case Finished(text=text, run=run, stats=stats):
            return replace(row, text=text, token_ids=run.body, status=STATUS_OF[event.reason], stats=stats)
        case Stored() if row.stats:
            return replace(row, stats=replace(row.stats, kv_bytes_written=event.kv_bytes_written))
        case Failed() if row.stats is None:
            return replace(row, error=event.message)
        case _:
            return row


def parse(line: bytes) -> tuple[RowId, str | BadRequest]:
    """Read one row; return its id (None if it has none) and its prompt, or what is wrong with it."""
    try:
        row = json.loads(line.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError:
        return None, BadRequest("The line is not UTF-8.")
    except (ValueError, RecursionError):
        return None, BadRequest("The line is not JSON.")
    if not isinstance(row, dict):
        return None, BadRequest('The line is not a JSON object such as {"id": 1, "prompt": "..."}.')
    row_id = row.get("id")
    if isinstance(row_id, dict | list):
        return None, BadRequest("The id is neither text nor a number.")
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        return row_id, BadRequest("The row has no prompt, or one that is not text.")
    try:
        return row_id, checked(prompt)
    except BadRequest as error:
        return row_id, BadRequest(str(error).replace("message", "prompt"))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
