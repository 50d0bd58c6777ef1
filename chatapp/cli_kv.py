"""The `kv` commands. What they need is imported when they run."""

from __future__ import annotations

from typing import Any

import click

from chatapp.options import folder_options, json_option, settings_of, store_of


@click.group()
def kv() -> None:
    """See, check and delete the KV that is kept on disk."""


@kv.command("status")
@click.option("--all", "with_all", is_flag=True, help="List every conversation, not the largest only.")
@json_option
@folder_options
@click.pass_context
def show_kv(context: click.Context, /, with_all: bool, as_json: bool, **flags: Any) -> None:
    """Show what is stored, of which models and conversations, and the limits."""
    from chatapp.kv import show_status

    settings = settings_of(context, flags)
    tips: dict[str, list[tuple[str, str]]] = {}
    titles: dict[str, str] = {}
    if (settings.data_dir / "chat.db").exists():
        with store_of(context, flags) as store:
            tips = store.kv_tips()
            titles = {session_id: store.session(session_id).title for session_id in tips}
    show_status(settings, tips, titles, with_all=with_all, as_json=as_json)


@kv.command("verify")
@click.option("--repair", is_flag=True, help="Set damaged files aside and mend the index.")
@json_option
@folder_options
@click.pass_context
def verify_kv(context: click.Context, /, repair: bool, as_json: bool, **flags: Any) -> None:
    """Read everything that is stored and say what is wrong; exit code 1 if anything is."""
    from chatapp.kv import check

    context.exit(0 if check(settings_of(context, flags), repair=repair, as_json=as_json) else 1)


@kv.command("prune")
@click.option("--to", "size", metavar="SIZE", help="Such as 5GiB; default: the budget.")
@json_option
@folder_options
@click.pass_context
def prune_kv(context: click.Context, /, size: str | None, as_json: bool, **flags: Any) -> None:
    """Delete what was least recently used until the rest fits, and what cannot be used any more."""
    from chatapp.kv import prune_to
    from chatapp.sizes import parse_size

    try:
        to_bytes = None if size is None else parse_size(size)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    prune_to(settings_of(context, flags), to_bytes, as_json=as_json)


@kv.command("clear")
@click.option("--model", "model_name", metavar="M", help="Only of this model: name or fingerprint.")
@click.option("--session", "session_id", metavar="ID", help="Only what this conversation alone has.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@folder_options
@click.pass_context
def clear_kv(
    context: click.Context,
    /,
    model_name: str | None,
    session_id: str | None,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Delete stored KV: all of it, or that of one model or conversation. Conversations stay."""
    from chatapp import kv as stored

    settings = settings_of(context, flags)
    if model_name is not None and session_id is not None:
        raise click.UsageError("--model and --session do not go together: give one of them.")
    if session_id is not None:
        with store_of(context, flags) as store:
            session, tips = store.find(session_id), store.kv_tips()
        stored.clear_session(settings, session.id, session.title, tips, yes=yes, as_json=as_json)
    elif model_name is not None:
        stored.clear_model(settings, model_name, yes=yes, as_json=as_json)
    else:
        stored.clear_all(settings, yes=yes, as_json=as_json)
