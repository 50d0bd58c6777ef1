"""`chatapp web`. What it needs is imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from chatapp.options import engine_options, settings_of

NOT_INSTALLED = (
    "The chat in a browser needs the package textual-serve (1.1.3 or a later 1.1): install it with pip into the "
    "environment chatapp is in."
)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="On this machine; default: a free one.")
@click.option("--open/--no-open", "opens_browser", default=True, help="Open the browser, or not. Default: --open.")
@click.option("--end-with-window", "ends_with_window", is_flag=True, help="End when the browser window is closed.")
@click.option("--session", "session_id", metavar="ID", help="Open this conversation.")
@engine_options
@click.pass_context
def web(
    context: click.Context,
    /,
    port: int,
    opens_browser: bool,
    ends_with_window: bool,
    session_id: str | None,
    **flags: Any,
) -> None:
    """Open the chat window in a browser on this machine."""
    try:
        from chatapp.config import language
        from chatapp.texts import use
        from chatapp.web.serving import WebError, serve
    except ModuleNotFoundError as error:
        raise click.ClickException(NOT_INSTALLED) from error

    settings = settings_of(context, flags)
    use(language(settings))
    given = {**(context.obj or {}), **{name: value for name, value in flags.items() if value not in (None, ())}}
    window = [sys.executable, "-P", "-m", "chatapp", *as_arguments(context.find_root().command, given)]
    if session_id:
        window += ["--session", session_id]
    try:
        serve(window, settings.data_dir, port, opens_browser=opens_browser, ends_with_window=ends_with_window)
    except WebError as error:
        raise click.ClickException(str(error)) from error


def as_arguments(command: click.Command, values: Mapping[str, Any]) -> list[str]:
    """Write values as the options of a command that give them; None, () and a flag's False are not given."""
    arguments: list[str] = []
    for option in command.params:
        value = values.get(option.name or "")
        if value is None or value == ():
            continue
        if isinstance(value, bool):
            arguments += option.opts[:1] if value else option.secondary_opts[:1]
        else:
            # One word, so that no value is taken for an option.
            arguments += [f"{option.opts[0]}={one}" for one in (value if isinstance(value, tuple) else [value])]
    return arguments
