"""Why an answer took as long as it did: the numbers of its turn in sentences, and what could be done; pure.

Every number is one of the turn's stats, or follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chatapp.misstexts import because
from chatapp.texts import tr, tr_later, tr_n
from chatapp.tui import words
from models import misses
from models.engine import TurnStats
from models.stats import memory_share
from sessions.conversation import Message

State = Literal["over", "writing", "waiting"]
"""Whether the answer is complete, has begun, or is still awaited: then the numbers are those so far."""
Part = Literal[
    "queue", "waiting", "model load", "preparing", "restore", "prefill", "first decode", "transport", "decode"
]

_SHORT_S = 0.02
"""Parts shorter than that are not worth a sentence."""
_NEAR_FLOOR = 0.6
"""From this share of the memory's speed on, no setting makes decoding much faster."""
_WHOLE_CPU = 0.85
"""From this share on, nobody else took processor time that matters."""
_MUCH_REASONING = 0.5
_MUCH_SAMPLING = 0.2
"""From this share of decoding on, choosing tokens is worth a sentence."""
_LONG_RESTORE_S = 0.2
"""From here on it is said what of a restore took longest."""
_BEFORE: tuple[Part, ...] = ("queue", "waiting", "model load", "preparing")
"""What stands before the prompt is read; `queue` is all of them together where they are not known apart."""
_SENTENCES: dict[Part, str] = {
    "queue": tr_later("The message waited {time} until the engine began with it."),
    "waiting": tr_later("The message waited {time} for another answer."),
    "model load": tr_later("It waited {time} for the model to be loaded."),
    "preparing": tr_later("Storing the message, ending what was done before and looking up what is kept took {time}."),
    "first decode": tr_later("From there to the first text it took {time}."),
    "transport": tr_later("The way from the engine to the screen took {time}: this program was busy."),
}
"""What is said of a part of which nothing but its length is known."""
_ADVICE: dict[Part, str] = {
    "queue": tr_later("The largest part was waiting: for another answer, or for the model."),
    "waiting": tr_later(
        "The largest part was waiting: one answer is written at a time, and Escape in the other "
        "conversation stops that one."
    ),
    "model load": tr_later("The largest part was loading the model: it stays loaded until another one is needed."),
    "preparing": tr_later(
        "The largest part was spent before the prompt was read: a message that comes right after "
        "an answer waits until that is put aside."
    ),
    "restore": tr_later("The largest part was reading from disk: a faster disk helps, or a fork without old turns."),
    "first decode": tr_later(
        "The largest part was the way to the first text: it is one step of decoding, or "
        "several where the first characters need them."
    ),
    "transport": tr_later("The largest part was the way from the engine to the screen: the computer is very busy."),
}
"""What could be done about a part that took longest; for the others it depends on more."""


@dataclass(frozen=True, slots=True)
class Why:
    """Sentences on where the time of a turn went, and one on what could be done about the largest part of it."""

    sentences: tuple[str, ...]
    advice: str | None


def measured_answer(messages: Sequence[Message], message_id: int | None) -> Message | None:
    """Return the answer of this id, or to the question of this id; without one, the last that was measured."""
    answers = [message for message in messages if message.role == "assistant"]
    if message_id is None:
        return next((one for one in reversed(answers) if one.stats), None)
    return next((one for one in answers if message_id in (one.id, one.parent_id)), None)


def explain(stats: TurnStats, state: State = "over") -> Why:
    """Return the sentences; those whose numbers are not known are left out."""
    before = [_of_part(part, stats) for part in _BEFORE]
    prompt = [_resident(stats), _restored(stats), _slow_restore(stats), _prefilled(stats)]
    first = [_of_part("first decode", stats), _of_part("transport", stats)]
    decoding = [_decoded(stats), _guessed(stats), _sampled(stats), _limit(stats), _others(stats), _reasoning(stats)]
    sentences = [sentence for sentence in (_whole(stats, state), *before, *prompt, *first, *decoding) if sentence]
    if not sentences:
        return Why((tr("Nothing was measured of this answer: it broke off, or came from another program."),), None)
    return Why(tuple(sentences), _advice(stats))


