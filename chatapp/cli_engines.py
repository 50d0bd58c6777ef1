"""The `engines` commands. What they need is imported when they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chatapp.options import agree, folder_options, json_option, settings_of

if TYPE_CHECKING:
    from chatapp.config import Settings
    from models.remote import RemoteEngine
    from models.remote_profile import RemoteProfile


@click.group()
def engines() -> None:
    """List, add, test and remove servers that answer in place of this machine."""


@engines.command("list")
@json_option
@folder_options
@click.pass_context
def list_engines(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """List the servers of the settings file."""
    from chatapp.console import print_json, print_text
    from chatapp.listing import table
    from chatapp.safe import clean_line

    settings = settings_of(context, flags)
    if as_json:
        print_json([_object(profile, settings) for profile in settings.engines.values()])
        return
    rows = [
        [
            "*" if settings.engine.partition("/")[0] == profile.name else " ",
            profile.name,
            clean_line(profile.model or "its only model", 60),
            clean_line(profile.base_url, 100),
        ]
        for profile in settings.engines.values()
    ]
    if rows:
        print_text(table(rows))
    else:
        click.echo("There is none: `chatapp engines add NAME URL` adds a server.", err=True)


@engines.command("add")
@click.argument("name")
@click.argument("base_url", metavar="URL")
@click.option("--model", metavar="MODEL", help="The model there; needed if the server has several.")
@click.option("--key-env", metavar="VARIABLE", help="The variable that holds the key.")
@click.option("--key-command", metavar="COMMAND", help="The command that prints the key.")
@click.option("--key-keyring", metavar="SERVICE[/USER]", help="The entry of the keyring that is the key.")
@click.option("--ca-file", metavar="FILE", help="Who vouches for the server's certificate.")
@click.option("--allow-http", is_flag=True, help="Talk to another machine without encryption.")
@folder_options
@click.pass_context
def add_engine(context: click.Context, /, name: str, base_url: str, **flags: Any) -> None:
    """Add a server with an OpenAI-compatible chat endpoint, such as https://host/v1, to the settings file."""
    from chatapp import enginefile, profiles

    own = ("model", "key_env", "key_command", "key_keyring", "ca_file", "allow_http")
    fields = {"base_url": base_url} | {key: value for key in own if (value := flags.pop(key))}
    settings = settings_of(context, flags)
    if name in settings.engines:
        raise click.ClickException(f"There is a server {name} already: choose another name, or remove that one first.")
    path = settings.config_file
    try:
        profiles.parse(name, fields, {}, path.parent)
        enginefile.write(path, enginefile.added(_text(settings), name, fields))
    except profiles.ProfileError as error:
        raise click.ClickException(f"{name} {error}.") from error
    except enginefile.EngineFileError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Added to {path}. `chatapp engines test {name}` tries it, `--engine {name}` uses it.", err=True)


@engines.command("remove")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@folder_options
@click.pass_context
def remove_engine(context: click.Context, /, name: str, yes: bool, **flags: Any) -> None:
    """Take a server out of the settings file. Its conversations stay."""
    from chatapp import enginefile

    settings = settings_of(context, flags)
    _profile(settings, name)
    agree(f"Take {name} out of {settings.config_file}?", yes=yes)
    try:
        enginefile.write(settings.config_file, enginefile.removed(_text(settings), name))
    except enginefile.EngineFileError as error:
        raise click.ClickException(str(error)) from error


@engines.command("test")
@click.argument("name")
@json_option
@folder_options
@click.pass_context
def test_engine(context: click.Context, /, name: str, as_json: bool, **flags: Any) -> None:
    """Connect to a server, ask what it is, and let it answer one short question."""
    from dataclasses import replace

    from chatapp.console import run_to_exit
    from chatapp.listing import print_figures
    from models.remote import RemoteEngine

    settings = settings_of(context, flags)
    profile, _, model = name.partition("/")
    found = _profile(settings, profile)
    engine = RemoteEngine(replace(found, model=model) if model else found)
    figures: dict[str, object] = {}
    code = run_to_exit(_try(engine, figures))
    print_figures(figures, as_json=as_json)
    context.exit(code)


async def _try(engine: RemoteEngine, figures: dict[str, object]) -> int:
    """Fill in what a server tells and how it answers. Raises `ClickException`."""
    import time

    from chatapp.safe import clean_line
    from models.engine import Entry, Failed, Finished, Piece, Prompt, Sampling, Stored

    try:
        async for event in engine.load():
            if isinstance(event, Failed):
                raise click.ClickException(event.message)
        facts, info = engine.facts, engine.info
        assert facts is not None
        assert info is not None
        figures |= {
            "server": " ".join(part for part in (facts.kind, clean_line(facts.version, 40)) if part),
            "model": clean_line(facts.model, 100),
            "context": info.n_ctx if facts.n_ctx else f"not told, {info.n_ctx} assumed",
            "tokenizer": facts.tokenize is not None,
            "saves_kv": facts.slot is not None,
            "resumes_streams": facts.resumes,
            "counters": facts.metrics is not None,
        }
        if facts.metrics:
            figures |= {"kv_tokens": facts.metrics.n_kv, "kv_usage": facts.metrics.kv_usage}
        asked_at = time.monotonic()
        prompt = Prompt((Entry("user", "Say hello in one word."),), store_kv=False, may_reason=False)
        async for event in engine.generate(prompt, Sampling(1.0, 0, 1.0, 0.0, max_tokens=32)):
            if isinstance(event, Piece) and event.text and "ttft_s" not in figures:
                figures["ttft_s"] = round(time.monotonic() - asked_at, 3)
            if isinstance(event, Finished):
                stats = event.stats
                figures |= {
                    "answer": clean_line(event.text, 60),
                    "prompt_tokens": stats.prompt_tokens,
                    "cached_tokens": "unknown" if stats.resident_tokens is None else stats.resident_tokens,
                    "output_tokens": stats.output_tokens,
                    "tpot_s": None if stats.tpot_s is None else round(stats.tpot_s, 4),
                }
            if isinstance(event, Stored) and event.note:
                figures["note"] = event.note
            if isinstance(event, Failed):
                raise click.ClickException(event.message)
    finally:
        await engine.close()
    return 0


def _profile(settings: Settings, name: str) -> RemoteProfile:
    found = settings.engines.get(name)
    if found is None:
        known = ", ".join(settings.engines) or "none"
        raise click.ClickException(f"There is no server {name!r} in {settings.config_file}; there are: {known}.")
    return found


def _text(settings: Settings) -> str:
    """The settings file as it is, line ends included; empty where there is none."""
    path = settings.config_file
    if not path.is_file():
        return ""
    with path.open(encoding="utf-8-sig", newline="") as file:
        return file.read()


def _object(profile: RemoteProfile, settings: Settings) -> dict[str, object]:
    return {
        "name": profile.name,
        "base_url": profile.base_url,
        "model": profile.model,
        "has_key": profile.key is not None,
        "parallel": profile.n_parallel,
        "is_default": settings.engine.partition("/")[0] == profile.name,
    }
