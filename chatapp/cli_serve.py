"""`chatapp serve`. What it needs is imported when it runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from chatapp.options import engine_options, settings_of

NOT_INSTALLED = (
    "The server needs the package aiohttp (3.11 or a later 3): install it with pip into the environment chatapp is in."
)
PORT = 8484


@click.command()
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: a free one.")
@click.option(
    "--api-key-file",
    "key_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The key that clients show; made if it is not there. Default: a random key.",
)
@click.option("--name", metavar="NAME", help="What clients call the model; default: its own name.")
@click.option(
    "--parallel",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    metavar="N",
    help="Requests that are answered together; more wait.",
)
@click.option(
    "--max-waiting",
    "most_waiting",
    type=click.IntRange(min=0),
    default=32,
    show_default=True,
    metavar="N",
    help="Refuse requests when so many wait.",
)
@click.option(
    "--grace",
    "grace_s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds that running answers have when the server is ended.",
)
@engine_options
@click.pass_context
def serve(
    context: click.Context,
    /,
    host: str,
    port: int,
    key_file: Path | None,
    name: str | None,
    parallel: int,
    most_waiting: int,
    grace_s: float,
    **flags: Any,
) -> None:
    """Answer programs that speak OpenAI's chat API, on this machine.

    stdout has the address that clients are given; everything else is on stderr.
    """
    try:
        from chatapp.serve.guard import is_loopback
        from chatapp.serve.running import Serving
        from chatapp.serve.running import serve as run
        from chatapp.serve.secret import SecretError, random_secret, secret_in, secret_of
    except ModuleNotFoundError as error:
        raise click.ClickException(NOT_INSTALLED) from error
    from chatapp.config import SERVE_KEY, serve_key
    from chatapp.console import run_to_exit

    try:
        if key_file:
            secret = secret_in(key_file)
        elif given := serve_key():
            secret = secret_of(given, f"the variable {SERVE_KEY}")
        elif is_loopback(host):
            secret = random_secret()
        else:
            raise click.UsageError(
                f"{host} is reached by other machines: give a key of your own with --api-key-file or {SERVE_KEY}."
            )
    except SecretError as error:
        raise click.ClickException(str(error)) from error
    settings = replace(settings_of(context, flags), n_parallel=parallel)
    context.exit(run_to_exit(run(settings, Serving(host, port, secret, name, most_waiting, grace_s))))
