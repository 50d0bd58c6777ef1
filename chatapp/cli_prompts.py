"""`chatapp prompts`, and the system prompts that other commands are given: by name, as a text, or on stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from chatapp.options import agree, folder_options, json_option, store_of

if TYPE_CHECKING:
    from sessions.prompts import SystemPrompt
    from sessions.store import Store

MAX_WARNINGS = 3
MAX_BYTES = 16_000_000
"""Most that is read of a file: what the longest prompt can have."""


def given_system(text: str | None, open_store: Callable[[], AbstractContextManager[Store]]) -> str | None:
    """Return the system prompt that a command was given, `@NAME` looked up; says on stderr what changes in it.

    The store is opened for a name only. Raises `BadRequest` for a name that is not there.
    """
    if text is None:
        return None
    if text.startswith("@"):
        from sessions.prompts import PromptLibrary

        if text.startswith("@@"):
            text = text[1:]
        else:
            with open_store() as store:
                text = PromptLibrary(store.db).resolve(text)
    warn_volatile(text)
    return text


def warn_volatile(text: str) -> None:
    """Say on stderr, in a line each, what in a system prompt is not the same in the next run."""
    from chatapp.console import Narrator
    from chatapp.safe import clean_line
    from sessions.lint import find_volatile

    found = find_volatile(text)
    narrator = Narrator()
    for finding in found[:MAX_WARNINGS]:
        line = text.count("\n", 0, finding.start) + 1
        narrator.notice(
            f"Line {line} of the system prompt has {finding.reason}, {clean_line(finding.text, 40)!r}, which changes "
            "from run to run, so its KV is computed anew each time: put it into the message."
        )
    if len(found) > MAX_WARNINGS:
        narrator.notice(f"{len(found) - MAX_WARNINGS:,} more of that kind.")


@click.group()
def prompts() -> None:
    """Keep system prompts under names; `--system @NAME` uses one."""


_name_argument = click.argument("name", metavar="NAME")
_text_argument = click.argument("text", metavar="[TEXT|-]", required=False)
_file_option = click.option("--file", "file", type=click.File("rb"), help="Take the text from a file.")


@prompts.command("list")
@json_option
@folder_options
@click.pass_context
def list_prompts(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """List all prompts: name, hash of the text, conversations that have it, last change, first line."""
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        _print_list(PromptLibrary(opened.db).all(), as_json=as_json)


@prompts.command("show")
@_name_argument
@json_option
@folder_options
@click.pass_context
def show_prompt(context: click.Context, /, name: str, as_json: bool, **flags: Any) -> None:
    """Print the text of a prompt."""
    from chatapp.console import print_json, print_text
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        prompt = PromptLibrary(opened.db).get(name)
    if as_json:
        print_json(prompt_object(prompt))
    else:
        print_text(prompt.text + "\n")


@prompts.command("add")
@_name_argument
@_text_argument
@_file_option
@json_option
@folder_options
@click.pass_context
def add_prompt(context: click.Context, /, name: str, text: str | None, file: Any, as_json: bool, **flags: Any) -> None:
    """Keep a text under a name: TEXT, stdin, a file, or what is written in the editor."""
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        prompt = PromptLibrary(opened.db).add(name, _read(text, file))
    warn_volatile(prompt.text)
    _print_change(prompt, "is kept", as_json=as_json)


@prompts.command("edit")
@_name_argument
@_text_argument
@_file_option
@json_option
@folder_options
@click.pass_context
def edit_prompt(context: click.Context, /, name: str, text: str | None, file: Any, as_json: bool, **flags: Any) -> None:
    """Give a prompt another text; conversations keep the one they began with."""
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        library = PromptLibrary(opened.db)
        prompt = library.edit(name, _read(text, file, library.get(name).text))
    warn_volatile(prompt.text)
    _print_change(prompt, "is changed", as_json=as_json)


@prompts.command("rename")
@_name_argument
@click.argument("new_name", metavar="NEW-NAME")
@json_option
@folder_options
@click.pass_context
def rename_prompt(context: click.Context, /, name: str, new_name: str, as_json: bool, **flags: Any) -> None:
    """Give a prompt another name."""
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        _print_change(PromptLibrary(opened.db).rename(name, new_name), "has its new name", as_json=as_json)


@prompts.command("remove")
@_name_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@folder_options
@click.pass_context
def remove_prompt(context: click.Context, /, name: str, yes: bool, as_json: bool, **flags: Any) -> None:
    """Delete a prompt; conversations that have its text keep it."""
    from sessions.prompts import PromptLibrary

    with store_of(context, flags) as opened:
        library = PromptLibrary(opened.db)
        prompt = library.get(name)
        agree(f"Delete the prompt {prompt.name}?", yes=yes)
        _print_change(library.remove(name), "is deleted", as_json=as_json)


@click.command()
@click.argument("session_id", metavar="ID")
@click.argument("text", metavar="TEXT|@NAME|-")
@json_option
@folder_options
@click.pass_context
def system(context: click.Context, /, session_id: str, text: str, as_json: bool, **flags: Any) -> None:
    """Give a conversation another system prompt: a fork has it, this one stays. Print the fork's ID."""
    from chatapp.listing import print_fork
    from sessions.conversations import Conversations
    from sessions.prompts import PromptLibrary, checked_prompt

    with store_of(context, flags) as opened:
        before = opened.find(session_id)
        is_name = text.startswith("@")
        wanted = PromptLibrary(opened.db).resolve(text) if is_name else checked_prompt(_read(text, None))
        after = Conversations(opened).change_system(before.id, wanted)
    warn_volatile(wanted)
    print_fork(after, as_json=as_json)


