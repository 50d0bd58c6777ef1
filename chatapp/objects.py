"""The JSON objects of the command line: an interface, so their keys stay. See docs/cli.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from models.engine import Sampling, TurnStats
from models.reasoning import answer_of, reasoning_of
from sessions.conversation import Message, Session, SessionSummary

if TYPE_CHECKING:
    from sessions.search import Hit

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
    "seed",
    "reasoning_tokens",
    "stripped_tokens",
    "queue_s",
    "waited_s",
    "model_load_s",
    "first_decode_s",
    "restore_read_s",
    "restore_verify_s",
    "restore_copy_s",
    "sampling_s",
    "transport_s",
    "speculated_tokens",
    "accepted_tokens",
    "tpot_floor_s",
    "memory_limit_share",
    "cpu_share",
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
    """Return what `run --json` prints; `token_ids` are those of the whole message, reasoning included."""
    return {
        "session": session,
        "text": answer_of(text),
        "reasoning": reasoning_of(text) or None,
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
        "model": {"name": session.model.name, "weights": session.model.weights} if session.model else None,
        "created_at": session.created_at,
        "updated_at": session.updated_at,
        "trashed_at": session.trashed_at,
        "pinned_at": session.pinned_at,
        "archived_at": session.archived_at,
        "tags": list(session.tags),
        "forked_from": session.forked_from,
        "n_ctx": session.n_ctx,
        "reasoning": session.reasoning,
        "sampling": {"preset": session.sampling.preset, "given": dict(session.sampling.given)}
        if session.sampling
        else None,
    }


def summary_object(summary: SessionSummary) -> dict[str, Any]:
    """Return a row of `sessions list --json`."""
    return {
        **session_object(summary.session),
        "n_messages": summary.n_messages,
        "n_tokens": summary.n_tokens,
    }


def message_object(message: Message) -> dict[str, Any]:
    """Return a message of `sessions show --json`; `token_ids` are those of the whole message, reasoning included."""
    is_answer = message.role == "assistant"
    return {
        "id": message.id,
        "parent_id": message.parent_id,
        "role": message.role,
        "text": answer_of(message.text) if is_answer else message.text,
        "reasoning": (reasoning_of(message.text) or None) if is_answer else None,
        "status": message.status,
        "token_ids": list(message.run.body) if message.run else None,
        "stats": stats_object(message.stats) if is_answer else None,
        "created_at": message.created_at,
    }


def hit_object(hit: Hit) -> dict[str, Any]:
    """Return a match of `sessions search --json`."""
    return {
        "session": hit.session.id,
        "title": hit.session.title,
        "message": hit.message_id,
        "role": hit.role,
        "created_at": hit.created_at,
        "snippet": hit.snippet,
        "matches": [list(span) for span in hit.spans],
    }
