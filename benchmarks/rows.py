"""The rows of the side-by-side table: what is said of each part's figures, and what was wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison with `against`. `least` or `most` is what was wanted of `value`, else of the ratio."""

    name: str
    ours: str
    against: str = ""
    peer: str = ""
    ratio: float | None = None
    least: float | None = None
    most: float | None = None
    value: float | None = None
    unit: str = ""
    where: str = ""
    flash: str = ""

    @property
    def wanted(self) -> str | None:
        """The limit, as it is printed."""
        if self.least is not None:
            return f"≥ {self.least:g}{self.unit}{self.where}"
        return f"≤ {self.most:g}{self.unit}{self.where}" if self.most is not None else None

    @property
    def is_met(self) -> bool:
        """True if the limit is kept, or there is none."""
        found = self.ratio if self.value is None else self.value
        if found is None:
            return self.least is None and self.most is None
        return (self.least is None or found >= self.least) and (self.most is None or found <= self.most)


def _resume(found: Figures, on: str) -> list[Row]:
    both = f"{on} / {on}"
    return [
        Row(
            f"coming back to {found['history_tokens']:,} tokens in a new process: loading and first text",
            _ms(found["ours_total_s"]),
            "llama-server, saved slot",
            _ms(found["peer_total_s"]),
            found["total_ratio"],
            flash=both,
        ),
        Row("of it, loading", _ms(found["ours_restore_s"]), "", _ms(found["peer_restore_s"]), flash=both),
        Row(
            "first text, in the new process",
            _ms(found["ours_ttft_s"]),
            "without leaving",
            _ms(found["live_ttft_s"]),
            found["live_ratio"],
            flash=on,
        ),
    ]


def _speed(found: Figures, on: str) -> list[Row]:
    defaults = f"{on} / {found['peer_defaults_flash_attention']}"
    rows = []
    for depth, where in (("shallow", "depth 0"), ("deep", f"depth {found['depth_tokens']:,}")):
        for what, name, least in (
            ("greedy", "decode, greedy", 0.97),
            ("sampled", "decode, default sampler", 0.93),
            ("prefill", f"prefill of {found['prompt_tokens']:,} tokens", 0.97),
        ):
            its = f"{depth}_{'prefill' if what == 'prefill' else 'decode'}"
            ours = _rate(found[f"{depth}_{what}_tokens_per_s"])
            rows.append(
                Row(
                    f"{name}, {where}",
                    ours,
                    "llama-bench",
                    _rate(found[f"{its}_peer_tokens_per_s"]),
                    found[f"{depth}_{what}_ratio"],
                    least=least,
                    flash=f"{on} / {on}",
                )
            )
            if what != "sampled":
                rows.append(
                    Row(
                        f"{name}, {where}",
                        ours,
                        "llama-bench, defaults",
                        _rate(found[f"{its}_peer_defaults_tokens_per_s"]),
                        found[f"{depth}_{what}_defaults_ratio"],
                        flash=defaults,
                    )
                )
    return rows


def _turn(found: Figures, on: str) -> list[Row]:
    behind = f"behind {found['history_tokens']:,} tokens"
    flash = f"{on} / auto"
    return [
        Row(
            f"first text of a message of {found['message_tokens']} tokens {behind}",
            _ms(found["ours_ttft_s"]),
            "llama-server, defaults",
            _ms(found["peer_ttft_s"]),
            found["ttft_ratio"],
            most=0.35,
            flash=flash,
        ),
        Row(
            f"decode {behind}",
            _rate(found["ours_tokens_per_s"]),
            "llama-server, defaults",
            _rate(found["peer_tokens_per_s"]),
            found["decode_ratio"],
            least=2.5,
            where=" where flash attention costs that much",
            flash=flash,
        ),
    ]


