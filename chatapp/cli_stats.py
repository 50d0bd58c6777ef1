"""`chatapp stats` and `chatapp sessions cost`: what was measured, over all conversations and of one."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chatapp.options import folder_options, json_option, settings_of, store_of

if TYPE_CHECKING:
    from chatapp.config import Settings
    from sessions.conversation import Session
    from sessions.measured import Scope
    from sessions.statistics import Key
    from sessions.store import Store

_AGO = re.compile(r"(\d{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


@click.command()
@click.option("--by", metavar="model|day|model,day", default="", help="A row for each.")
@click.option("--since", metavar="DATE|7d", help="Only turns from this day on, or of the last hours, days, weeks.")
@click.option("--model", metavar="NAME", help="Only of models whose name begins so.")
@click.option("--trash", is_flag=True, help="Also those of conversations in the trash.")
@click.option("--turns", is_flag=True, help="A row for each turn; with --csv or --json.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-o", "--output", metavar="FILE", default="-", help="A new file. Default: stdout.")
@folder_options
@click.pass_context
def stats(
    context: click.Context,
    /,
    by: str,
    since: str | None,
    model: str | None,
    trash: bool,
    turns: bool,
    as_csv: bool,
    as_json: bool,
    output: str,
    **flags: Any,
) -> None:
    """Show how fast answers came and what of their prompts was reused, over all conversations."""
    from sessions.measured import Scope

    suffix = Path(output).suffix.lower()
    as_csv, as_json = as_csv or (not as_json and suffix == ".csv"), as_json or (not as_csv and suffix == ".json")
    if as_csv and as_json:
        raise click.UsageError("--csv and --json do not go together: give one of them.")
    if turns and not (as_csv or as_json):
        raise click.UsageError("--turns needs --csv or --json.")
    if turns and by:
        raise click.UsageError("--turns has a row for each turn: leave --by out.")
    keys = parse_by(by)
    scope = Scope(None if since is None else parse_since(since, time.time()), model, trash)
    with store_of(context, flags) as opened:
        _write(output, _chunks(opened, scope, keys, turns=turns, as_csv=as_csv, as_json=as_json))


@click.command()
@click.argument("session_id", metavar="ID")
@json_option
@folder_options
@click.pass_context
def cost(context: click.Context, /, session_id: str, as_json: bool, **flags: Any) -> None:
    """Show what a conversation costs: tokens and KV by message, what was reused, what coming back takes."""
    from chatapp.console import print_json, print_text
    from chatapp.costlist import cost_object, cost_text
    from sessions.conversations import Conversations

    with store_of(context, flags) as opened:
        session = opened.find(session_id)
        messages = opened.messages(session.id)
        n_ctx, kv_bytes_per_token = _context(settings_of(context, flags), session)
        known = next((m.stats.kv_bytes_per_token for m in reversed(messages) if m.stats), None)
        found = Conversations(opened).cost(
            session.id, n_ctx=n_ctx, kv_bytes_per_token=kv_bytes_per_token if known is None else known
        )
    if as_json:
        print_json(cost_object(session, found))
    else:
        for chunk in cost_text(session, found, {message.id: message for message in messages}):
            print_text(chunk)


def parse_by(text: str) -> tuple[Key, ...]:
    """Return what to group by. Raises `UsageError`."""
    names = [name.strip() for name in text.split(",")] if text else []
    keys: tuple[Key, ...] = tuple(key for key in ("model", "day") if key in names)
    if set(names) - set(keys):
        raise click.UsageError("--by takes model, day, or model,day.")
    return keys


def parse_since(text: str, now: float) -> float:
    """Return the moment (epoch s) that a day (2026-11-30, here) begins, or that was so long ago (7d, 12h, 2w).

    Raises `UsageError`.
    """
    if ago := _AGO.fullmatch(text.strip().lower()):
        return now - timedelta(hours=int(ago[1]) * _HOURS[ago[2]]).total_seconds()
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise click.UsageError(f"--since takes a day such as 2026-11-30, or 7d, 12h, 2w, not {text!r}.") from error


def _chunks(
    store: Store, scope: Scope, by: tuple[Key, ...], *, turns: bool, as_csv: bool, as_json: bool
) -> Iterator[str]:
    from chatapp import statlist
    from sessions import measured
    from sessions.statistics import summarize

    if turns:
        found = measured.turns(store.db, scope)
        return statlist.turns_csv(found) if as_csv else statlist.turns_json(found)
    summary = summarize(measured.turn_rows(store.db, scope), by)
    if as_csv:
        return statlist.statistics_csv(summary, by)
    return statlist.statistics_json(summary, by) if as_json else statlist.statistics_text(summary, by)


def _write(output: str, chunks: Iterator[str]) -> None:
    from chatapp.console import Narrator, print_text
    from sessions.exportfiles import write_file

    if not output or Path(output).is_dir() or output.endswith(("/", os.sep)):
        raise click.UsageError("-o takes the name of a new file.")
    if output != "-":
        Narrator().hint(f"Written: {write_file(Path(output), chunks)}")
        return
    for chunk in chunks:
        print_text(chunk)


def _context(settings: Settings, session: Session) -> tuple[int | None, int | None]:
    """Tokens of the context that the conversation would get, and KV bytes of a token, from its model's header.

    None where the model's file is not there or does not say.
    """
    from chatapp.shelf import fit_of

    n_ctx = session.n_ctx or settings.n_ctx
    if session.model is None or not Path(session.model.path).is_file():
        return n_ctx, None
    _, found = fit_of(settings, Path(session.model.path), n_ctx)
    if found is None or not found.n_ctx:
        return n_ctx, None
    return found.n_ctx, None if found.kv_bytes is None else found.kv_bytes // found.n_ctx
