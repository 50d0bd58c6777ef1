"""What a server is, asked of itself once at connecting: nothing is assumed from its address."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from models.engine import Sampling
from models.remote_client import RemoteClient
from models.remote_errors import RemoteError, from_status
from models.remote_metrics import Metrics, fetch_metrics
from models.remote_profile import RemoteProfile

Kind = Literal["llama-server", "vllm", "sglang", "generic"]
ASSUMED_CTX = 131_072
"""Tokens of context where neither server nor profile tells."""
HOSTED = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
"""What is usual where a server does not tell: every step off, nothing is sent, and the server's own values hold."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server told. `n_ctx` None: it did not; `slot` is the one whose state can be saved, None if none can."""

    kind: Kind
    model: str
    n_ctx: int | None = None
    sampling: Sampling = HOSTED
    version: str = ""
    slot: int | None = None
    resumes: bool = False
    """It goes on when a connection breaks, and repeats what was missed."""
    tokenize: Literal["content", "prompt"] | None = None
    """The field its `/tokenize` takes a text in; None: it has none."""
    metrics: Metrics | None = None
    """What its counters said when it was connected to; None: it shows none that are known."""
    n_params: int = 0
    weights_bytes: int = 0


async def probe(client: RemoteClient, profile: RemoteProfile) -> Facts:
    """Ask a server what it is and has. Raises `RemoteError` if it cannot be reached, or has not the model."""
    status, headers, listed = await client.fetch(f"{profile.api}/models")
    if status in (401, 403, 429, 503) or 300 <= status < 400:
        raise from_status(profile.name, status, headers, listed, secrets=client.secrets)
    rows = [row for row in _list(listed, "data") if isinstance(row.get("id"), str)] if status == 200 else []
    models = tuple(str(row["id"]) for row in rows)
    model = _model(profile, models, n_listed=len(rows))
    row = next((row for row in rows if row["id"] == model), {})
    props = await _object(client, f"{profile.root}/props")
    if isinstance(props.get("default_generation_settings"), dict):
        return await _llama_server(client, profile, model, row, props)
    kind = await _kind(client, profile, row)
    n_ctx = next(
        (
            n
            for key in ("max_model_len", "context_length", "context_window", "max_context_length")
            if (n := _count(row.get(key)))
        ),
        None,
    )
    return Facts(
        kind=kind[0],
        version=kind[1],
        model=model,
        n_ctx=n_ctx,
        tokenize=await _tokenize(client, profile, model) if kind[0] != "generic" else None,
        metrics=await fetch_metrics(client, profile) if kind[0] != "generic" else None,
    )


async def _llama_server(
    client: RemoteClient,
    profile: RemoteProfile,
    model: str,
    row: dict[str, Any],
    props: dict[str, Any],
) -> Facts:
    settings = props["default_generation_settings"]
    meta = row.get("meta") if isinstance(row.get("meta"), dict) else {}
    assert isinstance(meta, dict)
    return Facts(
        kind="llama-server",
        version=str(props.get("build_info", "")),
        model=model,
        n_ctx=_count(settings.get("n_ctx")) or _count(meta.get("n_ctx")) or _count(meta.get("n_ctx_train")),
        sampling=_sampling(settings.get("params")),
        slot=await _slot(client, profile, _count(props.get("total_slots")) or 0),
        resumes=await _resumes(client, profile),
        tokenize=await _tokenize(client, profile, model),
        n_params=_count(meta.get("n_params")) or 0,
        weights_bytes=_count(meta.get("size")) or 0,
    )


def _model(profile: RemoteProfile, models: tuple[str, ...], *, n_listed: int) -> str:
    """Servers such as llama-server answer for any name, so the name is checked here."""
    if profile.model:
        if n_listed and profile.model not in models:
            shown = ", ".join(models[:5]) + (", …" if len(models) > 5 else "")
            raise RemoteError("no_model", f"{profile.name} has no model {profile.model!r}; it has {shown}.")
        return profile.model
    if len(models) == 1:
        return models[0]
    shown = ": " + ", ".join(models[:5]) + (", …" if len(models) > 5 else "") if models else ""
    raise RemoteError(
        "no_model",
        f"{profile.name} has {'several models' if models else 'no list of models'}: name one with model in its "
        f"profile{shown}.",
    )


