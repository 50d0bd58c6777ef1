"""An answer as OpenAI's chat API tells it: whole or in chunks, with what it cost."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from models.engine import Finished, FinishReason, ModelInfo, TurnStats
from models.reasoning import Kind, answer_of, reasoning_of

_ENDS: dict[FinishReason, str] = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}
_FIELDS: dict[Kind, str] = {"answer": "content", "reasoning": "reasoning_content"}


@dataclass(frozen=True, slots=True)
class Reply:
    """What all objects of one answer have in common."""

    model: str
    fingerprint: str
    created: int
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")

    def whole(self, finished: Finished) -> dict[str, Any]:
        """The answer as one object."""
        message, end = message_of(finished.text), end_of(finished)
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": end}
        usage = {"usage": usage_of(finished.stats), "timings": timings_of(finished.stats)}
        return self._object("chat.completion", [choice]) | usage

    def chunk(self, delta: dict[str, str], end: str | None = None) -> dict[str, Any]:
        """One step of the answer; the last one has `end`."""
        return self._object(
            "chat.completion.chunk", [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": end}]
        )

    def last(self, stats: TurnStats) -> dict[str, Any]:
        """The chunk behind the last one, for those who want to know what it cost."""
        usage = {"usage": usage_of(stats), "timings": timings_of(stats)}
        return self._object("chat.completion.chunk", []) | usage

    def _object(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": f"fp_{self.fingerprint[:12]}",
            "choices": list(choices),
        }


def deltas_of(pieces: Sequence[tuple[Kind, str]]) -> list[dict[str, str]]:
    """Return what a client is sent of an answer's pieces: reasoning apart from the answer."""
    return [{_FIELDS[kind]: text} for kind, text in pieces if text]


def message_of(text: str) -> dict[str, Any]:
    """Return an answer as a message."""
    message = {"role": "assistant", "content": answer_of(text), "refusal": None}
    reasoning = reasoning_of(text)
    return message | {"reasoning_content": reasoning} if reasoning else message


def end_of(finished: Finished) -> str:
    """Return why an answer ended, as the API says it; a context that is full is a length too."""
    return _ENDS[finished.reason]


def usage_of(stats: TurnStats) -> dict[str, Any]:
    """Return what an answer took, in tokens; `cached_tokens` were not evaluated, and are left out where not known."""
    n_prompt, n_output = stats.prompt_tokens or 0, stats.output_tokens or 0
    usage: dict[str, Any] = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_output,
        "total_tokens": n_prompt + n_output,
        "completion_tokens_details": {"reasoning_tokens": stats.reasoning_tokens or 0},
    }
    n_cached = _n_cached(stats)
    return usage if n_cached is None else usage | {"prompt_tokens_details": {"cached_tokens": n_cached}}


def timings_of(stats: TurnStats) -> dict[str, Any]:
    """Return the times of an answer, named as llama-server names them; `restored_n` of `cache_n` came from disk.

    Milliseconds, and tokens per second; what is not known is null.
    """
    return {
        "cache_n": _n_cached(stats),
        "restored_n": stats.restored_tokens,
        "restored_ms": _ms(stats.restore_s),
        "prompt_n": stats.prefilled_tokens,
        "prompt_ms": _ms(stats.prefill_s),
        "predicted_n": stats.output_tokens,
        "predicted_per_token_ms": _ms(stats.tpot_s),
        "predicted_per_second": 1 / stats.tpot_s if stats.tpot_s else None,
        "waited_ms": _ms(stats.waited_s),
        "first_token_ms": _ms(stats.ttft_s),
    }


def model_of(name: str, info: ModelInfo, created: int) -> dict[str, Any]:
    """Return the model as the list of models has it; its path is nobody's business. What is not known is null."""
    meta = {"n_ctx": info.n_ctx or None, "n_ctx_train": info.n_ctx_train, "n_params": info.n_params}
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "chatapp",
        "max_model_len": info.n_ctx or None,
        "meta": meta,
    }


def _n_cached(stats: TurnStats) -> int | None:
    if stats.resident_tokens is None or stats.restored_tokens is None:
        return None
    return stats.resident_tokens + stats.restored_tokens


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
