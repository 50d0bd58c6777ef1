"""An answer put together from a server's events: text, why it ended, and what it cost; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.engine import FinishReason, TurnStats
from models.remote_errors import RemoteError, in_stream
from models.stats import tpot

MAX_CHARS = 16 << 20
"""Longest answer: more than any context holds."""
_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"
_REASONS: dict[str, FinishReason] = {"stop": "end", "eos_token": "end", "length": "length", "max_tokens": "length"}


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Tokens of the prompt: all, those the server had, and those it has read so far (those it had included)."""

    total: int
    cached: int
    done: int


class Reply:
    """Takes in a server's events in their order.

    Reasoning in a field of its own becomes text as `models/reasoning.py` reads it, in front of the answer; reasoning
    that comes after the answer has begun is dropped.
    """

    def __init__(self, name: str, *, n_ctx: int | None, secrets: tuple[str, ...] = ()) -> None:
        self._name = name
        self._n_ctx = n_ctx
        self._secrets = secrets
        self._n_chars = 0
        self._half = ""  # the first half of a character that was cut in two
        self._state = "start"
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.finish: str | None = None
        """The server's own word for why it ended, None while it has not."""
        self.stop_reason: str | None = None
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.progress: PromptProgress | None = None

    def take(self, event: dict[str, Any], now: float) -> str:
        """Return the text that an event adds. Raises `RemoteError` if it says that something went wrong."""
        if event.get("error"):
            raise in_stream(self._name, event, self._secrets)
        for key, kept in (("usage", self.usage), ("timings", self.timings)):
            if isinstance(found := event.get(key), dict):
                kept.update(found)
        self._progress(event.get("prompt_progress"))
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index", 0) != 0:
            return ""
        delta = choice.get("delta", choice.get("message"))
        text = self._text(delta) if isinstance(delta, dict) else ""
        if text:
            self.first_at = now if self.first_at is None else self.first_at
            self.last_at = now
            self._n_chars += len(text)
            if self._n_chars > MAX_CHARS:
                raise RemoteError("cut", f"{self._name} does not end its answer: what was said is kept.")
        if isinstance(choice.get("finish_reason"), str):
            self.finish = choice["finish_reason"]
            self.stop_reason = choice.get("stop_reason") if isinstance(choice.get("stop_reason"), str) else None
        return text

    def reason(self) -> FinishReason:
        """Why the answer ended. Raises `RemoteError` if it did not end, or not as an answer does.

        `[DONE]` or the end of the stream proves nothing: servers that are stopped send these too.
        """
        if self.finish is None:
            raise RemoteError("cut", f"{self._name} ended the stream before the answer: what was said is kept.")
        if self.finish == "content_filter":
            raise RemoteError("server", f"The filter of {self._name} ended the answer: what was said is kept.")
        if self.finish in ("error", "abort", "tool_calls", "function_call"):
            raise RemoteError("server", f"{self._name} ended the answer with {self.finish!r}: what was said is kept.")
        reason = _REASONS.get(self.finish, "end")
        if reason == "end" and self.stop_reason:
            return "stop"
        if reason == "length" and self._n_ctx and (self.n_prompt or 0) + (self.n_output or 0) >= self._n_ctx:
            return "context"
        return reason

    @property
    def n_prompt(self) -> int | None:
        """Tokens of the prompt."""
        told = _count(self.usage.get("prompt_tokens"))
        if told is None and self.n_cached is not None and (read := _count(self.timings.get("prompt_n"))) is not None:
            return self.n_cached + read
        return told

    @property
    def n_output(self) -> int | None:
        """Tokens of the answer, reasoning included."""
        told = _count(self.usage.get("completion_tokens"))
        return told if told is not None else _count(self.timings.get("predicted_n"))

    @property
    def n_cached(self) -> int | None:
        """Tokens of the prompt that the server had in its cache; None where it does not tell, which is not 0."""
        details = self.usage.get("prompt_tokens_details")
        for found in (
            details.get("cached_tokens") if isinstance(details, dict) else None,
            self.usage.get("prompt_cache_hit_tokens"),
            self.timings.get("cache_n"),
        ):
            if (n := _count(found)) is not None:
                return n
        return None

    def stats(
        self, *, seed: int | None = None, prepared_at: float | None = None, restored_s: float | None = None
    ) -> TurnStats:
        """Return what the turn cost as far as the server tells; its own clock counts before ours where it has one.

        What was cached counts as restored if the server took `restored_s` to read it from its disk just before.
        """
        n_prompt, n_cached, n_output = self.n_prompt, self.n_cached, self.n_output
        is_counted, is_restored = n_prompt is not None and n_cached is not None, restored_s is not None
        prompt_ms, predicted_ms = _real(self.timings.get("prompt_ms")), _real(self.timings.get("predicted_ms"))
        own_tpot_s = None
        if predicted_ms is not None and n_output is not None and n_output > 1:
            own_tpot_s = predicted_ms / 1000 / (n_output - 1)
        elif n_output is not None and self.first_at is not None and self.last_at is not None:
            own_tpot_s = tpot(self.first_at, self.last_at, n_output)
        details = self.usage.get("completion_tokens_details")
        reasoning = _count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
        return TurnStats(
            tpot_s=own_tpot_s,
            prompt_tokens=n_prompt,
            resident_tokens=(0 if is_restored else n_cached) if is_counted else None,
            restored_tokens=(n_cached if is_restored else 0) if is_counted else None,
            prefilled_tokens=max(0, n_prompt - n_cached) if n_prompt is not None and n_cached is not None else None,
            output_tokens=n_output,
            restore_s=restored_s or 0.0 if prompt_ms is not None else None,
            prefill_s=None if prompt_ms is None else prompt_ms / 1000,
            first_decode_s=None if prepared_at is None or self.first_at is None else self.first_at - prepared_at,
            seed=seed,
            reasoning_tokens=reasoning or None,
        )

    def _progress(self, found: Any) -> None:
        if isinstance(found, dict):
            total, cached, done = (_count(found.get(key)) for key in ("total", "cache", "processed"))
            if total is not None and cached is not None and done is not None:
                self.progress = PromptProgress(total, min(cached, total), min(done, total))

    def _text(self, delta: dict[str, Any]) -> str:
        reasoning, answer = _parts(delta)
        if self._state == "answer":
            reasoning = ""
        out = ""
        if reasoning:
            out = reasoning if self._state == "reasoning" else _OPEN + reasoning
            self._state = "reasoning"
        if answer:
            out += _CLOSE + answer if self._state == "reasoning" else answer
            self._state = "answer"
        return self._whole(out)

    def _whole(self, text: str) -> str:
        """Join characters that JSON escapes have cut in two; a half without its other half becomes U+FFFD."""
        if not self._half and text.isascii():
            return text
        text, self._half = self._half + text, ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _parts(delta: dict[str, Any]) -> tuple[str, str]:
    """Reasoning and answer of a delta; some servers send the same reasoning under two names."""
    reasoning = next((text for key in ("reasoning_content", "reasoning") if (text := _said(delta.get(key)))), "")
    content = delta.get("content")
    if isinstance(content, list):
        for part in content:
            if isinstance(part, dict):
                reasoning += _said(part.get("thinking"))
        return reasoning, _said(content)
    return reasoning, _said(content) or _said(delta.get("refusal"))


def _said(value: Any) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _real(value: Any) -> float | None:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e15 else None
