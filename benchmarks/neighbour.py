"""Decoding beside a busy program: with as many threads as were chosen, and with as many as pay at the moment.

`python -m benchmarks.neighbour [--repeats 3] [--tokens 200]` prints one JSON object: seconds a token (medians) with all
threads and with those of `models/pace.py`, beside one process that is always busy and without it, in turns in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.catalog import starter_model
from models.engine import Entry, Event, Finished, Prompt, Sampling
from models.llama import quiet_logs
from models.loading import LocalSettings
from models.local import LocalEngine
from models.pace import Pace
from models.tuning import cores

_BUSY = "while True: pass"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=200)
    arguments = parser.parse_args()
    path = starter_model()
    assert path is not None, "the starter model is not installed"
    kept = quiet_logs(lambda _line: None)
    taken: dict[str, list[float]] = {"quiet_all": [], "quiet_paced": [], "busy_all": [], "busy_paced": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = LocalSettings(
            path, root / "cache", root / "data", n_ctx=2048, threads=cores(), flash_attention="off"
        )
        engine = LocalEngine(settings, lambda _event: None)
        for _ in range(arguments.repeats):
            for is_paced in (False, True):
                name = "paced" if is_paced else "all"
                taken[f"quiet_{name}"].append(_tpot_s(engine, is_paced, arguments.tokens))
                with _neighbour():
                    taken[f"busy_{name}"].append(_tpot_s(engine, is_paced, arguments.tokens))
        engine.close()
    del kept
    medians = {f"{name}_tpot_s": statistics.median(seconds) for name, seconds in taken.items()}
    ratios = {
        "busy_paced_to_all_ratio": medians["busy_paced_tpot_s"] / medians["busy_all_tpot_s"],
        "quiet_paced_to_all_ratio": medians["quiet_paced_tpot_s"] / medians["quiet_all_tpot_s"],
    }
    print(json.dumps({**medians, **ratios, "threads": cores()}))


def _tpot_s(engine: LocalEngine, is_paced: bool, n_tokens: int) -> float:
    engine._context.use_threads(cores())
    engine._pace = Pace(cores()) if is_paced else None
    heard: list[Event] = []
    prompt = Prompt((Entry("user", "Tell me a long story about the sea."),), store_kv=False)
    engine.generate(prompt, Sampling(temperature=0, max_tokens=n_tokens), heard.append)
    tpot_s = next(event.stats.tpot_s for event in heard if isinstance(event, Finished))
    assert tpot_s is not None, "more than one token was asked for"
    return tpot_s


@contextmanager
def _neighbour() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
        try:
            yield
        finally:
            busy.kill()


if __name__ == "__main__":
    main()