def parts(stats: TurnStats) -> dict[Part, float]:
    """Return the seconds of each part of the turn that is known, in their order.

    Those before `decode` together are `ttft_s`.
    """
    found: dict[Part, float] = {}
    if stats.queue_s is not None:
        if stats.waited_s is None:
            found["queue"] = stats.queue_s
        else:
            # The clocks of two processes: what was measured inside cannot be more than the whole.
            waiting = min(stats.waited_s, stats.queue_s)
            load = min(stats.model_load_s or 0.0, stats.queue_s - waiting)
            found |= {"waiting": waiting, "model load": load, "preparing": stats.queue_s - waiting - load}
        found |= {"restore": stats.restore_s or 0.0, "prefill": stats.prefill_s or 0.0}
        found |= {"first decode": stats.first_decode_s or 0.0, "transport": stats.transport_s or 0.0}
    if (decode := _decode_s(stats)) is not None:
        found["decode"] = decode
    return found


def _decode_s(stats: TurnStats) -> float | None:
    if stats.tpot_s is None or not stats.output_tokens:
        return None
    return stats.tpot_s * (stats.output_tokens - 1)


# --- sentences ---


def _whole(stats: TurnStats, state: State) -> str | None:
    if stats.ttft_s is None:
        return None
    first, decode = words.seconds(stats.ttft_s), _decode_s(stats)
    if state == "waiting":
        return tr("No text has come yet, after {time}.").format(time=first)
    if state == "writing":
        return tr("The first text came after {time}, and the answer is still being written.").format(time=first)
    if decode is None:
        return tr("The first text came after {time}.").format(time=first)
    text = tr("The first text came after {time}, the whole answer took {whole}.")
    return text.format(time=first, whole=words.seconds(stats.ttft_s + decode))


def _of_part(part: Part, stats: TurnStats) -> str | None:
    seconds = parts(stats).get(part, 0.0)
    return tr(_SENTENCES[part]).format(time=words.seconds(seconds)) if seconds >= _SHORT_S else None


def _resident(stats: TurnStats) -> str | None:
    n = stats.resident_tokens
    if not n or not stats.prompt_tokens:
        return None
    text = tr("{n} of the {n_prompt} tokens of the prompt were still in memory.")
    return text.format(n=words.count(n), n_prompt=words.count(stats.prompt_tokens))


def _restored(stats: TurnStats) -> str | None:
    n, seconds = stats.restored_tokens, stats.restore_s
    if not n or seconds is None:
        return None
    estimate_s = stats.prefill_estimate_s
    if stats.restore_decision != "restore" or estimate_s is None:
        return tr("{n} tokens came back from disk in {time}.").format(n=words.count(n), time=words.seconds(seconds))
    if estimate_s <= seconds:
        text = tr("{n} tokens came back from disk in {time}; prefill was expected to take about {estimate}.")
    else:
        text = tr("{n} tokens came back from disk in {time} instead of about {estimate} of prefill.")
    return text.format(n=words.count(n), time=words.seconds(seconds), estimate=words.seconds(estimate_s))


def _slow_restore(stats: TurnStats) -> str | None:
    """Which part of a long restore took longest; they overlap, so only one can be what the others waited for."""
    times = {
        tr("reading the files"): stats.restore_read_s or 0.0,
        tr("verifying them"): stats.restore_verify_s or 0.0,
        tr("loading them into the context"): stats.restore_copy_s or 0.0,
    }
    if not stats.restored_tokens or (stats.restore_s or 0.0) < _LONG_RESTORE_S or not any(times.values()):
        return None
    name = max(times, key=lambda one: times[one])
    return tr("Most of that was {what}, {time}.").format(what=name, time=words.seconds(times[name]))


def _prefilled(stats: TurnStats) -> str | None:
    n, seconds = stats.prefilled_tokens, stats.prefill_s
    if not n or seconds is None:
        return None
    known = {"n": words.count(n), "time": words.seconds(seconds)}
    if stats.miss_reason is None:
        text = tr_n(
            "{n} token was computed in {time}: the new part of the prompt.",
            "{n} tokens were computed in {time}: the new part of the prompt.",
            n,
        )
        return text.format(**known)
    if stats.restore_decision == "prefill" and stats.restore_estimate_s is not None:
        text = tr_n(
            "{n} token was computed in {time}: reading them from disk was expected to take longer, {estimate}.",
            "{n} tokens were computed in {time}: reading them from disk was expected to take longer, {estimate}.",
            n,
        )
        return text.format(**known, estimate=words.seconds(stats.restore_estimate_s))
    text = tr_n(
        "{n} token was computed in {time}, because {reason}.",
        "{n} tokens were computed in {time}, because {reason}.",
        n,
    )
    return text.format(**known, reason=because(stats.miss_reason))


