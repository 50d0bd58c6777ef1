"""The command line. What a command needs is imported when it runs, so that `--help` is there at once."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatapp.config import ConfigError, Settings, load_settings

if TYPE_CHECKING:
    from models.presets import SamplingChoice
    from sessions.conversation import Session
    from sessions.store import Store

F = TypeVar("F", bound=Callable[..., Any])
SOME_ROWS_FAILED = 3


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


folder_options = _options(
    click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the conversations."),
    click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder of what can be computed again."),
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings in TOML."),
    click.option("--engine", hidden=True),
)
engine_options = _options(
    click.option("--model", metavar="MODEL", help="GGUF file, or a name `models list` shows."),
    click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens."),
    click.option("--gpu-layers", type=click.IntRange(min=-1), help="Layers on the GPU; -1: all. Default: 0."),
    click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: the measured best."),
    click.option("--flash-attention", type=click.Choice(["auto", "on", "off"]), help="Default: auto, measured."),
    click.option("--chat-format", metavar="NAME", help="For a model without a chat template: chatml, llama3, ..."),
    click.option("--kv/--no-kv", default=None, help="Keep KV on disk, or not. Default: --kv."),
    click.option("--kv-budget", metavar="SIZE", help="At most so much KV on disk, such as 20GiB."),
    click.option("--kv-type", type=click.Choice(["f16", "q8_0"]), help="Precision of KV. Default: f16."),
    click.option("--lora", multiple=True, metavar="PATH[=SCALE]", help="LoRA adapter; may be repeated."),
    folder_options,
)
fit_options = _options(
    click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens."),
    click.option("--kv-type", type=click.Choice(["f16", "q8_0"]), help="Precision of KV. Default: f16."),
)
sampling_options = _options(
    click.option("--preset", type=click.Choice(["precise", "balanced", "creative"]), help="Values for all below."),
    click.option("--temperature", type=click.FloatRange(min=0), help="0 always takes the likeliest token."),
    click.option("--top-k", type=click.IntRange(min=0), help="Choose among the K likeliest; 0: off."),
    click.option("--top-p", type=click.FloatRange(0, 1), help="Choose among the likeliest of mass P; 1: off."),
    click.option("--min-p", type=click.FloatRange(0, 1), help="Leave out what is P times rarer; 0: off."),
    click.option("--repeat-penalty", type=click.FloatRange(min=0, min_open=True), help="1: off."),
    click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Same seed, same answer."),
    click.option("--max-tokens", type=click.IntRange(min=1), help="Cut the answer there."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
    click.option("--json-schema", metavar="FILE|JSON", help="Answer in JSON that conforms to this schema."),
    click.option("--grammar", "grammar_file", metavar="FILE", help="Answer by this GBNF grammar."),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--session", "session_id", metavar="ID", help="Open this conversation.")
@engine_options
@click.version_option(package_name="chatapp")
@click.pass_context
def cli(context: click.Context, /, session_id: str | None, **flags: Any) -> None:
    """Chat with a local model. Without a command: opens the chat window."""
    context.obj = flags
    if context.invoked_subcommand is None:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise click.UsageError("The chat window needs a terminal; `chatapp run` answers without one.")
        _open_window(_settings(context, {}), session_id)
    elif session_id is not None:
        raise click.UsageError("--session belongs behind the command: `chatapp run --session ID`.")


@cli.command()
@click.argument("prompt", required=False)
@click.option("--session", "session_id", metavar="ID", help="Go on with this conversation.")
@click.option("--system", metavar="TEXT", help="System prompt of a new conversation.")
@click.option("--ephemeral", is_flag=True, help="Keep nothing on disk.")
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
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer one question. PROMPT, stdin, or both (PROMPT, an empty line, stdin)."""
    from chatapp.console import Narrator, replaced_notice, run_to_exit
    from chatapp.oneshot import Question
    from chatapp.oneshot import run as run_question

    if ephemeral and session_id:
        raise click.UsageError("--ephemeral keeps nothing, so it cannot go on with a conversation.")
    text, n_damaged = _read_prompt(prompt)
    system, n_in_system = _scrubbed(system)
    if n_damaged + n_in_system:
        Narrator().notice(replaced_notice(n_damaged + n_in_system))
    if not text.strip():
        raise click.UsageError("There is no question: give one as an argument or on stdin.")
    question = Question(text, system, session_id, _sampling(flags), ephemeral, as_json)
    context.exit(run_to_exit(run_question(_settings(context, flags), question)))


@cli.command()
@click.argument("source", metavar="IN.jsonl", type=click.File("rb"))
@click.option("-o", "--output", metavar="OUT.jsonl", default="-", help="Default: stdout.")
@click.option("--system", metavar="TEXT", help="System prompt of every row.")
@sampling_options
@engine_options
@click.pass_context
def batch(context: click.Context, /, source: Any, output: str, system: str | None, **flags: Any) -> None:
    """Answer each row {"id", "prompt"} of a JSONL file (- is stdin)."""
    from chatapp.bulk import run_batch
    from chatapp.console import Narrator, replaced_notice, run_to_exit

    system, n_damaged = _scrubbed(system)
    if n_damaged:
        Narrator().notice(replaced_notice(n_damaged))
    settings, sampling = _settings(context, flags), _sampling(flags)
    context.exit(run_to_exit(run_batch(settings, source, output, system=system, sampling=sampling)))


