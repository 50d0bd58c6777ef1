"""A prompt as the body of a chat completion: the same bytes for the same beginning; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from models.engine import Entry, Prompt, Sampling
from models.errors import GrammarError
from models.reasoning import answer_of, reasoning_of
from models.remote_errors import RemoteError
from models.remote_probe import HOSTED, Facts, Kind

FIELD_OF = {"repeat_penalty": "repetition_penalty"}
"""What vLLM and SGLang call a step of sampling that llama.cpp has another name for."""
OPTIONAL = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repetition_penalty", "seed", "max_tokens")
OPTIONAL_MORE = (
    "max_completion_tokens",
    "stop",
    "stream_options",
    "chat_template_kwargs",
    "return_progress",
    "id_slot",
)
LEFT_OUT = (*OPTIONAL, *OPTIONAL_MORE)
"""Fields that a server may refuse and that a request can be made without."""


def messages(prompt: Prompt, kind: Kind) -> list[dict[str, str]]:
    """Return a prompt's messages, oldest first, the system prompt before all.

    The same entries give the same messages whatever follows, so that a server finds the prefix in its cache. Reasoning
    of earlier answers goes in a field of its own to servers whose templates know what to do with it; others refuse or
    bill it, and get the answers alone. An answer that is to go on is sent as it is.
    """
    last = len(prompt.entries) - 1
    return [
        _message(entry, kind, is_begun=position == last and entry.role == "assistant")
        for position, entry in enumerate(prompt.entries)
    ]


def _message(entry: Entry, kind: Kind, *, is_begun: bool) -> dict[str, str]:
    message = {"role": entry.role, "content": entry.text}
    if entry.role == "assistant" and not is_begun and (reasoning := reasoning_of(entry.text)):
        message["content"] = answer_of(entry.text)
        if kind != "generic":
            message["reasoning_content"] = reasoning
    return message


def body_of(
    prompt: Prompt, sampling: Sampling, facts: Facts, *, without: Collection[str] = (), name: str
) -> dict[str, Any]:
    """Return the body of a streamed request. `without` are fields that this server refuses.

    Raises `GrammarError` where the server takes no grammar, `RemoteError` where it cannot go on with an answer.
    """
    begun = bool(prompt.entries) and prompt.entries[-1].role == "assistant"
    body: dict[str, Any] = {"model": facts.model, "messages": messages(prompt, facts.kind), "stream": True}
    body["stream_options"] = {"include_usage": True}
    body |= _sampling(sampling, facts.kind)
    if sampling.grammar is not None:
        if facts.kind != "llama-server":
            raise GrammarError(f"{name} takes no grammar or JSON schema: leave it out, or let a local model answer.")
        body["grammar"] = sampling.grammar
    match facts.kind:
        case "llama-server":
            body["return_progress"] = True
            body["cache_prompt"] = True
            if facts.slot is not None:
                body["id_slot"] = facts.slot
        case "vllm" | "sglang" if begun:
            body |= {"add_generation_prompt": False, "continue_final_message": True}
        case "generic" if begun:
            raise RemoteError("refused", f"{name} cannot go on with an answer: ask for it once more instead.")
    if not prompt.may_reason and facts.kind != "generic" and not begun:
        body["chat_template_kwargs"] = {"enable_thinking": False}
    if "max_tokens" in without and "max_completion_tokens" not in without and "max_tokens" in body:
        body["max_completion_tokens"] = body["max_tokens"]
    for field in without:
        body.pop(field, None)
    return body


def _sampling(sampling: Sampling, kind: Kind) -> dict[str, Any]:
    """Return what a server has to be told. Where it would not know a step, one that is off is not mentioned."""
    is_told_all = kind != "generic"
    fields: dict[str, Any] = {}
    for step in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty"):
        value = getattr(sampling, step)
        if is_told_all or value != getattr(HOSTED, step):
            fields[FIELD_OF.get(step, step) if kind in ("vllm", "sglang") else step] = value
    if fields.get("top_k") == 0 and kind in ("vllm", "sglang"):
        fields["top_k"] = -1
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.max_tokens is not None:
        fields["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        fields["stop"] = list(sampling.stop)
    return fields


def refusal(name: str, fields: Collection[str], body: Mapping[str, Any]) -> str | None:
    """Return one sentence that names what the user chose and the server refuses; None if that is nothing."""
    plain = [field for field in (*OPTIONAL, "stop") if field in fields]
    if "max_tokens" in plain and "max_completion_tokens" in body:
        plain.remove("max_tokens")
    if not plain:
        return None
    return f"{name} refuses {', '.join(plain)}: the answer was made without"
