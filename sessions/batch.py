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
from models.errors import GrammarError
from models.schema import grammar_of
from sessions.conversation import MessageStatus
from sessions.errors import BadRequest
from sessions.hygiene import tidy
from sessions.turn import STATUS_OF, ask, checked

BOM = b"\xef\xbb\xbf"

RowId = str | int | float | bool | None
"""Whatever the row's `id` was; the answer carries it unchanged."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to one input row. `line` counts from 1; `error` is None unless the status is `failed`.

    A row that failed in mid-answer keeps what it had. `n_replaced` characters of its prompt could not be stored,
    `n_lost` cannot be spelt with the model's vocabulary.
    """

    id: RowId
    line: int
    text: str
    token_ids: tuple[int, ...]
    status: MessageStatus
    error: str | None
    stats: TurnStats | None
    n_replaced: int = 0
    n_lost: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One input row that can be asked; `n_replaced` characters of the prompt could not be stored."""

    prompt: str
    grammar: str | None = None
    n_replaced: int = 0


async def answer_rows(
    engine: Engine,
    lines: Iterable[bytes],
    sampling: Sampling,
    *,
    system: str | None,
    monotonic: Callable[[], float],
) -> AsyncGenerator[Answered, None]:
    """Answer each line that is not blank, in order; a row that cannot be answered is one with an error.

    A row's own `json_schema` comes before a grammar of all rows. All rows begin with the same system prompt,
    tokenized once, which an engine keeps resident between them. No KV is stored. Raises `BadRequest` for a system
    prompt without text.
    """
    if system is not None:
        system = checked(system)
    system_run: TokenRun | None = None
    for number, line in enumerate(lines, start=1):
        content = (line.removeprefix(BOM) if number == 1 else line).strip()
        if not content:
            continue
        row_id, asked = parse(content)
        if isinstance(asked, BadRequest):
            yield Answered(row_id, number, "", (), "failed", str(asked), None)
            continue
        row = Answered(row_id, number, "", (), "failed", None, None, asked.n_replaced)
        own = replace(sampling, grammar=asked.grammar) if asked.grammar else sampling
        events = ask(engine, asked.prompt, own, system=system, system_run=system_run, monotonic=monotonic)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Prepared) and system is not None:
                    system_run = event.runs[0]
                row = _after(row, event)
        yield row


def _after(row: Answered, event: Event) -> Answered:
    match event:
        case Prepared(lost_characters=n):
            return replace(row, n_lost=n)
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


def parse(line: bytes) -> tuple[RowId, Row | BadRequest]:
    """Read one row; return its id (None if it has none) and what it asks, or what is wrong with it."""
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
        schema = row.get("json_schema")
        grammar = None if schema is None else grammar_of(schema)
        return row_id, Row(checked(prompt), grammar, tidy(prompt)[1])
    except BadRequest as error:
        return row_id, BadRequest(str(error).replace("message", "prompt"))
    except GrammarError as error:
        return row_id, BadRequest(str(error))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