def _batch(found: Figures, on: str) -> list[Row]:
    best = found["peer_best_flags"]
    its = "on" if "--flash-attn on" in best else "off"
    return [
        Row(
            f"{found['rows']} prompts over {found['shared_tokens']:,} shared tokens, {found['n_parallel']} at once, "
            f"{found['output_tokens']:,} tokens of output",
            f"{found['ours_s']:.1f} s",
            f"llama-server, its best: `{best}`",
            f"{found['peer_s']:.1f} s",
            found["batch_ratio"],
            most=0.9,
            flash=f"{on} / {its}",
        )
    ]


def _roofline(found: Figures, _on: str) -> list[Row]:
    mode = "on" if found["flash_attention"] else "off"
    size = f"random weights, {found['n_params'] / 1e9:.2f} billion in Q4_0 ({found['weights_bytes'] / 1e9:.2f} GB)"
    rows = [
        Row(
            f"decode, greedy, depth 0, {size}",
            _rate(1 / found["ours_tpot_s"]),
            "llama-bench",
            _rate(1 / found["peer_tpot_s"]),
            found["greedy_ratio"],
            least=0.97,
            flash=f"{mode} / {mode}",
        ),
        Row("a token of it takes", _ms(found["ours_tpot_s"])),
    ]
    if found["floor_s"]:
        rows.append(
            Row(
                f"of that, reading at {found['read_bytes_per_s'] / 1e9:.1f} GB/s: the share of the memory limit",
                _ms(found["floor_s"]),
                ratio=found["memory_limit_ratio"],
            )
        )
        rows.append(Row("of that, the library's step above reading", _ms(found["kernels_s"])))
    rows.append(Row("of that, sampling", _ms(found["sampling_s"])))
    rows.append(Row("of that, the product around the library", _ms(found["product_s"])))
    rows.append(Row("one more token in the same step: what computing takes", _ms(found["second_token_s"])))
    return rows


def _own(found: Figures, on: str) -> list[Row]:
    return [
        Row(
            f"{found['rows']} prompts, one after the other / {found['n_parallel']} at once",
            f"{found['sequential_s']:.1f} s / {found['parallel_s']:.1f} s",
            ratio=found["sequential_to_parallel_ratio"],
            least=1.5,
            flash=on,
        ),
        Row(
            "evaluations of the shared prefix, at once",
            f"{found['parallel_shared_evaluated_ratio']:.2f}",
            ratio=found["parallel_shared_evaluated_ratio"],
            most=1,
            flash=on,
        ),
        Row(
            f"tokens to evaluate at send, a paste of {found['paste_tokens']:,} read ahead",
            str(found["ahead_evaluated_tokens"]),
            "not read ahead; ratio to what was typed + one batch",
            str(found["plain_evaluated_tokens"]),
            found["evaluated_to_allowed_ratio"],
            most=1,
            flash=on,
        ),
        Row("first key accepted", _ms(found["first_key_s"]), value=found["first_key_s"], most=1, unit=" s"),
        Row("`import chatapp.cli`", _ms(found["import_cli_s"]), value=found["import_cli_s"], most=0.15, unit=" s"),
        Row(
            "engine ready",
            _ms(found["engine_ready_s"]),
            "bare load",
            _ms(found["bare_ready_s"]),
            found["engine_ready_ratio"],
            most=1.2,
            flash=f"{on} / {on}",
        ),
        Row(
            "engine's memory",
            _mib(found["engine_rss_bytes"]),
            "bare library; ratio to that + 40 MB + one segment buffer",
            _mib(found["bare_rss_bytes"]),
            found["engine_rss_ratio"],
            most=1,
            flash=f"{on} / {on}",
        ),
    ]


ROWS: Mapping[str, Callable[[Figures, str], list[Row]]] = {
    "resume": _resume,
    "speed": _speed,
    "turn": _turn,
    "batch": _batch,
    "roofline": _roofline,
    "own": _own,
}
"""By part, what makes its rows from its figures and the flash attention mode of our side."""


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) >= 0.1 else f"{seconds * 1000:.2f} ms"


def _rate(tokens_per_s: float) -> str:
    return f"{tokens_per_s:.1f} t/s"


def _mib(n_bytes: int | None) -> str:
    return "unknown" if n_bytes is None else f"{n_bytes / (1 << 20):.0f} MiB"
