"""The JSON objects of the command line: an interface, so their keys stay. See docs/cli.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.engine import Sampling, TurnStats
from sessions.conversation import Message, Session, SessionSummary

STATS_KEYS = (
    "ttft_s",
    "tpot_s",
    "prompt_tokens",
    "resident_tokens",
    "restored_tokens",
    "prefilled_tokens",
    "output_tokens",
    "restore_s",
    "prefill_s",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_bytes_written",
    "miss_reason",
    "restore_decision",
    "restore_estimate_s",
    "prefill_estimate_s",
)


SAMPLING_KEYS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "seed",
    "max_tokens",
    "stop",
    "grammar",
)


def stats_object(stats: TurnStats | None) -> dict[str, Any]:
    """Return the stats with every key, null where unknown."""
    stats = stats or TurnStats()
    return {key: getattr(stats, key) for key in STATS_KEYS}


def sampling_object(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """Return what the answer was sampled with; `seed` is the one that was drawn if none was given."""
    values = {key: getattr(sampling, key) for key in SAMPLING_KEYS}
    return {**values, "seed": sampling.seed if seed is None else seed, "stop": list(sampling.stop)}


def answer_object(
    *,
    session: str | None,
    text: str,
    token_ids: Sequence[int],
    status: str,
    model: str | None,
    sampling: Sampling,
    stats: TurnStats | None,
) -> dict[str, Any]:
    """Return what `run --json` prints."""
    return {
        "session": session,
        "text": text,
        "token_ids": list(token_ids),
        "status": status,
        "model": model,
        "sampling": sampling_object(sampling, stats.seed if stats else None),
        "stats": stats_object(stats),
    }


def session_object(session: Session) -> dict[str, Any]:
    """Return a conversation without its messages."""
    return {
        "id": session.id,
        "title": session.title,
        "task": session.task,
        "state": session.state,
        "system": session.system,
        "model": session.model,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "trashed_at": session.trashed_at,
    }


def summary_object(summary: SessionSummary) -> dict[str, Any]:
    """Return a row of `sessions list --json`."""
    return {
        **session_object(summary.session),
        "n_messages": summary.n_messages,
        "n_tokens": summary.n_tokens,
    }


def message_object(message: Message) -> dict[str, Any]:
    """Return a message of `sessions show --json`."""
    return {
        "id": message.id,
        "role": message.role,
        "text": message.text,
        "status": message.status,
        "token_ids": list(message.run.body) if message.run else None,
        "stats": stats_object(message.stats) if message.role == "assistant" else None,
        "created_at": message.created_at,
    }
