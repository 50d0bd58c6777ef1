"""What a batch was asked, and the rows of its input that are still to be answered."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from chatapp.bulk_progress import Meter
from models.presets import SamplingChoice
from sessions.batch_input import PrefixOrder, as_it_comes, count_rows, in_turn, lines_of
from sessions.batch_plan import Plan
from sessions.batch_rows import Reading, Row


@dataclass(frozen=True, slots=True)
class Batch:
    """What `batch` was asked. `session` is an id or the beginning of one; `output` "-" is stdout.

    `parallel` None means as many rows at once as the engine serves. `names_model`: the settings' model was named with
    the command itself.
    """

    output: str
    system: str | None
    sampling: SamplingChoice
    session: str | None = None
    is_text: bool = False
    parallel: int | None = None
    by_prefix: bool = False
    as_completed: bool = False
    limit: int | None = None
    timeout_s: float | None = None
    retries: bool = False
    saves: bool = False
    may_leave_task: bool = False
    names_model: bool = False


def is_kept(output: str) -> bool:
    """True for an output that results can be appended to, and found in again."""
    return output != "-" and (not Path(output).exists() or Path(output).is_file())


async def rows_of(
    source: BinaryIO, reading: Reading, plan: Plan, batch: Batch, meter: Meter
) -> AsyncGenerator[Row, None]:
    """Yield the rows that are to be answered, in the order in which they are asked."""
    if not _is_pipe(source):
        async with aclosing(_of_file(source, reading, plan, batch, meter)) as rows:
            async for row in rows:
                yield row
        return
    with ExitStack() as held:
        if batch.by_prefix:
            spool = held.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(source, spool)
            spool.seek(0)
            async with aclosing(_of_file(cast(BinaryIO, spool), reading, plan, batch, meter)) as rows:
                async for row in rows:
                    yield row
            return
        # A reader of its own: a thread that waits in the usual one would not let the process end.
        own = os.fdopen(os.dup(source.fileno()), "rb")
        async with aclosing(as_it_comes(lines_of(own))) as lines:
            async for line in lines:
                if plan.n_rows == batch.limit:
                    return
                if found := plan.look(line, reading):
                    yield found
        own.close()
    plan.is_read_whole = True


async def _of_file(
    source: BinaryIO, reading: Reading, plan: Plan, batch: Batch, meter: Meter
) -> AsyncGenerator[Row, None]:
    n_total = count_rows(source)
    meter.n_total = n_total if batch.limit is None else min(batch.limit, n_total)
    pairs = plan.open_rows(lines_of(source), reading, limit=batch.limit)
    rows: Iterator[Row] = (row for row, _ in pairs)
    if batch.by_prefix:
        ordered = PrefixOrder(source, reading.row)
        for row, offset in pairs:
            ordered.add(row, offset)
        rows = ordered.rows()
    async with aclosing(in_turn(rows)) as inline:
        async for row in inline:
            yield row


def _is_pipe(source: BinaryIO) -> bool:
    """True for what can be read once only, and may keep its reader waiting."""
    try:
        return not stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except OSError:  # it lies in memory
        return False
