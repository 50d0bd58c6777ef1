"""Decode speed through the whole product against the bare loop, alternating in one run.

`python benchmarks/decode.py [--tokens 128] [--repeats 15]` prints one JSON object. Both sides run the starter
model with the same prompt, settings and greedy sampling. `product_ratio` is product speed / bare speed: the
median over pairs of neighbouring runs, because the speed of a shared machine drifts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from models.catalog import starter_model

_HERE = Path(__file__).parent
_QUESTION = "Write a long story about the sea and the people who live by it."
_SYSTEM = "You are a helpful assistant."


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--flash-attention", choices=("on", "off"), default="off")
    options = parser.parse_args()
    model = starter_model()
    assert model is not None, "the starter model is not installed"
    rendered = (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{_QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    flash = str(int(options.flash_attention == "on"))
    bare, product = [], []
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--system", _SYSTEM, "--ephemeral", "--json", "--temperature", "0", "--ctx", "8192"]
        flags += ["--max-tokens", str(options.tokens), "--threads", str(options.threads)]
        flags += ["--flash-attention", options.flash_attention, "--data-dir", folder, "--cache-dir", folder]
        for _ in range(options.repeats + 1):
            loop = [str(_HERE / "bare_loop.py"), str(model), rendered, str(options.tokens), str(options.threads), flash]
            bare.append(_json(loop))
            product.append(_json(["-m", "chatapp", "run", _QUESTION, *flags]))
    # The first of each reads the model into the page cache.
    bare_times = [run["tpot_s"] for run in bare[1:]]
    product_times = [run["stats"]["tpot_s"] for run in product[1:]]
    figures = {
        "tokens": len(product[-1]["token_ids"]),
        "equal_tokens": product[-1]["token_ids"] == bare[-1]["token_ids"][: len(product[-1]["token_ids"])],
        "bare_tpot_s": statistics.median(bare_times),
        "product_tpot_s": statistics.median(product_times),
        "product_ratio": statistics.median(b / p for b, p in zip(bare_times, product_times, strict=True)),
        "threads": options.threads,
        "flash_attention": options.flash_attention == "on",
    }
    print(json.dumps(figures))


def _json(arguments: list[str]) -> dict[str, Any]:
    run = subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(run.stdout)
    return result


if __name__ == "__main__":
    main()
