"""`chatapp batch`: its options, and what of them does not go together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from chatapp.options import engine_options, sampling_options, scrubbed, settings_of, store_of

AT_ONCE = 8
"""Rows that the engine on this machine answers together: from here on two cores gain nothing."""


@click.command()
@click.argument("source", metavar="IN", type=click.File("rb"))
@click.option("-o", "--output", metavar="OUT", default="-", help="Default: stdout. A file that is there goes on.")
@click.option("--system", metavar="TEXT|@NAME", help="System prompt of every row.")
@click.option("--session", "session_id", metavar="ID", help="Let every row go on with this conversation.")
@click.option("--allow-off-task", is_flag=True, help="With --session: ask even what looks like another task.")
@click.option("--format", "kind", type=click.Choice(["jsonl", "text"]), help="Default: text for *.txt, else jsonl.")
@click.option("--parallel", type=click.IntRange(1, 64), metavar="N", help="Rows at once. Default: 8, or a server's.")
@click.option("--deterministic", is_flag=True, help="One row at a time: no answer depends on its neighbours.")
@click.option(
    "--order", type=click.Choice(["input", "prefix"]), default="input", help="Ask in this order; prefix groups rows."
)
@click.option("--as-completed", is_flag=True, help="Leave the output in the order of completion.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Look at the first N rows only.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="S", help="Seconds a row may take at most."
)
@click.option("--retry-failed", is_flag=True, help="Ask again what failed in an earlier run.")
@click.option("--save-sessions", is_flag=True, help="Keep each answered row as a conversation.")
@click.option("--check", is_flag=True, help="List the rows that cannot be asked; load no model.")
@sampling_options
@engine_options
@click.pass_context
def batch(
    context: click.Context,
    /,
    source: BinaryIO,
    output: str,
    system: str | None,
    session_id: str | None,
    allow_off_task: bool,
    kind: str | None,
    parallel: int | None,
    deterministic: bool,
    order: str,
    as_completed: bool,
    limit: int | None,
    timeout: float | None,
    retry_failed: bool,
    save_sessions: bool,
    check: bool,
    **flags: Any,
) -> None:
    """Answer each row of a file: JSONL, OpenAI's batch lines, or a prompt a line.

    IN is the file (-: stdin); *.txt has a prompt a line. The same command goes on where a run was stopped.
    """
    from chatapp.bulk import check_rows, run_batch
    from chatapp.bulk_rows import Batch, is_kept
    from chatapp.cli_prompts import given_system
    from chatapp.console import Narrator, replaced_notice, run_to_exit
    from chatapp.options import sampling_of

    if system is not None and session_id is not None:
        raise click.UsageError("--system is for new conversations, and --session names one that has its own.")
    if allow_off_task and session_id is None:
        raise click.UsageError("--allow-off-task is for --session: rows of their own belong to no other task.")
    if order == "prefix" and not as_completed and not check and not is_kept(output):
        raise click.UsageError("--order prefix needs a file (-o OUT) or --as-completed: stdout cannot be put in order.")
    if deterministic and (parallel or 1) > 1:
        raise click.UsageError("--deterministic asks one row at a time: leave --parallel out.")
    if retry_failed and not is_kept(output):
        raise click.UsageError("--retry-failed needs the file of the earlier run: name it with -o OUT.")
    name = getattr(source, "name", "")
    if isinstance(name, str) and Path(name).exists() and Path(output).exists() and Path(name).samefile(output):
        raise click.UsageError("The output is the input: choose another file for the answers.")
    system, n_damaged = scrubbed(system)
    if n_damaged:
        Narrator().notice(replaced_notice(n_damaged))
    wanted = Batch(
        output,
        given_system(system, lambda: store_of(context, flags)),
        sampling_of(flags),
        session=session_id,
        is_text=kind == "text" or (kind is None and str(name).lower().endswith(".txt")),
        parallel=1 if deterministic else parallel,
        by_prefix=order == "prefix",
        as_completed=as_completed,
        limit=limit,
        timeout_s=timeout,
        retries=retry_failed,
        saves=save_sessions,
        may_leave_task=allow_off_task,
        names_model=bool((context.obj or {}).get("model") or flags.get("model")),
    )
    settings = replace(settings_of(context, flags), n_parallel=1 if deterministic else parallel or AT_ONCE)
    if deterministic:
        settings = replace(settings, speculation="off")  # checking guesses in batches rounds differently
    context.exit(check_rows(source, wanted) if check else run_to_exit(run_batch(settings, source, wanted)))
