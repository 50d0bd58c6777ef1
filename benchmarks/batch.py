"""What a batch costs beside its engine: rows a second, and whether memory stays flat when the input grows.

    python -m benchmarks.batch [--rows 10000] [--tokens 8] [--order prefix] [--full]

Each run is a process of its own, `chatapp batch` with the fake engine, whose answers are cut to so many tokens:
with `--full` they are not, and what is measured is mostly the fake engine making tokens one by one. A second run over
the finished output measures what going on costs. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20


def child(arguments: list[str]) -> None:
    """Run the command here, and print seconds and the most memory it had (bytes)."""
    from chatapp.__main__ import main
    from models.fake import FakeEngine

    class Forgetful(list[Any]):
        """The fake engine remembers each prompt for tests: that is no part of what is measured."""

        def append(self, _item: Any) -> None:
            """Forget it."""

    begin = FakeEngine.load

    def load(engine: FakeEngine) -> Any:
        engine.prompts, engine.samplings = Forgetful(), Forgetful()
        return begin(engine)

    FakeEngine.load = load  # type: ignore[assignment, method-assign]
    sys.argv = ["chatapp", "batch", *arguments]
    started = time.perf_counter()
    try:
        main()
    except SystemExit as exited:
        if exited.code:
            raise
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": time.perf_counter() - started, "peak_bytes": peak}))


def measured(folder: Path, arguments: list[str]) -> dict[str, float]:
    """Return the figures of one run in a process of its own."""
    environment = {
        **os.environ,
        "CHATAPP_ENGINE": "fake",
        "CHATAPP_DATA_DIR": str(folder / "data"),
        "CHATAPP_CACHE_DIR": str(folder / "cache"),
    }
    command = [sys.executable, "-m", "benchmarks.batch", "--child", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def figures_of(n_rows: int, options: list[str]) -> dict[str, float]:
    """Return what a batch of so many rows costs, and what going on behind it does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target = folder / "in.jsonl", folder / "out.jsonl"
        with source.open("w", encoding="ascii") as file:
            for n in range(n_rows):
                prompt = f"Question {n}: what is the capital of country number {n % 197}?"
                file.write(json.dumps({"id": n, "prompt": prompt}) + "\n")
        arguments = [str(source), "-o", str(target), "--system", "Answer in one word.", *options]
        first = measured(folder, arguments)
        with target.open("rb") as output:
            assert sum(1 for _ in output) == n_rows
        again = measured(folder, arguments)
    return {
        "rows": n_rows,
        "rows_per_s": round(n_rows / first["seconds"]),
        "peak_mib": round(first["peak_bytes"] / MIB, 1),
        "going_on_rows_per_s": round(n_rows / again["seconds"]),
    }


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--order", choices=["input", "prefix"], default="input")
    parser.add_argument("--full", action="store_true", help="whole answers of the fake engine, about 160 tokens")
    given = parser.parse_args()
    options = ["--order", given.order] + ([] if given.full else ["--max-tokens", str(given.tokens)])
    small, large = figures_of(given.rows // 10, options), figures_of(given.rows, options)
    print(json.dumps({"runs": [small, large], "memory_ratio": round(large["peak_mib"] / small["peak_mib"], 3)}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
