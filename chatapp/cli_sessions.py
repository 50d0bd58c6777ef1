"""The `sessions` commands: the list, search, showing and deleting; those that change conversations are attached.

What they need is imported when they run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from chatapp.cli_branches import attach as attach_branches
from chatapp.cli_changes import attach as attach_changes
from chatapp.cli_changes import found_ids
from chatapp.cli_prompts import system
from chatapp.cli_stats import cost
from chatapp.cli_transfer import attach as attach_transfer
from chatapp.cli_why import why
from chatapp.options import agree, folder_options, json_option, settings_of, store_of

if TYPE_CHECKING:
    from sessions.conversation import SessionState
    from sessions.store import Store

MAX_PAGE = 1000


@contextmanager
def opened(context: click.Context, flags: dict[str, Any]) -> Iterator[Store]:
    """Open the store; what has been in the trash for long is deleted for good first."""
    from chatapp.console import Narrator
    from chatapp.engines import forget_kv
    from models.errors import EngineError
    from sessions.errors import SessionError
    from sessions.purge import expire

    settings = settings_of(context, flags)
    with store_of(context, flags) as store:
        try:
            if not store.db.is_read_only and (gone := expire(store, forget_kv(settings), time.time())):
                Narrator().hint(f"{len(gone):,} conversation(s) left the trash for good after 30 days.")
        except (SessionError, EngineError, OSError) as error:
            # It is tried again with the next command; this one was asked for something else.
            Narrator().notice(f"The trash could not be emptied of what is old: {error}")
        yield store


@click.group()
def sessions() -> None:
    """List, search, change and delete conversations. ID may be its first characters."""


@sessions.command("list")
@click.option("--tag", metavar="TAG", help="Those with this tag.")
@click.option("--state", type=click.Choice(["open", "done"]), help="Those that are open, or done.")
@click.option("--pinned", is_flag=True, help="Those that are pinned.")
@click.option("--archived", is_flag=True, help="Those that are archived.")
@click.option("--trash", is_flag=True, help="Those in the trash.")
@click.option("--limit", type=click.IntRange(min=1), default=200, show_default=True)
@json_option
@folder_options
@click.pass_context
def list_sessions(
    context: click.Context,
    /,
    tag: str | None,
    state: SessionState | None,
    pinned: bool,
    archived: bool,
    trash: bool,
    limit: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """List conversations: pinned ones first, then by last use."""
    from chatapp import listing
    from chatapp.console import Narrator
    from sessions.overview import Wanted

    if pinned + archived + trash > 1:
        raise click.UsageError("--pinned, --archived and --trash do not go together: give one of them.")
    wanted = Wanted(
        is_trashed=trash,
        is_archived=archived,
        is_pinned=pinned,
        tag=tag.strip().removeprefix("#").lower() if tag is not None else None,
        state=state,
    )
    with opened(context, flags) as store:
        found = store.summaries(wanted, limit=limit + 1)
        listing.print_summaries(found[:limit], as_json=as_json)
        if len(found) > limit:
            Narrator().hint(f"There are more than these {limit:,}: --limit shows more.")


@sessions.command()
@click.argument("query", nargs=-1, required=True, metavar="QUERY")
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=20, show_default=True)
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help="Leave out so many.")
@json_option
@folder_options
@click.pass_context
def search(
    context: click.Context, /, query: tuple[str, ...], limit: int, offset: int, as_json: bool, **flags: Any
) -> None:
    """Search titles and messages: words, "phrases", tag:NAME, in:title, is:open|done|pinned|archived."""
    from chatapp import listing
    from chatapp.console import Narrator

    narrator = Narrator()
    with opened(context, flags) as store:
        try:
            if store.db.is_read_only and store.words.n_unindexed():
                store.db.copy_to_memory()  # the index cannot be kept, so it is made for this once
            while n_left := store.words.n_unindexed():
                narrator.line(f"indexing messages, {n_left:,} left")
                store.words.catch_up()
        finally:
            narrator.clear()
        listing.print_hits(store.search(" ".join(query), limit=limit, offset=offset), as_json=as_json)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--reasoning", "with_reasoning", is_flag=True, help="Show the reasoning in answers, too.")
@json_option
@folder_options
@click.pass_context
def show(context: click.Context, /, session_id: str, with_reasoning: bool, as_json: bool, **flags: Any) -> None:
    """Show a conversation with the messages of its shown branch."""
    from chatapp import listing

    with opened(context, flags) as store:
        session = store.find(session_id)
        messages, versions = store.messages(session.id), store.versions(session.id)
        listing.print_conversation(session, messages, versions, with_reasoning=with_reasoning, as_json=as_json)


@sessions.command()
@click.argument("session_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--forever", is_flag=True, help="Delete text and KV files for good, at once.")
@json_option
@folder_options
@click.pass_context
def delete(context: click.Context, /, session_ids: tuple[str, ...], forever: bool, as_json: bool, **flags: Any) -> None:
    """Move conversations to the trash for 30 days, or delete them for good."""
    from chatapp import listing
    from chatapp.engines import forget_kv
    from sessions.purge import delete_forever

    with opened(context, flags) as store:
        for key in found_ids(store, session_ids):
            if forever:
                session = store.session(key)
                delete_forever(store, key, forget_kv(settings_of(context, flags)))
                listing.print_deleted(session, as_json=as_json)
            else:
                session = store.set_trashed(key, trashed=True)
                listing.print_change(session, "is in the trash", as_json=as_json)


@sessions.command("empty-trash")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@folder_options
@click.pass_context
def empty_trash(context: click.Context, /, yes: bool, as_json: bool, **flags: Any) -> None:
    """Delete everything in the trash for good: text and KV files."""
    from chatapp import listing
    from chatapp.engines import forget_kv
    from sessions import purge

    with opened(context, flags) as store:
        found = store.trashed()
        if found:
            agree(f"Delete the {len(found):,} conversation(s) in the trash for good?", yes=yes)
        deleted = purge.empty_trash(store, forget_kv(settings_of(context, flags))) if found else []
        listing.print_emptied(deleted, n_left=len(store.trashed()), as_json=as_json)


attach_changes(sessions, opened)
attach_branches(sessions, opened)
sessions.add_command(cost)
sessions.add_command(why)
sessions.add_command(system)
attach_transfer(sessions, folder_options, json_option, opened)
