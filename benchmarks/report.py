"""Puts the product beside llama-server and llama-bench of the same llama.cpp, and writes down what comes out.

    python -m benchmarks.report --peers FOLDER [--only resume speed turn batch roofline own] [--small] [--write]

`FOLDER` has both programs (`python -m tools.llama_peers` makes them). Prints a table of ratios; `--write` puts it into
docs/performance.md, between its markers, and `--json FILE` keeps all figures. `--small` tries everything with
sizes that say nothing about speed. About 13 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import peer_batch, peer_resume, peer_speed, peer_turn, roofline
from benchmarks.beside import Beside
from benchmarks.random_model import Shape
from benchmarks.rows import ROWS, Row
from chatapp.benches.batch import batch
from chatapp.benches.scene import own_settings, settled
from chatapp.benches.startup import startup
from chatapp.benches.typeahead import typeahead
from chatapp.config import Settings
from models.catalog import starter_model
from models.errors import EngineError
from models.llama import BUILD
from tools import llama_peers

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- side by side: begin -->", "<!-- side by side: end -->"
PARTS = ("resume", "speed", "turn", "batch", "roofline", "own")
_SHOWN_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd", "sve")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    depth: int = 4096
    n_history: int = 4150
    n_turn: int = 4000
    n_prompt: int = 512
    n_gen: int = 64
    rounds: int = 3
    repeats: int = 5
    n_rows: int = 64
    n_system: int = 1000
    n_parallel: int = 8
    n_paste: int = 2000
    n_memory: int = 1024
    n_ctx: int = 8192
    shape: Shape = Shape()  # noqa: RUF009 - frozen


SMALL = Sizes(
    128,
    160,
    128,
    32,
    16,
    1,
    1,
    4,
    64,
    2,
    64,
    64,
    2048,
    Shape(n_layers=2, n_embd=256, n_ff=512, n_heads=4, n_kv_heads=2),
)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, required=True, help="folder of llama-server and llama-bench")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--threads", type=int, help="default: what the product finds")
    parser.add_argument("--flash-attention", choices=("auto", "on", "off"), default="auto", help="auto: the same")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    try:
        figures = measure(options)
    except EngineError as exc:
        sys.exit(str(exc))
    text = page_text(figures)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.write and (options.small or set(options.only) != set(PARTS)):
        print("docs/performance.md was left as it is: this is not all of it.", file=sys.stderr)
    elif options.write:
        PAGE.write_text(between_markers(PAGE.read_text(encoding="utf-8"), text), encoding="utf-8")


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the figures of each part, and of the machine under `machine`. Raises `EngineError`."""
    model = starter_model()
    if model is None:
        raise EngineError("The starter model is not installed: set up the environment with make.")
    sizes = SMALL if options.small else Sizes()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="chatapp-beside-") as name:
        folder = Path(name)
        settings = Settings(
            data_dir=folder / "data",
            cache_dir=folder / "cache",
            model=model,
            n_ctx=sizes.n_ctx,
            threads=options.threads,
            flash_attention=options.flash_attention,
            speculation="off",  # an answer that repeats itself would seem fast
        )
        settings = _chosen(settings)
        beside = Beside(options.peers, model, folder, settings)
        is_chosen = options.flash_attention == "auto" and options.threads is None
        figures: dict[str, dict[str, Any]] = {"machine": machine(settings, "chose" if is_chosen else "was told")}
        for part in options.only:
            print(f"measuring: {part} ({time.monotonic() - begun:.0f} s so far)", file=sys.stderr, flush=True)
            figures[part] = _part(part, beside, sizes)
    figures["machine"]["minutes"] = (time.monotonic() - begun) / 60
    return figures


def _chosen(settings: Settings) -> Settings:
    """The settings with what the product finds fastest here, so that both sides can be given the same."""
    with own_settings(settings) as own:
        found = asyncio.run(settled(own))
    return replace(settings, flash_attention=found.flash_attention, threads=found.threads)