async def _kind(client: RemoteClient, profile: RemoteProfile, row: dict[str, Any]) -> tuple[Kind, str]:
    version = await _object(client, f"{profile.root}/version")
    owner = str(row.get("owned_by", ""))
    if owner == "vllm" or (isinstance(version.get("version"), str) and "max_model_len" in row and owner != "sglang"):
        return "vllm", str(version.get("version", ""))
    return ("sglang", "") if owner == "sglang" else ("generic", "")


async def _slot(client: RemoteClient, profile: RemoteProfile, n_slots: int) -> int | None:
    """The slot that can be saved and restored. Asked with a file name that is always refused, so nothing is written."""
    may_keep = profile.is_local if profile.keeps_slots is None else profile.keeps_slots
    slot = (profile.slot if profile.slot is not None else 0 if n_slots == 1 else None) if may_keep else None
    if slot is None or slot >= n_slots:  # a number out of range would mean another slot
        return None
    url = f"{profile.root}/slots/{slot}?action=save"
    status, answer = await _try(client, url, {"filename": "../not-a-file"})
    return slot if status == 400 and "filename" in str(answer).lower() else None


async def _resumes(client: RemoteClient, profile: RemoteProfile) -> bool:
    """Asked for where connections break; elsewhere an answer would go on without its reader."""
    if not (not profile.is_local if profile.resumes is None else profile.resumes):
        return False
    status, _ = await _try(client, f"{profile.root}/v1/streams/lookup", {"conversation_ids": []})
    return status == 200


async def _tokenize(client: RemoteClient, profile: RemoteProfile, model: str) -> Literal["content", "prompt"] | None:
    fields: tuple[Literal["content", "prompt"], ...] = ("content", "prompt")
    for name in fields:
        status, answer = await _try(client, f"{profile.root}/tokenize", {"model": model, name: "a b"})
        if status == 200 and n_tokens(answer):
            return name
    return None


def n_tokens(answer: Any) -> int | None:
    """Return how many tokens an answer of `/tokenize` counts."""
    if not isinstance(answer, dict):
        return None
    tokens = answer.get("tokens")
    return _count(answer.get("count")) or (len(tokens) if isinstance(tokens, list) else None)


async def _object(client: RemoteClient, url: str) -> dict[str, Any]:
    status, answer = await _try(client, url)
    return answer if status == 200 and isinstance(answer, dict) else {}


async def _try(client: RemoteClient, url: str, body: Any = None) -> tuple[int, Any]:
    """Ask for something that a server need not have; 0 where it breaks off."""
    try:
        status, _, answer = await client.fetch(url, body)
    except RemoteError:
        return 0, None
    return status, answer


def _sampling(params: Any) -> Sampling:
    """What a llama-server samples with unless it is told otherwise."""
    usual = Sampling()
    if not isinstance(params, dict):
        return usual
    top_k = params.get("top_k")
    return Sampling(
        temperature=_real(params.get("temperature"), usual.temperature),
        top_k=top_k if type(top_k) is int and top_k >= 0 else usual.top_k,
        top_p=_real(params.get("top_p"), usual.top_p),
        min_p=_real(params.get("min_p"), usual.min_p),
        repeat_penalty=_real(params.get("repeat_penalty"), usual.repeat_penalty),
    )


def _real(value: Any, usual: float) -> float:
    """A number in the digits it was meant in: servers send 32-bit values such as 0.949999988."""
    ok = type(value) in (int, float) and math.isfinite(value) and value >= 0
    return float(f"{value:.6g}") if ok else usual


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 53 else None


def _list(value: Any, key: str) -> list[dict[str, Any]]:
    items = value.get(key) if isinstance(value, dict) else None
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