def prompt_object(prompt: SystemPrompt) -> dict[str, object]:
    """Return a prompt as JSON has it."""
    return {"name": prompt.name, "hash": prompt.hash, "text": prompt.text, "updated_at": prompt.updated_at}


def _print_list(prompts: list[SystemPrompt], *, as_json: bool) -> None:
    from chatapp.console import print_json, print_text
    from chatapp.listing import table, when
    from chatapp.safe import clean_line

    if as_json:
        print_json([{**prompt_object(prompt), "sessions": prompt.n_sessions} for prompt in prompts])
        return
    rows = []
    for prompt in prompts:
        line = clean_line(prompt.text, 60)
        used = f">{prompt.n_sessions:,}"
        rows.append(
            [f" {prompt.name}"[prompt.name[0] != ">" :], prompt.hash, used, when(prompt.updated_at), f" {line}"]
        )
    if rows:
        print_text(table(rows))


def _print_change(prompt: SystemPrompt, said: str, *, as_json: bool) -> None:
    from chatapp.console import Narrator, print_json

    if as_json:
        print_json(prompt_object(prompt))
    else:
        Narrator().hint(f"{prompt.name} ({prompt.hash}) {said}.")


def _read(text: str | None, file: Any, before: str | None = None) -> str:
    """Return the text that was given: argument, file, stdin, or the editor's where somebody sits before it."""
    from chatapp.console import Narrator, replaced_notice
    from chatapp.safe import decode_input, scrub

    if text is not None and file is not None:
        raise click.UsageError("TEXT and --file do not go together: give one of them.")
    if text is not None and text != "-":
        found, n_damaged = scrub(text)
    elif file is None and text is None and sys.stdin.isatty():
        try:
            written = click.edit(before or "", require_save=False, extension=".md")
        except click.ClickException as error:
            raise click.ClickException(
                f"The editor cannot be started ({error.message}): set EDITOR, or give the text, --file, or - for stdin."
            ) from error
        found, n_damaged = scrub(written or "")
    else:
        found, n_damaged = decode_input((file or sys.stdin.buffer).read(MAX_BYTES + 1))
    if n_damaged:
        Narrator().notice(replaced_notice(n_damaged))
    return found
