"""`chatapp models tune`, and what else is said of the settings and weight types that are fastest here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from chatapp.config import Settings
from chatapp.console import Narrator, print_json, print_text
from chatapp.listing import table, when
from models.catalog import Model
from models.errors import EngineError
from models.fingerprint import known_weights_hash, weights_hash
from models.gguf_header import read_header
from models.jobs import JobPhase, Told, run_job
from models.kvbudget import size
from models.tuning import DOUBTFUL_S, Rates, Trial, Tuned, Tuning, forget, remember, remembered, tuned_from
from models.typerates import TypeRates, prompt_limit, remembered_types, types_from
from sessions.files import make_private_folder

_SAME = 1.05
"""A type that is so little faster may be slower in the next measurement."""
_KEPT_FOR = f"used for {DOUBTFUL_S // 3600} hours"
_PHASES: Mapping[JobPhase, str] = {
    "load": "reading the model",
    "tune": "trying settings",
    "types": "measuring types of weights",
    "convert": "converting",
    "loss": "measuring what is lost",
}


def tune_model(settings: Settings, model: Model, *, thorough: bool, seconds: float | None, as_json: bool) -> None:
    """Measure, print what was tried, and keep the choice; a doubtful one not in place of a sure one.

    Raises `EngineError`.
    """
    if settings.engine != "llama":
        raise click.ClickException("That measures this machine, and the engine is another: name --engine llama.")
    make_private_folder(settings.cache_dir)
    narrator = Narrator()
    path = model.entry.path
    request = {
        "op": "tune",
        "model": str(path.resolve()),
        "cache_dir": str(settings.cache_dir.resolve()),
        "kv_type": settings.kv_type,
        "thorough": thorough,
        "seconds": seconds,
    }
    try:
        result = run_job(request, cache_dir=settings.cache_dir, told=narrated(narrator))
    finally:
        narrator.clear()
    tuned, types = tuned_from(result["tuned"]), types_from(result["types"])
    if tuned is None:
        raise EngineError("The measurement gave nothing that can be used: measure again.")
    before = tuned_from(result["before"])
    lost = _lost(tuned, result["stored"])
    share = prompt_share(tuned, types, model)
    if as_json:
        if tuned.replaces(before):
            remember(settings.cache_dir, result["weights"], tuned)
        print_json(
            {
                **tuned_object(tuned, share),
                "before": tuning_object(before.choice) if before else None,
                "lost_kv_tokens": lost["n_tokens"],
                "lost_kv_bytes": lost["n_bytes"],
                "on_gpu": _rates_object(Rates(**result["on_gpu"])) if result["on_gpu"] else None,
                "types": types_object(types),
            }
        )
        return
    print_text(_trial_table(tuned))
    for line in _verdict(settings, tuned, before, lost, result["on_gpu"]):
        print_text(line + "\n")
    if share:
        print_text(f"First prompts: {_share_words(share, model)}.\n")
    if types:
        print_text("\n" + _type_table(types) + fastest_words(types, None) + ".\n")
        if types.is_doubtful:
            print_text("Other programs were busy meanwhile: the types are doubtful and not kept.\n")
    # Behind what was said of the KV that a switch costs.
    if tuned.replaces(before):
        remember(settings.cache_dir, result["weights"], tuned)


def forget_model(settings: Settings, path: Path, *, as_json: bool) -> None:
    """Delete what was measured for a model."""
    narrator = Narrator()
    try:
        weights = weights_hash(
            path, settings.cache_dir, lambda done, n: narrator.line(f"reading the model {100 * done // max(n, 1)} %")
        )
    except OSError as exc:
        raise click.ClickException(f"{path.name} cannot be read: {exc.strerror or exc}.") from exc
    narrator.clear()
    was_there = forget(settings.cache_dir, weights)
    if as_json:
        print_json({"forgotten": was_there})
    else:
        narrator.hint("It is measured again at its next use." if was_there else "Nothing was measured for it.")


def known_tuning(settings: Settings, path: Path) -> Tuned | None:
    """What is kept for a model file; None also for a file that was never loaded: it is not read for this."""
    weights = known_weights_hash(path, settings.cache_dir)
    return remembered(settings.cache_dir, weights, settings.kv_type) if weights else None


def prompt_share(tuned: Tuned, types: TypeRates | None, model: Model) -> float | None:
    """At what share of this machine's limit for its type of weights a first prompt runs, 0 to 1; None: not known."""
    if types is None or model.facts is None:
        return None
    limit = prompt_limit(types, model.facts.quantization, list(map(read_header, model.entry.files)))
    return min(1.0, tuned.rates.prompt / limit) if limit else None


