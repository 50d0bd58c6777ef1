"""Decides whether and where a loaded model's KV is kept: its fingerprint, its self-test, its store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from models import misses, selftest
from models.errors import ModelError
from models.fingerprint import LLAMA_BUILD, Fingerprint
from models.kvformat import FORMAT
from models.kvsettings import KvSettings
from models.kvstore import KvStore, KvUnusable, load_mac_key
from models.llama import ContextSettings, Model, rotates_kv
from models.modelfiles import name_of

_SELF_TEST = "self_test"
_N_CTX_STEP = 256


@dataclass(frozen=True, slots=True)
class OpenedKv:
    """A store and None, or None and the reason why KV is not kept; `state_bytes` is what one restore point costs."""

    store: KvStore | None
    reason: str | None
    state_bytes: int = 0


def fingerprint_of(
    model: Model,
    settings: ContextSettings,
    *,
    weights: str,
    loras: Sequence[tuple[str, float]],
    gpu_layers: int,
) -> Fingerprint:
    """What this model's KV depends on under these settings. `weights` is the content hash of the model file.

    `loras` are content hashes of adapters and their scales; in another order they add up to the same weights.
    """
    shape = model.kv_shape_of(settings.kv_type)
    hyper = model.architecture

    def value(key: str) -> str:
        return model.metadata(f"{hyper}.{key}") or ""

    # Some models have another set of RoPE factors for a context longer than this, which the library rounds up.
    original = value("rope.scaling.original_context_length")
    n_ctx = -(-settings.n_ctx // _N_CTX_STEP) * _N_CTX_STEP
    factors = "long" if original.isdigit() and n_ctx > int(original) else ""
    yarn = [value(f"rope.scaling.{name}") for name in ("original_context_length", "yarn_log_multiplier", "attn_factor")]
    tokenizer = (model.metadata("tokenizer.ggml.model"), model.metadata("tokenizer.ggml.pre"), str(model.n_vocab))
    return Fingerprint(
        weights=weights,
        loras=" ".join(sorted(f"{content}*{scale!r}" for content, scale in loras)),
        kv_format=FORMAT,
        llama_build=LLAMA_BUILD,
        architecture=hyper,
        layers=shape.n_layers,
        kv_heads=shape.n_kv_heads,
        head_width=shape.head_dim,
        type_k=shape.type_k,
        type_v=shape.type_v,
        flash_attention=settings.flash_attention,
        rope_base=float(value("rope.freq_base") or 0),
        rope_scale=float(value("rope.scaling.factor") or 0),
        rope_scaling=" ".join(filter(None, (value("rope.scaling.type"), factors))),
        yarn=" ".join(filter(None, yarn)),
        sliding_window=model.sliding_window,
        full_window_cache=True,
        rotation=rotates_kv(),
        tokenizer=" ".join(filter(None, tokenizer)),
        gpu_layers=gpu_layers,
    )


def open_kv(
    model: Model,
    settings: ContextSettings,
    fingerprint: Fingerprint,
    *,
    cache_dir: Path,
    data_dir: Path,
    kv: KvSettings,
    path: Path,
    check: Callable[[], None],
) -> OpenedKv:
    """Open the store if KV may be used. `check` is called before the self-test, which runs once for a fingerprint."""
    if not kv.enabled:
        return OpenedKv(None, misses.OFF)
    try:
        store = KvStore(
            cache_dir / "kv",
            load_mac_key(data_dir),
            fingerprint,
            clock=time.time,
            kind=model.memory_kind,
            settings=kv,
            model={"name": name_of(path, model.metadata("general.name")), "path": str(path)},
        )
    except KvUnusable as exc:
        return OpenedKv(None, str(exc))
    except OSError as exc:
        return OpenedKv(None, f"KV cannot be kept on disk: {exc.strerror or exc}")
    known = store.note(_SELF_TEST)
    if not isinstance(known, dict) or "passed" not in known:
        check()
        try:
            known = asdict(selftest.run(model, settings))
        except ModelError as exc:
            # No memory for a second small context now; it is tried again at the next start.
            store.close()
            return OpenedKv(None, misses.self_test_failed(str(exc)))
        store.remember(_SELF_TEST, known)
    if known["passed"] is not True:
        store.close()
        return OpenedKv(None, misses.self_test_failed(str(known.get("detail", ""))))
    state_bytes = known.get("state_bytes")
    return OpenedKv(store, None, state_bytes if isinstance(state_bytes, int) else 0)
