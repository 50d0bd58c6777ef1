"""`chatapp models convert`: another type of a model's weights, kept once what it loses is told."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from chatapp.config import Settings
from chatapp.console import Narrator, print_json, print_text
from chatapp.models_tune import known_tuning, narrated
from chatapp.safe import clean_line
from models.catalog import Model
from models.conversion import BITS, converted_name, expected_bytes, finish, unfinished
from models.errors import EngineError, ModelError
from models.jobs import run_job
from models.kvbudget import size
from models.tuning import FOREIGN_LIMIT, cores
from sessions.files import make_private_folder

TYPES = tuple(BITS)
"""What `--to` takes."""


def convert_model(
    settings: Settings, model: Model, type_name: str, *, output: Path | None, yes: bool, as_json: bool
) -> None:
    """Convert, measure the loss, tell it, and keep the file if that is wanted. Raises `EngineError`."""
    assert model.facts is not None, "a usable model has facts"
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked here: --yes says that the file may be kept whatever is lost.")
    own_type, entry = model.facts.quantization, model.entry
    if own_type == type_name:
        raise ModelError(f"{entry.name} is {type_name} already.")
    own_folder = settings.data_dir / "models"
    if output is None:
        make_private_folder(own_folder)
    name = f"{converted_name(entry.name, own_type, type_name)}.gguf"
    target = output / name if output and output.is_dir() else output or own_folder / name
    make_private_folder(settings.cache_dir)
    tuned = known_tuning(settings, entry.path)
    narrator = Narrator()
    with unfinished(target.absolute(), expected_bytes(model.facts.n_params, type_name)) as part:
        request = {
            "op": "convert",
            "model": str(entry.path.resolve()),
            "target": str(part),
            "type": type_name,
            "threads": tuned.choice.threads_batch if tuned else cores(),
        }
        try:
            result = run_job(request, cache_dir=settings.cache_dir, told=narrated(narrator))
        finally:
            narrator.clear()
        if not as_json:
            print_text(_words(result, model.facts.size_bytes, own_type or "?", type_name))
        if not yes and not click.confirm(f"Keep it as {clean_line(str(target), 200)}?", err=True):
            raise EngineError("Nothing was kept.")
        finish(part, target.absolute())
    if as_json:
        print_json({"path": str(target.absolute()), "from": own_type, "to": type_name, **_object(result)})
    else:
        narrator.hint(f"Kept: `chatapp --model {_named(target, own_folder)}` chats with it.")


def _named(target: Path, own_folder: Path) -> str:
    return clean_line(target.stem if target.parent == own_folder else str(target), 200)


def _object(result: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of an interface; see docs/cli.md."""
    loss = result["loss"]
    return {
        "size_bytes": result["size_bytes"],
        "mean_kl": loss["mean_kl"],
        "top1_agreement": loss["top1_agreement"],
        "perplexity_before": loss["perplexity_before"],
        "perplexity_after": loss["perplexity_after"],
        "compared_tokens": loss["n_tokens"],
        "prefill_ratio": result["speed"]["prefill_ratio"],
        "decode_ratio": result["speed"]["decode_ratio"],
        "foreign_cores": result["speed"]["foreign"],
    }


def _words(result: Mapping[str, Any], size_before: int, own_type: str, type_name: str) -> str:
    found = _object(result)
    foreign = found["foreign_cores"] or 0.0
    doubt = " (doubtful: other programs were busy)" if foreign > FOREIGN_LIMIT else ""
    if found["prefill_ratio"] is None:
        speed = "not compared: a minute was not enough"
    else:
        speed = (
            f"prefill {found['prefill_ratio']:.2f} x and decode {found['decode_ratio']:.2f} x {own_type}, "
            f"as {type_name} here{doubt}"
        )
    return (
        f"size        {size(found['size_bytes'])} in place of {size(size_before)}\n"
        f"loss        mean KL {found['mean_kl']:.4f}, the same likeliest token in {found['top1_agreement']:.1%} of "
        f"{found['compared_tokens']:,} places\n"
        f"perplexity  {found['perplexity_after']:.2f} in place of {found['perplexity_before']:.2f}\n"
        f"speed       {speed}\n"
    )