@cli.group()
def sessions() -> None:
    """List, show, close and delete conversations. ID may be its first characters."""


@sessions.command("list")
@click.option("--trash", is_flag=True, help="Those in the trash.")
@click.option("--limit", type=click.IntRange(min=1), default=200, show_default=True)
@json_option
@folder_options
@click.pass_context
def list_sessions(context: click.Context, /, trash: bool, limit: int, as_json: bool, **flags: Any) -> None:
    """List conversations, last used first."""
    from chatapp import listing

    with _store(context, flags) as store:
        listing.print_summaries(store.summaries(limit=limit, trash=trash), as_json=as_json)


@sessions.command()
@click.argument("session_id", metavar="ID")
@json_option
@folder_options
@click.pass_context
def show(context: click.Context, /, session_id: str, as_json: bool, **flags: Any) -> None:
    """Show a conversation with its messages."""
    from chatapp import listing

    with _store(context, flags) as store:
        session = store.find(session_id)
        listing.print_conversation(session, store.messages(session.id), as_json=as_json)


@sessions.command()
@click.argument("session_id", metavar="ID")
@click.option("--forever", is_flag=True, help="Delete text and KV files for good, at once.")
@json_option
@folder_options
@click.pass_context
def delete(context: click.Context, /, session_id: str, forever: bool, as_json: bool, **flags: Any) -> None:
    """Move a conversation to the trash, or delete it for good."""
    from chatapp import listing
    from chatapp.engines import forget_kv
    from sessions.purge import delete_forever

    with _store(context, flags) as store:
        session = store.find(session_id)
        if forever:
            delete_forever(store, session.id, forget_kv(_settings(context, flags)))
            listing.print_deleted(session, as_json=as_json)
        else:
            session = store.set_trashed(session.id, trashed=True)
            listing.print_change(session, "is in the trash", as_json=as_json)


def _change_command(name: str, doc: str, said: str, change: Callable[[Store, str], Session]) -> None:
    @sessions.command(name, help=doc)
    @click.argument("session_id", metavar="ID")
    @json_option
    @folder_options
    @click.pass_context
    def command(context: click.Context, /, session_id: str, as_json: bool, **flags: Any) -> None:
        from chatapp import listing

        with _store(context, flags) as store:
            listing.print_change(change(store, store.find(session_id).id), said, as_json=as_json)


_change_command(
    "restore",
    "Take a conversation out of the trash.",
    "is out of the trash",
    lambda store, key: store.set_trashed(key, trashed=False),
)
_change_command(
    "done",
    "Close a conversation: it takes no message until it is reopened.",
    "is done",
    lambda store, key: store.set_state(key, "done"),
)
_change_command(
    "reopen",
    "Let a closed conversation take messages again.",
    "is open",
    lambda store, key: store.set_state(key, "open"),
)


@cli.group()
def kv() -> None:
    """See, check and delete the KV that is kept on disk."""


