"""`chatapp batch`: each row of a JSONL file answered into another."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from typing import Any, BinaryIO

import click

from chatapp.config import Settings
from chatapp.console import Narrator, lost_notice, replaced_notice
from chatapp.engines import make_engine
from chatapp.objects import stats_object
from chatapp.oneshot import load
from models.presets import SamplingChoice
from models.reasoning import answer_of, reasoning_of
from sessions.batch import Answered, answer_rows

SOME_FAILED = 3


async def run_batch(
    settings: Settings, source: BinaryIO, output: str, *, system: str | None, sampling: SamplingChoice
) -> int:
    """Answer the rows of `source` into the file named `output` (- is stdout), each written at once.

    Returns the exit code. Raises `ClickException` when the output cannot be written or the model not loaded.
    """
    narrator = Narrator()
    engine = make_engine(settings)
    try:
        effective = sampling.over(await load(settings, engine, narrator))
        n_rows = n_failed = n_replaced = n_lost = 0
        with click.open_file(output, "w", encoding="utf-8") as file:
            rows = answer_rows(engine, source, effective, system=system, monotonic=time.monotonic)
            async with aclosing(rows):
                async for row in rows:
                    narrator.clear()
                    file.write(json.dumps(row_object(row)) + "\n")
                    file.flush()
                    n_rows += 1
                    n_failed += row.error is not None
                    n_replaced += row.n_replaced
                    n_lost += row.n_lost
                    narrator.line(f"{n_rows} rows answered")
        if n_replaced:
            narrator.notice(replaced_notice(n_replaced))
        if n_lost:
            narrator.notice(lost_notice(n_lost))
        narrator.notice(f"{n_rows:,} row{'s' if n_rows != 1 else ''}, {n_failed:,} failed.")
    finally:
        narrator.clear()
        await engine.close()
    return SOME_FAILED if n_failed else 0


def row_object(row: Answered) -> dict[str, Any]:
    """Return a row of the output."""
    return {
        "id": row.id,
        "line": row.line,
        "text": answer_of(row.text),
        "reasoning": reasoning_of(row.text) or None,
        "token_ids": list(row.token_ids),
        "status": row.status,
        "error": row.error,
        "stats": stats_object(row.stats),
    }
