"""The rows of a batch's output: an interface, so their keys stay. See docs/batch.md."""

from __future__ import annotations

from typing import Any

from chatapp.objects import stats_object
from chatapp.serve.reply import message_of, usage_of
from models.engine import FinishReason, TurnStats
from models.reasoning import answer_of, reasoning_of
from sessions.batch import Answered
from sessions.batch_results import ID_PREFIX

_FINISH: dict[FinishReason | None, str] = {"length": "length", "context": "length"}


def record_of(answered: Answered, *, session: str | None, model: str | None, at: float) -> dict[str, Any]:
    """Return a row of the output in the form of its row of the input.

    `session` is its conversation, if it is kept; `at` is when it was answered (epoch s).
    """
    if answered.row.form == "openai":
        return _openai_record(answered, session=session, model=model, at=at)
    return {
        "id": answered.row.id,
        "line": answered.row.line,
        "text": answer_of(answered.text),
        "reasoning": reasoning_of(answered.text) or None,
        "token_ids": list(answered.token_ids),
        "status": answered.status,
        "error": answered.error,
        "stats": stats_object(answered.stats),
        "session": session,
        "key": answered.row.key,
    }


def _openai_record(answered: Answered, *, session: str | None, model: str | None, at: float) -> dict[str, Any]:
    """Return a line as the batch API writes it; what it knows nothing of stands beside its keys."""
    row = answered.row
    record: dict[str, Any] = {"id": f"{ID_PREFIX}{row.key}", "custom_id": row.id, "response": None, "error": None}
    if answered.error is not None:
        code = "invalid_request" if row.error is not None else "request_failed"
        record["error"] = {"code": code, "message": answered.error, "line": row.line}
        return record
    record["response"] = {
        "status_code": 200,
        "request_id": f"req_{row.key}",
        "body": {
            "id": f"chatcmpl-{row.key}",
            "object": "chat.completion",
            "created": int(at),
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": message_of(answered.text),
                    "logprobs": None,
                    "finish_reason": _FINISH.get(answered.reason, "stop"),
                }
            ],
            "usage": usage_of(answered.stats or TurnStats()),
            "stats": stats_object(answered.stats),
            "session": session,
        },
    }
    return record
