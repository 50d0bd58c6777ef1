"""The command line. What a command needs is imported when it runs, so that `--help` is there at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chatapp.cli_keys import keys
from chatapp.cli_stats import stats
from chatapp.options import (
    engine_options,
    json_option,
    sampling_of,
    sampling_options,
    scrubbed,
    settings_of,
    store_of,
)

if TYPE_CHECKING:
    from chatapp.config import Settings


class Program(click.Group):
    """The program's own commands, and groups of commands that stand in modules of their own."""

    GROUPS: ClassVar[Mapping[str, str]] = {
        "batch": "Answer each row of a file: JSONL, OpenAI's batch lines, or a prompt a line.",
        "bench": "Measure on this machine.",
        "desktop-entry": "Install a launcher, so that the desktop's menu opens the chat.",
        "engines": "List, add, test and remove servers that answer in place of this machine.",
        "kv": "See, check and delete the KV that is kept on disk.",
        "models": "List, describe, add, fetch, measure, convert and remove models.",
        "prompts": "Keep system prompts under names; `--system @NAME` uses one.",
        "serve": "Answer programs that speak OpenAI's chat API, on this machine.",
        "sessions": "List, search, change and delete conversations.",
        "web": "Open the chat window in a browser on this machine.",
    }
    """Names and what `--help` says of them, so that it need not import them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names in alphabetical order."""
        return sorted([*self.GROUPS, *super().list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; a group is imported for it."""
        match cmd_name:
            case "batch":
                from chatapp.cli_batch import batch

                return batch
            case "bench":
                from chatapp.cli_bench import bench

                return bench
            case "desktop-entry":
                from chatapp.cli_desktop import desktop_entry

                return desktop_entry
            case "engines":
                from chatapp.cli_engines import engines

                return engines
            case "kv":
                from chatapp.cli_kv import kv

                return kv
            case "models":
                from chatapp.cli_models import models

                return models
            case "prompts":
                from chatapp.cli_prompts import prompts

                return prompts
            case "serve":
                from chatapp.cli_serve import serve

                return serve
            case "sessions":
                from chatapp.cli_sessions import sessions

                return sessions
            case "web":
                from chatapp.cli_web import web

                return web
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List all commands with their first sentences."""
        own = {name: command.get_short_help_str(formatter.width) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**self.GROUPS, **own}.items()))


@click.group(cls=Program, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--session", "session_id", metavar="ID", help="Open this conversation.")
@click.option("--plain/--no-plain", default=None, help="Chat line by line, without the window.")
@click.option("--typeahead/--no-typeahead", default=None, help="Read drafts while you write them. Default: yes.")
@engine_options
@click.version_option(package_name="chatapp")
@click.pass_context
def cli(context: click.Context, /, session_id: str | None, **flags: Any) -> None:
    """Chat with a local model. Without a command: opens the chat window."""
    context.obj = flags
    if context.invoked_subcommand is None:
        from chatapp.plain.start import open_plain, why_plain

        settings = settings_of(context, {})
        if (why := why_plain(settings)) is not None:
            context.exit(open_plain(settings, session_id, why))
        _open_window(settings, session_id)
    elif flags["plain"] is not None:
        raise click.UsageError("--plain is for `chatapp` without a command.")
    elif flags["typeahead"] is not None:
        raise click.UsageError("--typeahead is for the window: `chatapp` without a command.")
    elif session_id is not None:
        raise click.UsageError("--session belongs behind the command: `chatapp run --session ID`.")


@cli.command()
@click.argument("prompt", required=False)
@click.option("--session", "session_id", metavar="ID", help="Go on with this conversation.")
@click.option("--system", metavar="TEXT|@NAME", help="System prompt of a new conversation.")
@click.option("--ephemeral", is_flag=True, help="Keep nothing on disk.")
@click.option("--allow-off-task", is_flag=True, help="Ask even what looks like another task.")
@click.option(
    "--attach",
    "attached",
    type=click.Path(path_type=Path),
    metavar="FILE",
    multiple=True,
    help="Put a file's text before the question; may be repeated.",
)
@click.option("--edit", "edits", type=int, metavar="MESSAGE", help="Another version of this question; needs --session.")
@click.option("--regenerate", is_flag=True, help="Answer the last question once more; needs --session.")
@click.option("--continue", "goes_on", is_flag=True, help="Let a cut or stopped answer go on; needs --session.")
@json_option
@sampling_options
@engine_options
@click.pass_context
def run(
    context: click.Context,
    /,
    prompt: str | None,
    session_id: str | None,
    system: str | None,
    ephemeral: bool,
    allow_off_task: bool,
    attached: tuple[Path, ...],
    edits: int | None,
    regenerate: bool,
    goes_on: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer one question. PROMPT, stdin, or both (PROMPT, an empty line, stdin)."""
    from chatapp.attaching import with_files
    from chatapp.cli_prompts import given_system
    from chatapp.console import Narrator, replaced_notice, run_to_exit
    from chatapp.oneshot import Question
    from chatapp.oneshot import run as run_question

    if ephemeral and session_id:
        raise click.UsageError("--ephemeral keeps nothing, so it cannot go on with a conversation.")
    if (edits is not None or regenerate or goes_on) and not session_id:
        raise click.UsageError("--edit, --regenerate and --continue are for a conversation: name it with --session.")
    if (edits is not None) + regenerate + goes_on > 1:
        raise click.UsageError("--edit, --regenerate and --continue do not go together: give one of them.")
    has_text = not (regenerate or goes_on)
    if not has_text and (prompt or attached):
        raise click.UsageError("--regenerate and --continue take no question.")
    text, n_damaged = _read_prompt(prompt) if has_text else ("", 0)
    system, n_in_system = scrubbed(system)
    if n_damaged + n_in_system:
        Narrator().notice(replaced_notice(n_damaged + n_in_system))
    if has_text and not (text.strip() or attached):
        raise click.UsageError("There is no question: give one as an argument or on stdin.")
    system = given_system(system, lambda: store_of(context, flags))
    settings = settings_of(context, flags)
    draft = with_files(attached, text, max_tokens=settings.n_ctx)
    question = Question(
        draft.text,
        system,
        session_id,
        sampling_of(flags),
        is_ephemeral=ephemeral,
        as_json=as_json,
        names_model=any((context.obj or {}).get(name) or flags.get(name) for name in ("model", "engine")),
        may_leave_task=allow_off_task,
        verb="regenerate" if regenerate else "continue" if goes_on else "send",
        edits=edits,
        attachments=draft.attachments,
    )
    context.exit(run_to_exit(run_question(settings, question)))


cli.add_command(keys)
cli.add_command(stats)


def _open_window(settings: Settings, session_id: str | None) -> None:
    # Nothing that is imported becomes garbage; the window collects again once it stands.
    gc.disable()
    from chatapp.window import open_window

    open_window(settings, session_id)


def _read_prompt(argument: str | None) -> tuple[str, int]:
    """Return the question from argument and stdin, and how many characters of it were damaged."""
    from chatapp.safe import decode_input, scrub

    text, n_damaged = scrub(argument or "")
    if sys.stdin.isatty():
        return text, n_damaged
    piped, n_in_piped = decode_input(sys.stdin.buffer.read())
    parts = [part for part in (text, piped.rstrip("\n")) if part.strip()]
    return "\n\n".join(parts), n_damaged + n_in_piped
