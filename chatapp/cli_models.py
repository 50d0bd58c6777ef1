"""The `models` commands. What they need is imported when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from chatapp.options import fit_options, folder_options, json_option, settings_of


@click.group()
def models() -> None:
    """List, describe, add, fetch, measure, convert and remove models. NAME may be its beginning."""


@models.command("list")
@json_option
@fit_options
@folder_options
@click.pass_context
def list_models(context: click.Context, /, as_json: bool, **flags: Any) -> None:
    """List all models on this disk, those of other programs too."""
    from chatapp.models_cmd import show_list

    show_list(settings_of(context, flags), as_json=as_json)


@models.command("info")
@click.argument("name", metavar="[MODEL]", required=False)
@json_option
@fit_options
@folder_options
@click.pass_context
def describe_model(context: click.Context, /, name: str | None, as_json: bool, **flags: Any) -> None:
    """Describe a model (name or path) before it is loaded; without one, that which would be used."""
    from chatapp.models_cmd import show_info

    show_info(settings_of(context, flags), name, as_json=as_json)


@models.command("add")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--copy", is_flag=True, help="Copy the file instead of linking to it.")
@json_option
@folder_options
@click.pass_context
def add_model(context: click.Context, /, path: Path, copy: bool, as_json: bool, **flags: Any) -> None:
    """Give a GGUF file a name: put a link to it into chatapp's own folder."""
    from chatapp import models_cmd

    models_cmd.add_model(settings_of(context, flags), path, copy=copy, as_json=as_json)


@models.command("pull")
@click.argument("wanted", metavar="REPO[:QUANT]")
@json_option
@folder_options
@click.pass_context
def pull_model(context: click.Context, /, wanted: str, as_json: bool, **flags: Any) -> None:
    """Fetch a model from the Hugging Face hub: OWNER/NAME, with a quantization or file behind a colon."""
    from chatapp import models_cmd

    models_cmd.pull_model(settings_of(context, flags), wanted, as_json=as_json)


@models.command("tune")
@click.argument("name", metavar="[MODEL]", required=False)
@click.option("--thorough", is_flag=True, help="Look longer: about a minute, deeper, and types of weights again.")
@click.option("--seconds", type=click.FloatRange(min=1), metavar="N", help="Look so long; default: 20.")
@click.option("--forget", "is_forgotten", is_flag=True, help="Forget what was measured; the next use measures again.")
@click.option("--kv-type", type=click.Choice(["f16", "q8_0"]), help="Precision of KV. Default: f16.")
@json_option
@folder_options
@click.pass_context
def tune_model(
    context: click.Context,
    /,
    name: str | None,
    thorough: bool,
    seconds: float | None,
    is_forgotten: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure which settings and types of weights are fastest on this machine, and use them."""
    from chatapp import models_tune
    from chatapp.models_cmd import wanted_model

    settings = settings_of(context, flags)
    model = wanted_model(settings, name)
    if is_forgotten:
        models_tune.forget_model(settings, model.entry.path, as_json=as_json)
    else:
        models_tune.tune_model(settings, model, thorough=thorough, seconds=seconds, as_json=as_json)


@models.command("convert")
@click.argument("name", metavar="MODEL")
@click.option("--to", "type_name", required=True, metavar="TYPE", help="Q8_0, Q4_K_M, ... as docs/models.md lists.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="Default: in the own folder.")
@click.option("--yes", is_flag=True, help="Keep the file without asking.")
@json_option
@folder_options
@click.pass_context
def convert_model(
    context: click.Context,
    /,
    name: str,
    type_name: str,
    output: Path | None,
    yes: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Make another type of a model's weights; it is kept once what it loses is told."""
    from chatapp import models_convert
    from chatapp.models_cmd import wanted_model

    settings = settings_of(context, flags)
    kind = type_name.upper()
    if kind not in models_convert.TYPES:
        raise click.BadParameter(f"{type_name} is none of {', '.join(models_convert.TYPES)}.", param_hint="--to")
    model = wanted_model(settings, name)
    models_convert.convert_model(settings, model, kind, output=output, yes=yes, as_json=as_json)


@models.command("remove")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@folder_options
@click.pass_context
def remove_model(context: click.Context, /, name: str, yes: bool, as_json: bool, **flags: Any) -> None:
    """Remove a model from chatapp's own folder."""
    from chatapp import models_cmd

    models_cmd.remove_model(settings_of(context, flags), name, yes=yes, as_json=as_json)


@models.command("default")
@click.argument("name", metavar="[NAME]", required=False)
@json_option
@folder_options
@click.pass_context
def default_model(context: click.Context, /, name: str | None, as_json: bool, **flags: Any) -> None:
    """Choose the model that is used when none is named; without NAME, show it."""
    from chatapp import models_cmd

    if name is None:
        models_cmd.show_default(settings_of(context, flags), as_json=as_json)
    else:
        models_cmd.choose_default(settings_of(context, flags), name, as_json=as_json)