def _decoded(stats: TurnStats) -> str | None:
    n = stats.output_tokens
    if n is None or stats.tpot_s is None:
        return None
    return tr("Decoding: {n} tokens at {time} each.").format(n=words.count(n), time=words.seconds(stats.tpot_s))


def _guessed(stats: TurnStats) -> str | None:
    if not stats.speculated_tokens or stats.accepted_tokens is None:
        return None
    text = tr("{n_right} of {n} guessed tokens were right, and needed no step of their own.")
    return text.format(n_right=words.count(stats.accepted_tokens), n=words.count(stats.speculated_tokens))


def _sampled(stats: TurnStats) -> str | None:
    """Said only where choosing tokens took a share of the time that one can feel."""
    decode_s = _decode_s(stats)
    if not decode_s or stats.sampling_s is None or stats.sampling_s < _MUCH_SAMPLING * decode_s:
        return None
    share = min(1.0, stats.sampling_s / decode_s)
    return tr("Choosing the tokens took {share} of that time.").format(share=f"{share:.0%}")


def _limit(stats: TurnStats) -> str | None:
    share = memory_share(stats.tpot_s, stats.tpot_floor_s)
    if share is None or stats.tpot_floor_s is None:
        return None
    text = tr("This machine's memory allows {time} for each: {share} of its speed was used.")
    return text.format(time=words.seconds(stats.tpot_floor_s), share=f"{share:.0%}")


def _others(stats: TurnStats) -> str | None:
    if stats.cpu_share is None or stats.cpu_share >= _WHOLE_CPU:
        return None
    text = tr("Other programs were busy: decoding got {share} of the processor time it asked for.")
    return text.format(share=f"{stats.cpu_share:.0%}")


def _reasoning(stats: TurnStats) -> str | None:
    share = _reasoning_share(stats)
    if not share or stats.reasoning_tokens is None:
        return None
    text = tr("Reasoning was {share} of the answer, {n} tokens.")
    return text.format(share=f"{share:.0%}", n=words.count(stats.reasoning_tokens))


def _reasoning_share(stats: TurnStats) -> float:
    return min(1.0, (stats.reasoning_tokens or 0) / stats.output_tokens) if stats.output_tokens else 0.0


# --- what could be done ---


def _advice(stats: TurnStats) -> str | None:
    """One sentence on the part that took longest; None where none took long."""
    known = parts(stats)
    largest = max(known, key=lambda part: known[part], default=None)
    if largest is None or known[largest] < _SHORT_S:
        return None
    if largest == "prefill":
        return _prefill_advice(stats)
    return _decode_advice(stats) if largest == "decode" else tr(_ADVICE[largest])


def _prefill_advice(stats: TurnStats) -> str:
    reason = stats.miss_reason or ""
    if reason == misses.OFF:
        return tr("The largest part was reading the prompt: with --kv it would come back from disk.")
    if reason == misses.EVICTED:
        return tr("The largest part was reading the prompt again: a larger --kv-budget keeps more of it on disk.")
    if reason.endswith("edited text"):
        return tr(
            "The largest part was reading the prompt again: what changes belongs at its end, because nothing behind "
            "the first difference can be reused."
        )
    if reason:
        return tr("The largest part was reading the prompt again: the next turn of this conversation can reuse it.")
    return tr("The largest part was reading what is new: a shorter message or attachment is answered sooner.")


def _decode_advice(stats: TurnStats) -> str:
    share = memory_share(stats.tpot_s, stats.tpot_floor_s)
    if stats.cpu_share is not None and stats.cpu_share < _WHOLE_CPU:
        return tr(
            "The largest part was writing, and other programs took processor time from it: close them, or let them "
            "finish first."
        )
    if _reasoning_share(stats) > _MUCH_REASONING:
        return tr("The largest part was reasoning: a model that does not reason, or a simpler question, is faster.")
    if share is None:
        return tr("The largest part was writing: a shorter answer or a smaller model takes less.")
    if share >= _NEAR_FLOOR:
        return tr(
            "The largest part was writing, close to what the memory allows: only a smaller or more strongly quantized "
            "model, a shorter conversation or a shorter answer takes less."
        )
    if stats.cpu_share is None:
        return tr(
            "The largest part was writing, and the memory would allow more: the processor is the limit, or other "
            "programs use it."
        )
    return tr(
        "The largest part was writing, and the memory would allow more: the processor is the limit, so a smaller model "
        "or a shorter answer takes less, and another number of threads (--threads) may."
    )
