"""What a server and its profile tell of a model, as engines tell it; pure."""

from __future__ import annotations

from models.engine import ModelInfo, Server
from models.remote_probe import ASSUMED_CTX, Facts
from models.remote_profile import RemoteProfile, identity, place_of


def info_of(profile: RemoteProfile, facts: Facts, load_s: float) -> ModelInfo:
    """Return what a server and its profile tell of a model."""
    notes = []
    n_ctx = facts.n_ctx or profile.n_ctx
    if facts.n_ctx and profile.n_ctx:
        n_ctx = min(facts.n_ctx, profile.n_ctx)
    if not n_ctx:
        n_ctx = ASSUMED_CTX
        notes.append(
            f"{profile.name} does not tell its context: {n_ctx:,} tokens are assumed; ctx in its profile sets it."
        )
    if not profile.verify:
        notes.append(f"The certificate of {profile.name} is not checked (verify = false in its profile).")
    known_as = identity(profile.name, facts.model)
    return ModelInfo(
        name=f"{facts.model} at {profile.name}",
        path=place_of(profile.name, facts.model).as_posix(),
        architecture=facts.kind,
        n_params=facts.n_params,
        weights_bytes=facts.weights_bytes,
        n_ctx=n_ctx,
        n_ctx_train=n_ctx,
        kv_bytes_per_token=0,
        flash_attention=False,
        threads=0,
        gpu_layers=0,
        fingerprint=known_as,
        supports_system=True,
        kv_note=None,
        load_s=load_s,
        notes=tuple(notes),
        sampling=facts.sampling,
        weights=known_as,
        reasoning="<think>",
        n_parallel=profile.n_parallel,
        server=Server(profile.name, profile.host, facts.kind, profile.cache_lifetime_s, profile.prices),
    )