def tuning_lines(settings: Settings, model: Model) -> list[tuple[str, str]]:
    """Return the lines of `models info` about speed on this machine."""
    assert model.facts is not None, "a usable model has facts"
    tuned, types = known_tuning(settings, model.entry.path), remembered_types(settings.cache_dir)
    if tuned is None:
        lines = [("settings", "measured at the first use; `chatapp models tune` takes longer and tells more")]
    else:
        lines = [
            ("settings", f"{_choice_words(tuned.choice)}, measured {when(tuned.measured_at)}{_doubt(tuned)}"),
            ("speed", _rates_words(tuned.rates, tuned.depth)),
        ]
        if share := prompt_share(tuned, types, model):
            lines.append(("", f"first prompts: {_share_words(share, model)}"))
    if settings.threads or settings.flash_attention != "auto":
        lines.append(("", "of these, --threads and --flash-attention are set by you"))
    words = fastest_words(types, model.facts.quantization) if types else "not measured yet: `chatapp models tune` does"
    return [*lines, ("types", words)]


def fastest_words(types: TypeRates, quantization: str | None) -> str:
    """Say which quantization is fastest here for chat, compared with a model's own, or with the usual one."""
    fastest, other = types.fastest, types.compared(quantization)
    if other is None:
        return f"{fastest} is the fastest here for chat"
    if other == fastest:
        return f"{fastest} is the fastest here for chat, of {', '.join(types.rates)}"
    best, own = types.rates[fastest], types.rates[other]
    if own.turn_s < best.turn_s * _SAME:
        return f"{other} is as fast here for chat as any ({fastest} gains {own.turn_s / best.turn_s - 1:.0%})"
    return (
        f"{fastest} is the fastest here for chat: {own.turn_s / best.turn_s:.2f} x {other} "
        f"(prefill {best.prefill / own.prefill:.2f} x, decode {best.decode / own.decode:.2f} x)"
    )


def narrated(narrator: Narrator) -> Told:
    """What shows the progress of a job in one line."""

    def told(phase: JobPhase, done: int, total: int) -> None:
        narrator.line(f"{_PHASES[phase]} {100 * done // max(total, 1)} %")

    return told


# --- JSON: an interface, so the keys stay; see docs/cli.md ---


def tuned_object(tuned: Tuned, share: float | None) -> dict[str, Any]:
    """Return a measurement; `share` is that of a first prompt's limit."""
    return {
        "choice": tuning_object(tuned.choice),
        **_rates_object(tuned.rates),
        "prompt_limit_share": share,
        "depth": tuned.depth,
        "reason": tuned.reason,
        "measured_at": tuned.measured_at,
        "foreign_cores": tuned.foreign,
        "doubtful": tuned.is_doubtful,
        "trials": [{**tuning_object(trial.tuning), **_rates_object(trial.rates)} for trial in tuned.trials],
    }


def tuning_object(tuning: Tuning) -> dict[str, Any]:
    """Return settings."""
    return asdict(tuning)


def types_object(types: TypeRates | None) -> dict[str, Any] | None:
    """Return the rates of types of weights, null where they are not measured."""
    if types is None:
        return None
    return {
        "fastest": types.fastest,
        "measured_at": types.measured_at,
        "doubtful": types.is_doubtful,
        "rates": {
            name: {"prefill_tokens_per_s": rate.prefill, "decode_tokens_per_s": rate.decode}
            for name, rate in types.rates.items()
        },
    }


def _rates_object(rates: Rates) -> dict[str, float]:
    return {
        "decode_tokens_per_s": rates.decode,
        "message_tokens_per_s": rates.message,
        "prompt_tokens_per_s": rates.prompt,
        "turn_s": rates.turn_s,
    }


