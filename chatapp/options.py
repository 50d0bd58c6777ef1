"""Options that commands share, and what commands make of them: settings and the store."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from chatapp.config import ConfigError, Settings, load_settings

if TYPE_CHECKING:
    from models.presets import SamplingChoice
    from sessions.store import Store

F = TypeVar("F", bound=Callable[..., Any])


def _several(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


folder_options = _several(
    click.option("--data-dir", type=click.Path(path_type=Path), help="Folder of the conversations."),
    click.option("--cache-dir", type=click.Path(path_type=Path), help="Folder of what can be computed again."),
    click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="Settings in TOML."),
    click.option("--engine", metavar="NAME", help="llama (this machine), or a server from the settings file."),
)
engine_options = _several(
    click.option("--model", metavar="MODEL", help="GGUF file, or a name `models list` shows."),
    click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens."),
    click.option("--gpu-layers", type=click.IntRange(min=-1), help="Layers on the GPU; -1: all. Default: 0."),
    click.option("--threads", type=click.IntRange(min=1), help="CPU threads; default: the measured best."),
    click.option("--flash-attention", type=click.Choice(["auto", "on", "off"]), help="Default: auto, measured."),
    click.option("--speculation", type=click.Choice(["auto", "off"]), help="Guess what is copied. Default: auto."),
    click.option("--chat-format", metavar="NAME", help="For a model without a chat template: chatml, llama3, ..."),
    click.option("--kv/--no-kv", default=None, help="Keep KV on disk, or not. Default: --kv."),
    click.option("--kv-budget", metavar="SIZE", help="At most so much KV on disk, such as 20GiB."),
    click.option("--kv-type", type=click.Choice(["f16", "q8_0"]), help="Precision of KV. Default: f16."),
    click.option("--lora", multiple=True, metavar="PATH[=SCALE]", help="LoRA adapter; may be repeated."),
    folder_options,
)
fit_options = _several(
    click.option("--ctx", type=click.IntRange(min=1), help="Context size in tokens."),
    click.option("--kv-type", type=click.Choice(["f16", "q8_0"]), help="Precision of KV. Default: f16."),
)
sampling_options = _several(
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


def settings_of(context: click.Context, flags: dict[str, Any]) -> Settings:
    """Return the settings of a command: its own flags before those given ahead of it. Raises `UsageError`."""
    own = {name: value for name, value in flags.items() if value is not None and value != ()}
    try:
        return load_settings({**(context.obj or {}), **own})
    except ConfigError as error:
        raise click.UsageError(str(error)) from error


def sampling_of(flags: dict[str, Any]) -> SamplingChoice:
    """Return what the sampling options of a command ask for. Raises `UsageError`."""
    from dataclasses import fields

    from chatapp.constraint import read_constraint
    from models.engine import Sampling
    from models.presets import SamplingChoice

    names = {field.name for field in fields(Sampling)} & flags.keys()
    given = {name: flags[name] for name in names if flags[name] is not None}
    if grammar := read_constraint(flags["json_schema"], flags["grammar_file"]):
        given["grammar"] = grammar
    return SamplingChoice(flags["preset"], given)


def store_of(context: click.Context, flags: dict[str, Any]) -> closing[Store]:
    """Open the store of a command; answers that were broken off are stored first.

    A folder that cannot be written is opened for reading: what would change something is refused in a sentence.
    """
    from sessions.journal import recover
    from sessions.store import Store

    store = Store(settings_of(context, flags).data_dir, may_only_read=True)
    if not store.db.is_read_only:
        recover(store)
    return closing(store)


def agree(question: str, *, yes: bool) -> None:
    """Ask whether something may be deleted, unless `yes` says so. Raises `ClickException` if it may not."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked here: --yes says that it may be deleted.")
    if not click.confirm(question, err=True):
        raise click.ClickException("Nothing was deleted.")


def scrubbed(text: str | None) -> tuple[str | None, int]:
    """Return an argument by the rule for text that comes in, and how many characters of it were replaced."""
    from chatapp.safe import scrub

    return (None, 0) if text is None else scrub(text)
