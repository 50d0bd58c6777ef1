"""Decoding with guesses against decoding without, alternating in one run.

`python benchmarks/speculation.py [--tokens 256] [--repeats 3] [--model FILE]` prints one JSON object. Two engines
with the same settings answer the same prompts greedily, one with `speculation` auto, one with it off: to repeat a
text (`copy_ratio`) and to write one (`chat_ratio`). Each ratio is speed with / speed without, the median over pairs
of neighbouring answers; the first pair of each is left out, in which the one engine learns what batches cost here.
`cpu_ratio`s are the same of processor time, which other programs disturb less. `equal_tokens` are how many tokens of
the answers agree from their beginning, of `n_tokens`. `rounding_changed` of `rounding_tokens` greedy tokens are
others when they are evaluated sixteen at a time; then the two best were `rounding_largest_gap` apart at most.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.catalog import starter_model
from models.engine import Entry, Event, Finished, Prompt, Sampling, TurnStats
from models.llama import Context, ContextSettings, Model, Sampler, quiet_logs
from models.loading import LocalSettings
from models.local import LocalEngine
from models.stats import common_prefix

_TEXT = Path(__file__).parent.parent / "docs" / "kv-store.md"
_PROMPTS = {
    "copy": "Repeat this text word for word:\n\n{text}",
    "chat": "Write a long story about the sea and the people who live by it.",
}
_QUESTIONS = (
    "Write a long story about the sea and the people who live by it.",
    "Explain how a bicycle works, part by part.",
    "List twenty animals and say a sentence about each.",
    "What should one know before moving to another country?",
)
_N_ROUNDING = 160
_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class _Answer:
    stats: TurnStats
    ids: tuple[int, ...]
    cpu_s: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flash-attention", choices=("on", "off"), default="on")
    parser.add_argument("--model", type=Path, default=None)
    options = parser.parse_args()
    model = options.model or starter_model()
    assert model is not None, "the starter model is not installed"
    kept = quiet_logs(lambda _line: None)
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "model_path": model,
            "cache_dir": Path(folder),
            "data_dir": Path(folder),
            "n_ctx": 4096,
            "threads": options.threads,
            "flash_attention": options.flash_attention,
        }
        engines = [LocalEngine(LocalSettings(**given, speculation=mode), _ignore) for mode in ("auto", "off")]
        figures: dict[str, Any] = {
            "model": model.name,
            "threads": options.threads,
            "flash_attention": options.flash_attention == "on",
        }
        for name, text in _PROMPTS.items():
            prompt = text.format(text=_TEXT.read_text("utf-8")[:3000])
            pairs = [[_ask(one, prompt, options.tokens) for one in engines] for _ in range(options.repeats + 1)]
            figures |= _compared(name, pairs[1:])
        settings = ContextSettings(2048, options.flash_attention == "on", options.threads)
        figures |= _rounding(model, settings)
        for engine in engines:
            engine.close()
    print(json.dumps(figures))
    del kept


def _compared(name: str, pairs: list[list[_Answer]]) -> dict[str, Any]:
    with_guesses, without = pairs[-1]
    return {
        f"{name}_ratio": statistics.median(_speed(on) / _speed(off) for on, off in pairs),
        f"{name}_cpu_ratio": statistics.median(off.cpu_s / on.cpu_s for on, off in pairs),
        f"{name}_speculated": with_guesses.stats.speculated_tokens,
        f"{name}_accepted": with_guesses.stats.accepted_tokens,
        f"{name}_n_tokens": len(without.ids),
        f"{name}_equal_tokens": common_prefix(with_guesses.ids, without.ids),
    }


def _rounding(path: Path, settings: ContextSettings) -> dict[str, Any]:
    """The same tokens in single steps and in batches: where another one is best, and how close it was."""
    model = Model(path, gpu_layers=0, progress=lambda _share: None)
    context = Context(model, settings)
    n_changed, gaps = 0, [0.0]
    for question in _QUESTIONS:
        prompt = model.tokenize(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", True)
        sampler = Sampler(model, Sampling(temperature=0), 0)
        context.clear()
        context.prefill(prompt, lambda _done: None)
        tokens, gap_at = [], []
        for _ in range(_N_ROUNDING + 1):
            best, second = heapq.nlargest(2, context.logits())
            gap_at.append(best - second)
            tokens.append(context.sample(sampler))
            context.decode(tokens[-1])
        context.clear()
        context.prefill(prompt, lambda _done: None)
        for i in range(0, _N_ROUNDING, _AT_ONCE):
            context.decode_guessed(tokens[i], tokens[i + 1 : i + _AT_ONCE])
            for at in range(_AT_ONCE):
                if context.sample(sampler, at) != tokens[i + at + 1]:
                    n_changed += 1
                    gaps.append(gap_at[i + at + 1])
        sampler.close()
    context.close()
    return {
        "rounding_tokens": _N_ROUNDING * len(_QUESTIONS),
        "rounding_changed": n_changed,
        "rounding_largest_gap": round(max(gaps), 3),
    }


def _speed(answer: _Answer) -> float:
    assert answer.stats.tpot_s, "nothing was decoded"
    return 1 / answer.stats.tpot_s


def _ask(engine: LocalEngine, text: str, n_tokens: int) -> _Answer:
    """One answer behind an empty context; what its prompt costs is left out."""
    prompt = Prompt((Entry("user", text),), store_kv=False)
    engine.prepare(prompt, _ignore)
    finished: list[Finished] = []

    def emit(event: Event) -> None:
        if isinstance(event, Finished):
            finished.append(event)

    begun = time.process_time()
    engine.generate(prompt, Sampling(temperature=0.01, max_tokens=n_tokens), emit)
    return _Answer(finished[0].stats, finished[0].run.body, time.process_time() - begun)


def _ignore(_event: Event) -> None:
    pass


if __name__ == "__main__":
    main()