# --- for people ---


def _trial_table(tuned: Tuned) -> str:
    head = [
        "flash attention",
        ">threads",
        ">for prompts",
        ">together",
        "KV",
        ">decode",
        ">message",
        ">prompt",
        ">a turn",
    ]
    return table([head, *(_trial_row(trial) for trial in tuned.trials)])


def _trial_row(trial: Trial) -> list[str]:
    tuning, rates = trial.tuning, trial.rates
    return [
        "on" if tuning.flash_attention else "off",
        f">{tuning.threads}",
        f">{tuning.threads_batch}",
        f">{tuning.n_ubatch}",
        tuning.kv_type,
        f">{rates.decode:.1f}/s",
        f">{rates.message:.0f}/s",
        f">{rates.prompt:.0f}/s",
        f">{rates.turn_s:.2f} s",
    ]


def _verdict(
    settings: Settings, tuned: Tuned, before: Tuned | None, lost: Mapping[str, int], on_gpu: Mapping[str, float] | None
) -> list[str]:
    """What was chosen, why, and what it costs."""
    flash = "on" if tuned.choice.flash_attention else "off"
    lines = [f"\n{_choice_words(tuned.choice)}: {_rates_words(tuned.rates, tuned.depth)}."]
    if before and before.choice == tuned.choice:
        lines.append("That is what was in use.")
    if tuned.reason == "kv":
        why = "that is in doubt" if tuned.is_doubtful else "by less than 10 %"
        lines.append(f"Flash attention stays {flash}: the other is faster, {why}, and stored KV would be lost.")
    elif lost["n_tokens"] and tuned.replaces(before):
        lines.append(
            f"{lost['n_tokens']:,} tokens of stored KV ({size(lost['n_bytes'])}) were made with flash attention "
            f"{'off' if tuned.choice.flash_attention else 'on'}: they cannot be used any more and are computed anew."
        )
    if settings.threads or settings.flash_attention != "auto":
        lines.append("What you set yourself (--threads, --flash-attention) is used all the same.")
    if on_gpu:
        rate = on_gpu["decode"]
        lines.append(f"With all layers on the GPU (--gpu-layers -1): decode {rate:.1f} tokens/s.")
    if tuned.is_doubtful:
        lines.append(
            f"Doubtful: other programs used {tuned.foreign:.1f} processors meanwhile. "
            f"It is {_KEPT_FOR if tuned.replaces(before) else 'not kept'}: measure again when they rest."
        )
    elif tuned.foreign is None:
        lines.append("Whether other programs were busy meanwhile cannot be seen on this system.")
    return lines


def _doubt(tuned: Tuned) -> str:
    return " while other programs were busy: doubtful" if tuned.is_doubtful else ""


def _choice_words(choice: Tuning) -> str:
    threads = f"{choice.threads} thread" + ("" if choice.threads == 1 else "s")
    if choice.threads_batch != choice.threads:
        threads += f" ({choice.threads_batch} for prompts)"
    return f"Flash attention {'on' if choice.flash_attention else 'off'}, {threads}, {choice.n_ubatch} tokens together"


def _rates_words(rates: Rates, depth: int) -> str:
    return (
        f"decode {rates.decode:.1f} and messages {rates.message:.0f} tokens/s behind {depth:,} tokens, "
        f"first prompts {rates.prompt:.0f} tokens/s"
    )


def _share_words(share: float, model: Model) -> str:
    quantization = model.facts.quantization if model.facts else None
    return f"{share:.0%} of what this machine does with wide matrices of {quantization}"


def _type_table(types: TypeRates) -> str:
    rows = [[name, f">{rate.prefill:.0f}/s", f">{rate.decode:.1f}/s"] for name, rate in types.rates.items()]
    return table([["weights", ">prefill", ">decode"], *rows])


def _lost(tuned: Tuned, stored: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
    """KV that was made with the flash attention mode that is not chosen."""
    return stored.get("off" if tuned.choice.flash_attention else "on") or {"n_tokens": 0, "n_bytes": 0}
