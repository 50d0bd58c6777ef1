"""The `sessions` commands for branches: fork, undo, the tree, showing another branch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from chatapp.options import folder_options, json_option

if TYPE_CHECKING:
    from sessions.store import Store

OpenStore: TypeAlias = Callable[[click.Context, dict[str, Any]], AbstractContextManager["Store"]]


def attach(group: click.Group, opened: OpenStore) -> None:
    """Add the commands to the group of commands for conversations."""

    @group.command()
    @click.argument("session_id", metavar="ID")
    @click.option(
        "--through", type=int, metavar="MESSAGE", help="The last message to take; default: all that is shown."
    )
    @click.option(
        "--without", type=int, multiple=True, metavar="MESSAGE", help="Leave out this question and its answer."
    )
    @click.option("--system-only", is_flag=True, help="Take the system prompt and nothing else.")
    @json_option
    @folder_options
    @click.pass_context
    def fork(
        context: click.Context,
        /,
        session_id: str,
        through: int | None,
        without: tuple[int, ...],
        system_only: bool,
        as_json: bool,
        **flags: Any,
    ) -> None:
        """Copy a conversation, or its beginning, to a new one that shares its KV; print the new ID."""
        from chatapp import listing
        from sessions.conversations import Conversations

        with opened(context, flags) as store:
            origin = store.find(session_id)
            questions = {message.id for message in store.messages(origin.id) if message.role == "user"}
            if wrong := set(without) - questions:
                raise click.UsageError(f"Message {min(wrong)} is no question that the conversation shows.")
            made = Conversations(store).fork(origin.id, through=through, without=without, system_only=system_only)
            listing.print_fork(made, as_json=as_json)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @json_option
    @folder_options
    @click.pass_context
    def undo(context: click.Context, /, session_id: str, as_json: bool, **flags: Any) -> None:
        """Take back the last turn and print its question; the branch is kept."""
        from chatapp import listing
        from sessions.conversations import Conversations

        with opened(context, flags) as store:
            conversations, session = Conversations(store), store.find(session_id)
            question = conversations.undo(session.id)
            listing.print_undone(session, question, as_json=as_json)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @json_option
    @folder_options
    @click.pass_context
    def tree(context: click.Context, /, session_id: str, as_json: bool, **flags: Any) -> None:
        """Show the messages of all branches as a tree; * marks those that are shown."""
        from chatapp import listing

        with opened(context, flags) as store:
            key = store.find(session_id).id
            listing.print_tree(store.tree(key), {message.id for message in store.messages(key)}, as_json=as_json)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @click.argument("message_id", metavar="MESSAGE", type=int)
    @json_option
    @folder_options
    @click.pass_context
    def branch(context: click.Context, /, session_id: str, message_id: int, as_json: bool, **flags: Any) -> None:
        """Show the branch through a message, by its number in the tree."""
        from chatapp import listing
        from sessions.conversations import Conversations

        with opened(context, flags) as store:
            conversations, session = Conversations(store), store.find(session_id)
            conversations.show_branch(session.id, message_id)
            listing.print_change(conversations.session(session.id), "shows another branch", as_json=as_json)
