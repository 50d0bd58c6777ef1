"""`chatapp desktop-entry`. What it needs is imported when it runs."""

from __future__ import annotations

import sys

import click


@click.command("desktop-entry")
@click.option("--browser", "in_browser", is_flag=True, help="Open the chat in the browser, not in a terminal.")
@click.option("--remove", is_flag=True, help="Take the launcher away.")
def desktop_entry(*, in_browser: bool, remove: bool) -> None:
    """Install a launcher, so that the desktop's menu opens the chat."""
    from chatapp import desktop

    if advice := desktop.advice(sys.platform):
        raise click.UsageError(advice)
    if remove and in_browser:
        raise click.UsageError("--remove takes away the only launcher there is: leave --browser out.")
    if in_browser and not desktop.has_web():
        from chatapp.cli_web import NOT_INSTALLED

        raise click.ClickException(NOT_INSTALLED)
    folder = desktop.data_home()
    try:
        if remove:
            removed = desktop.remove(folder)
            click.echo("The launcher was removed." if removed else "There is no launcher.", err=True)
        else:
            click.echo(desktop.install(folder, desktop.program(sys.executable), in_browser=in_browser))
    except desktop.NotOurs as error:
        raise click.ClickException(str(error)) from error