def _part(part: str, beside: Beside, sizes: Sizes) -> dict[str, Any]:
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "resume": lambda: asyncio.run(peer_resume.measure(beside, n_tokens=sizes.n_history, repeats=sizes.repeats)),
        "speed": lambda: asyncio.run(
            peer_speed.measure(
                beside, depth=sizes.depth, n_prompt=sizes.n_prompt, n_gen=sizes.n_gen, rounds=sizes.rounds
            )
        ),
        "turn": lambda: asyncio.run(
            peer_turn.measure(beside, depth=sizes.n_turn, n_message=20, n_gen=sizes.n_gen, repeats=sizes.repeats)
        ),
        "batch": lambda: asyncio.run(
            peer_batch.measure(
                beside,
                n_rows=sizes.n_rows,
                n_system=sizes.n_system,
                n_gen=sizes.n_gen,
                n_parallel=sizes.n_parallel,
                repeats=min(2, sizes.repeats),
            )
        ),
        "roofline": lambda: asyncio.run(
            roofline.measure(beside, shape=sizes.shape, n_gen=sizes.n_gen, repeats=sizes.rounds)
        ),
        "own": lambda: _own(beside.settings, sizes),
    }
    return parts[part]()


def _own(settings: Settings, sizes: Sizes) -> dict[str, Any]:
    """What is measured without a peer: `chatapp bench batch`, `typeahead` and `startup`."""
    rows = batch(
        settings,
        n_rows=sizes.n_rows,
        n_tokens=sizes.n_gen,
        n_system_tokens=sizes.n_system,
        n_parallel=sizes.n_parallel,
    )
    ahead = typeahead(settings, n_tokens=sizes.n_paste, repeats=sizes.rounds)
    started = startup(settings, n_tokens=sizes.n_memory, repeats=sizes.repeats)
    loads = [figures["foreign_load"] for figures in (rows, ahead, started)]
    return {**rows, **ahead, **started, "foreign_load": max(float(str(load)) for load in loads)}


# --- the page ---


def machine(settings: Settings, chosen: str) -> dict[str, Any]:
    """Return what figures depend on: processor, build and settings of both sides."""
    build = llama_peers.planned(PAGE.parents[1], os.environ)
    flags = [flag for flag in shlex.split(build.cmake_args) if flag not in llama_peers.OWN_FLAGS]
    return {
        **processor(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "build": BUILD,
        "flags": shlex.join(flags),
        "chosen": chosen,
        "threads": settings.threads,
        "flash_attention": settings.flash_attention,
    }


def processor(path: Path) -> dict[str, str]:
    """Return name, family, model and the vector extensions of the first processor; empty where nothing tells."""
    if not path.exists():
        return {"processor": "unknown", "extensions": ""}
    lines = path.read_text().partition("\n\n")[0].splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    has = facts.get("flags", facts.get("Features", "")).split()
    numbers = f" family {facts['cpu family']} model {facts['model']}" if "cpu family" in facts else ""
    return {
        "processor": facts.get("model name", "unknown") + numbers,
        "extensions": " ".join(flag for flag in _SHOWN_FLAGS if flag in has),
    }


def page_text(figures: Mapping[str, dict[str, Any]]) -> str:
    """Return the tables as they stand on the page."""
    about = figures["machine"]
    on = about["flash_attention"]
    lines = [
        f"{about['processor']}, {about['cores']} cores ({about['extensions']}); {about['build']}, both sides compiled "
        f"with `{about['flags']}`; starter model; both with {about['threads']} threads and flash attention {on}, "
        f"which the product {about['chosen']}, unless llama.cpp's defaults are named. "
        f"Measured in {about['minutes']:.0f} min.",
        "",
        "| | ours | against | theirs | ratio | wanted | flash attention, ours / theirs |",
        "|---|---|---|---|---|---|---|",
    ]
    for part, rows_of in ROWS.items():
        if part in figures:
            lines += [_line(row) for row in rows_of(figures[part], on)]
    loads = {part: found["foreign_load"] for part, found in figures.items() if "foreign_load" in found}
    busy = ", ".join(f"{part} {load:.0%}" for part, load in loads.items())
    lines += ["", f"Share of the processors that other programs used between the measurements, at most: {busy}."]
    return "\n".join(lines)


def _line(row: Row) -> str:
    wanted = "" if row.wanted is None else f"{row.wanted}{'' if row.is_met else ' (missed)'}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return f"| {row.name} | {row.ours} | {row.against} | {row.peer} | {ratio} | {wanted} | {row.flash} |"


def between_markers(page: str, text: str) -> str:
    """Return the page with `text` in the place between its markers."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    assert begin, f"the page has {BEGIN}"
    assert end, f"the page has {END}"
    return f"{head}{BEGIN}\n\n{text}\n\n{END}{tail}"


if __name__ == "__main__":
    main()