@kv.command("status")
@json_option
@folder_options
@click.pass_context
def show_kv(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """Show what is stored, of which models and conversations, and the limits."""
    from chatapp.kv import show_status

    settings = _settings(context, flags)
    tips: dict[str, list[tuple[str, str]]] = {}
    titles: dict[str, str] = {}
    if (settings.data_dir / "chat.db").exists():
        with _store(context, flags) as store:
            tips = store.kv_tips()
            titles = {session_id: store.session(session_id).title for session_id in tips}
    show_status(settings, tips, titles, as_json=as_json)


@kv.command("verify")
@click.option("--repair", is_flag=True, help="Set damaged files aside and mend the index.")
@json_option
@folder_options
@click.pass_context
def verify_kv(context: click.Context, /, repair: bool, as_json: bool, **flags: Any) -> None:
    """Read everything that is stored and say what is wrong; exit code 1 if anything is."""
    from chatapp.kv import check

    context.exit(0 if check(_settings(context, flags), repair=repair, as_json=as_json) else 1)


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
    prune_to(_settings(context, flags), to_bytes, as_json=as_json)


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

    settings = _settings(context, flags)
    if model_name is not None and session_id is not None:
        raise click.UsageError("--model and --session do not go together: give one of them.")
    if session_id is not None:
        with _store(context, flags) as store:
            session, tips = store.find(session_id), store.kv_tips()
        stored.clear_session(settings, session.id, session.title, tips, yes=yes, as_json=as_json)
    elif model_name is not None:
        stored.clear_model(settings, model_name, yes=yes, as_json=as_json)
    else:
        stored.clear_all(settings, yes=yes, as_json=as_json)


@cli.group()
def models() -> None:
    """List, describe, add, fetch and remove models. NAME may be its beginning."""


@models.command("list")
@json_option
@fit_options
@folder_options
@click.pass_context
def list_models(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """List all models on this disk, those of other programs too."""
    from chatapp.models_cmd import show_list

    show_list(_settings(context, flags), as_json=as_json)


@models.command("info")
@click.argument("name", metavar="[MODEL]", required=False)
@json_option
@fit_options
@folder_options
@click.pass_context
def describe_model(context: click.Context, /, name: str | None, as_json: bool, **flags: Any) -> None:
    """Describe a model (name or path) before it is loaded; without one, that which would be used."""
    from chatapp.models_cmd import show_info

    show_info(_settings(context, flags), name, as_json=as_json)


@models.command("add")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--copy", is_flag=True, help="Copy the file instead of linking to it.")
@json_option
@folder_options
@click.pass_context
def add_model(context: click.Context, /, path: Path, copy: bool, as_json: bool, **flags: Any) -> None:
    """Give a GGUF file a name: put a link to it into chatapp's own folder."""
    from chatapp import models_cmd

    models_cmd.add_model(_settings(context, flags), path, copy=copy, as_json=as_json)


@models.command("pull")
@click.argument("wanted", metavar="REPO[:QUANT]")
@json_option
@folder_options
@click.pass_context
def pull_model(context: click.Context, /, wanted: str, as_json: bool, **flags: Any) -> None:
    """Fetch a model from the Hugging Face hub: OWNER/NAME, with a quantization or file behind a colon."""
    from chatapp import models_cmd

    models_cmd.pull_model(_settings(context, flags), wanted, as_json=as_json)


@models.command("remove")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@folder_options
@click.pass_context
def remove_model(context: click.Context, /, name: str, yes: bool, as_json: bool, **flags: Any) -> None:
    """Remove a model from chatapp's own folder."""
    from chatapp import models_cmd

    models_cmd.remove_model(_settings(context, flags), name, yes=yes, as_json=as_json)


@models.command("default")
@click.argument("name", metavar="[NAME]", required=False)
@json_option
@folder_options
@click.pass_context
def default_model(context: click.Context, /, name: str | None, as_json: bool, **flags: Any) -> None:
    """Choose the model that is used when none is named; without NAME, show it."""
    from chatapp import models_cmd

    if name is None:
        models_cmd.show_default(_settings(context, flags), as_json=as_json)
    else:
        models_cmd.choose_default(_settings(context, flags), name, as_json=as_json)


@cli.group()
def bench() -> None:
    """Measure on this machine."""


@bench.command()
@click.option("--tokens", type=click.IntRange(min=16), default=4000, show_default=True, help="History length.")
@json_option
@engine_options
@click.pass_context
def resume(context: click.Context, /, tokens: int, as_json: bool, **flags: Any) -> None:
    """Measure how fast a conversation comes back: cold, live and restored."""
    from chatapp import listing
    from chatapp.bench import resume as measure

    listing.print_figures(measure(_settings(context, flags), n_tokens=tokens), as_json=as_json)


def _open_window(settings: Settings, session_id: str | None) -> None:
    # Nothing that is imported becomes garbage; the window collects again once it stands.
    gc.disable()
    from chatapp.window import open_window

    open_window(settings, session_id)


def _settings(context: click.Context, flags: dict[str, Any]) -> Settings:
    """Settings of a command: its own flags before those given ahead of it."""
    own = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        return load_settings({**(context.obj or {}), **own})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def _store(context: click.Context, flags: dict[str, Any]) -> closing[Store]:
    from sessions.journal import recover
    from sessions.store import Store

    store = Store(_settings(context, flags).data_dir)
    recover(store)
    return closing(store)


def _sampling(flags: dict[str, Any]) -> SamplingChoice:
    from dataclasses import fields

    from chatapp.constraint import read_constraint
    from models.engine import Sampling
    from models.presets import SamplingChoice

    names = {field.name for field in fields(Sampling)} & flags.keys()
    given = {name: flags[name] for name in names if flags[name] is not None}
    if grammar := read_constraint(flags["json_schema"], flags["grammar_file"]):
        given["grammar"] = grammar
    return SamplingChoice(flags["preset"], given)


def _scrubbed(text: str | None) -> tuple[str | None, int]:
    from chatapp.safe import scrub

    return (None, 0) if text is None else scrub(text)


def _read_prompt(argument: str | None) -> tuple[str, int]:
    """Return the question from argument and stdin, and how many characters of it were damaged."""
    from chatapp.safe import decode_input, scrub

    text, n_damaged = scrub(argument or "")
    if sys.stdin.isatty():
        return text, n_damaged
    piped, n_in_piped = decode_input(sys.stdin.buffer.read())
    parts = [part for part in (text, piped.rstrip("\n")) if part.strip()]
    return "\n\n".join(parts), n_damaged + n_in_piped
