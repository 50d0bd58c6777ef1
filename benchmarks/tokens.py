"""How soon and how fast the counter of `models/tokens.py` counts, beside the time its first and second load take.

`python -m benchmarks.tokens [--model PATH.gguf] [--mb 4]` prints one JSON object. Times are the best of five.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from models.catalog import starter_model
from models.tokens import counter_for

_REPEATS = 5
_TEXTS = {
    "english": "The ferry leaves at noon, and nobody on the pier seems to be in a hurry to board it. ",
    "german": "Während die Fähre ablegt, erzählt der Lotse von früheren Stürmen über der Nordsee. ",
    "russian": "Паром отходит в полдень, и никто на причале не торопится подняться на борт. ",
    "hindi": "नाव दोपहर को निकलती है और घाट पर किसी को जल्दी नहीं है। ",
    "chinese": "渡轮中午出发，码头上没有人急着上船，海鸥在桅杆之间盘旋。",
    "code": "    for name, size in sorted(table.items()):\n        total += size * 2  # bytes, not 0x10 words\n",
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=starter_model())
    parser.add_argument("--mb", type=float, default=4.0, help="of text in each language")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("There is no starter model; pass --model PATH.gguf.")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        counter = counter_for(arguments.model, Path(folder))
        first_load_s = time.perf_counter() - begun
        if counter is None:
            parser.error(f"Only the engine can count the tokens of {arguments.model.name}.")
        cached_load_s = _best(lambda: counter_for(arguments.model, Path(folder)))
    figures = {"first_load_s": round(first_load_s, 3), "cached_load_s": round(cached_load_s, 3)}
    for name, sentence in _TEXTS.items():
        n_bytes = len(sentence.encode())
        text = sentence * int(arguments.mb * 1e6 / n_bytes)
        seconds = _best(lambda text=text: counter.count(text))  # type: ignore[misc]
        figures[f"{name}_mb_per_s"] = round(len(text.encode()) / 1e6 / seconds, 1)
    draft = _TEXTS["english"] * 20
    figures["draft_of_2_kb_us"] = round(_best(lambda: counter.count(draft)) * 1e6)
    print(json.dumps(figures))


def _best(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


if __name__ == "__main__":
    main()
