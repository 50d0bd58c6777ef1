"""`chatapp bench`: measuring on this machine; what is measured stands in `chatapp/benches/`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from chatapp.options import engine_options, json_option, settings_of

F = TypeVar("F", bound=Callable[..., Any])

_DEPTH = click.option(
    "--depth", type=click.IntRange(min=32), default=4096, show_default=True, help="Tokens that stand before."
)


def _tokens(default: int, help_text: str) -> Callable[[F], F]:
    return click.option(
        "--tokens", "n_tokens", type=click.IntRange(min=16), default=default, show_default=True, help=help_text
    )


def _repeats(default: int) -> Callable[[F], F]:
    return click.option(
        "--repeats", type=click.IntRange(min=1), default=default, show_default=True, help="Pairs that are measured."
    )


@click.group()
def bench() -> None:
    """Measure on this machine. Ratios of one run travel, seconds do not."""


@bench.command()
@_tokens(4000, "History length.")
@_repeats(5)
@json_option
@engine_options
@click.pass_context
def resume(context: click.Context, /, n_tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Measure how fast a conversation comes back: cold, live and restored."""
    from chatapp.benches.resume import resume as measure

    _print(measure(settings_of(context, flags), n_tokens=n_tokens, repeats=repeats), as_json=as_json)


@bench.command()
@_DEPTH
@_tokens(128, "Length of an answer.")
@_repeats(7)
@json_option
@engine_options
@click.pass_context
def decode(context: click.Context, /, depth: int, n_tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Measure tokens a second through the whole program, against the bare library."""
    from chatapp.benches.decode import decode as measure

    figures = measure(settings_of(context, flags), depth=depth, n_tokens=n_tokens, repeats=repeats)
    _print(figures, as_json=as_json)


@bench.command()
@_DEPTH
@_tokens(512, "Length of a message.")
@_repeats(7)
@json_option
@engine_options
@click.pass_context
def prefill(context: click.Context, /, depth: int, n_tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Measure how fast prompts are evaluated, against the bare library."""
    from chatapp.benches.prefill import prefill as measure

    figures = measure(settings_of(context, flags), depth=depth, n_tokens=n_tokens, repeats=repeats)
    _print(figures, as_json=as_json)


@bench.command()
@click.option("--rows", "n_rows", type=click.IntRange(min=1), default=64, show_default=True, help="Prompts.")
@_tokens(64, "Length of an answer.")
@click.option(
    "--system-tokens",
    "n_system_tokens",
    type=click.IntRange(min=16),
    default=1000,
    show_default=True,
    help="Length of the system prompt that they share.",
)
@click.option(
    "--parallel", "n_parallel", type=click.IntRange(min=1), default=8, show_default=True, help="Rows at once."
)
@json_option
@engine_options
@click.pass_context
def batch(
    context: click.Context,
    /,
    n_rows: int,
    n_tokens: int,
    n_system_tokens: int,
    n_parallel: int,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure many prompts over one system prompt: one after the other, and at once."""
    from chatapp.benches.batch import batch as measure

    figures = measure(
        settings_of(context, flags),
        n_rows=n_rows,
        n_tokens=n_tokens,
        n_system_tokens=n_system_tokens,
        n_parallel=n_parallel,
    )
    _print(figures, as_json=as_json)


@bench.command()
@_tokens(2000, "Length of the paste.")
@_repeats(3)
@json_option
@engine_options
@click.pass_context
def typeahead(context: click.Context, /, n_tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Measure what is left to evaluate of a paste that was read ahead while you typed."""
    from chatapp.benches.typeahead import typeahead as measure

    _print(measure(settings_of(context, flags), n_tokens=n_tokens, repeats=repeats), as_json=as_json)


@bench.command()
@_tokens(5000, "Length of an answer.")
@click.option("--turns", "n_turns", type=click.IntRange(min=1), default=200, show_default=True, help="Turns before.")
@click.option("--rate", type=click.FloatRange(min=1), default=100.0, show_default=True, help="Tokens a second.")
@click.option("--watch", "watch_s", type=click.FloatRange(min=0.2), default=8.0, show_default=True, help="Seconds.")
@json_option
def ui(n_tokens: int, n_turns: int, rate: float, watch_s: float, as_json: bool) -> None:
    """Measure the window while answers come: keys, stalls, and what painting costs."""
    from chatapp.benches.ui import ui as measure

    _print(measure(n_tokens=n_tokens, n_turns=n_turns, rate=rate, watch_s=watch_s), as_json=as_json)


@bench.command()
@_tokens(1024, "Evaluated before memory is compared.")
@_repeats(5)
@json_option
@engine_options
@click.pass_context
def startup(context: click.Context, /, n_tokens: int, repeats: int, as_json: bool, **flags: Any) -> None:
    """Measure the start: first key, import, engine, and the engine's memory."""
    from chatapp.benches.startup import startup as measure

    _print(measure(settings_of(context, flags), n_tokens=n_tokens, repeats=repeats), as_json=as_json)


def _print(figures: Mapping[str, object], *, as_json: bool) -> None:
    """Print the figures, and say so where they are doubtful."""
    from chatapp import listing
    from chatapp.benches.foreign import TOLERATED
    from chatapp.console import Narrator

    loads = [float(str(value)) for name, value in figures.items() if name.endswith("foreign_load")]
    if max(loads) > TOLERATED:
        Narrator().notice(
            f"Other programs use {max(loads):.0%} of the processors: what is measured beside them says little."
        )
    listing.print_figures(figures, as_json=as_json)
