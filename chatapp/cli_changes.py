"""The `sessions` commands that change what is written on a conversation: state, place, title, task, tags, choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from chatapp.options import folder_options, json_option, scrubbed, settings_of

if TYPE_CHECKING:
    from sessions.conversation import ReasoningPolicy, Session
    from sessions.conversations import Conversations
    from sessions.store import Store

OpenStore: TypeAlias = Callable[[click.Context, dict[str, Any]], AbstractContextManager["Store"]]
Change: TypeAlias = Callable[["Conversations", str], "Session"]

CHANGES: Sequence[tuple[str, str, str, Change]] = (
    ("restore", "Take a conversation out of the trash.", "is out of the trash", lambda c, key: c.restore(key)),
    (
        "done",
        "Close a conversation: it takes no message until it is reopened.",
        "is done",
        lambda c, key: c.mark_done(key),
    ),
    ("reopen", "Let a closed conversation take messages again.", "is open", lambda c, key: c.reopen(key)),
    ("pin", "Keep a conversation at the top of the list.", "is pinned", lambda c, key: c.pin(key)),
    ("unpin", "Let a conversation take its place by age.", "is not pinned", lambda c, key: c.unpin(key)),
    (
        "archive",
        "Take a conversation out of the list; search finds it.",
        "is archived",
        lambda c, key: c.archive(key),
    ),
    ("unarchive", "Put a conversation back on the list.", "is on the list", lambda c, key: c.unarchive(key)),
)
"""Name, what it is for, what is said afterwards, and what is done."""


def attach(group: click.Group, opened: OpenStore) -> None:
    """Add the commands to the group of commands for conversations."""
    for name, doc, said, change in CHANGES:
        _add_change(group, opened, name, doc, said, change)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @click.argument("title", metavar="TITLE")
    @json_option
    @folder_options
    @click.pass_context
    def rename(context: click.Context, /, session_id: str, title: str, as_json: bool, **flags: Any) -> None:
        """Give a conversation another title: one line, cut to 80 characters."""
        text = _line(title, "title")
        with opened(context, flags) as store:
            _change(store, session_id, "has a new title", lambda c, key: c.rename(key, text), as_json=as_json)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @click.argument("text", metavar="TEXT")
    @json_option
    @folder_options
    @click.pass_context
    def task(context: click.Context, /, session_id: str, text: str, as_json: bool, **flags: Any) -> None:
        """Give a conversation another task line: one line, cut to 300 characters."""
        line = _line(text, "task line")
        with opened(context, flags) as store:
            _change(store, session_id, "has a new task", lambda c, key: c.set_task(key, line), as_json=as_json)

    # A tag may begin with any letter, so -h is not help here.
    @group.command(context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})
    @click.argument("session_id", metavar="ID")
    @click.argument("changes", metavar="[+TAG|-TAG]...", nargs=-1, type=click.UNPROCESSED)
    @click.option("--add", multiple=True, metavar="TAG", help="The same as +TAG.")
    @click.option("--remove", multiple=True, metavar="TAG", help="The same as -TAG.")
    @json_option
    @folder_options
    @click.pass_context
    def tag(
        context: click.Context,
        /,
        session_id: str,
        changes: tuple[str, ...],
        add: tuple[str, ...],
        remove: tuple[str, ...],
        as_json: bool,
        **flags: Any,
    ) -> None:
        """Add (+TAG) and remove (-TAG) tags; without changes, show them."""
        from chatapp import listing

        for change in changes:
            if change[:1] not in ("+", "-") or change.startswith("--"):
                raise click.UsageError(f"A tag is added as +TAG and removed as -TAG, so {change!r} says nothing.")
        added = [*add, *(change[1:] for change in changes if change.startswith("+"))]
        removed = [*remove, *(change[1:] for change in changes if change.startswith("-"))]
        with opened(context, flags) as store:
            if added or removed:
                _change(
                    store,
                    session_id,
                    "has other tags",
                    lambda c, key: c.tag(key, add=added, remove=removed),
                    as_json=as_json,
                )
            else:
                listing.print_tags(store.find(session_id), as_json=as_json)

    @group.command()
    @click.argument("session_id", metavar="ID")
    @click.argument("name", metavar="[MODEL]", required=False)
    @json_option
    @folder_options
    @click.pass_context
    def model(context: click.Context, /, session_id: str, name: str | None, as_json: bool, **flags: Any) -> None:
        """Let another model go on with a conversation; without MODEL, show whose it is."""
        from pathlib import Path

        from chatapp import listing
        from chatapp.console import Narrator
        from chatapp.shelf import ref_of, wanted_path

        settings = settings_of(context, flags)
        with opened(context, flags) as store:
            session = store.find(session_id)
            if name is None:
                listing.print_model(session, as_json=as_json)
                return
            narrator = Narrator()
            path = wanted_path(settings, Path(name))
            ref = ref_of(
                settings, path, lambda done, n: narrator.line(f"reading the model {100 * done // max(n, 1)} %")
            )
            narrator.clear()
            listing.print_change(store.set_model(session.id, ref), f"belongs to {ref.name}", as_json=as_json)

    @group.command("set")
    @click.argument("session_id", metavar="ID")
    @click.option("--preset", type=click.Choice(["precise", "balanced", "creative"]), help="Sampling of its answers.")
    @click.option("--no-preset", is_flag=True, help="The model's own sampling again.")
    @click.option(
        "--reasoning", type=click.Choice(["keep", "strip"]), help="Reasoning of answers to come, in later prompts."
    )
    @json_option
    @folder_options
    @click.pass_context
    def set_choices(
        context: click.Context,
        /,
        session_id: str,
        preset: str | None,
        no_preset: bool,
        reasoning: ReasoningPolicy | None,
        as_json: bool,
        **flags: Any,
    ) -> None:
        """Give a conversation choices of its own."""
        if preset and no_preset:
            raise click.UsageError("--preset and --no-preset do not go together: give one of them.")
        if not (preset or no_preset or reasoning):
            raise click.UsageError("There is nothing to set: give --preset, --no-preset or --reasoning.")

        def change(conversations: Conversations, key: str) -> Session:
            if reasoning:
                conversations.set_reasoning(key, reasoning)
            if preset or no_preset:
                conversations.choose_sampling(key, preset)
            return conversations.session(key)

        with opened(context, flags) as store:
            _change(store, session_id, "is changed", change, as_json=as_json)


def _add_change(group: click.Group, opened: OpenStore, name: str, doc: str, said: str, change: Change) -> None:
    @group.command(name, help=f"{doc} Several IDs may be given.")
    @click.argument("session_ids", metavar="ID...", nargs=-1, required=True)
    @json_option
    @folder_options
    @click.pass_context
    def command(context: click.Context, /, session_ids: tuple[str, ...], as_json: bool, **flags: Any) -> None:
        with opened(context, flags) as store:
            for key in found_ids(store, session_ids):
                _change(store, key, said, change, as_json=as_json)


def found_ids(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the ids that all these stand for, each once: one that is unknown stops a command before it begins."""
    return list(dict.fromkeys(store.find(key).id for key in keys))


def _change(store: Store, session_id: str, said: str, change: Change, *, as_json: bool) -> None:
    """Change a conversation by one of its rules, and tell."""
    from chatapp import listing
    from sessions.conversations import Conversations

    session = change(Conversations(store), store.find(session_id).id)
    listing.print_change(session, said, as_json=as_json)


def _line(text: str, what: str) -> str:
    line, _ = scrubbed(text)
    if not line or not line.strip():
        raise click.UsageError(f"A {what} says something: give at least a word.")
    return line
