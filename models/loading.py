"""From settings to a model that can answer: weights, chat template, tuning, context, and the KV kept of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from models.bandwidth import active_bytes, read_speed
from models.engine import Emit, ModelInfo, Progress
from models.errors import ModelError
from models.fingerprint import model_files, weights_hash
from models.fit import available_memory
from models.gguf_header import read_header
from models.glue import Glue
from models.kvopen import OpenedKv, fingerprint_of, open_kv
from models.kvsettings import DEFAULT_KV, KvSettings
from models.llama import Context, ContextSettings, KvType, Model, can_offload
from models.modelfiles import name_of
from models.stats import default_context
from models.template import probe
from models.tuner import tune
from models.tuning import Tuning, cores
from models.weights import LoadingWeights


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What the user chose; None means measured or computed here."""

    model_path: Path
    cache_dir: Path
    data_dir: Path
    n_ctx: int | None = None
    gpu_layers: int = 0
    threads: int | None = None
    flash_attention: Literal["auto", "on", "off"] = "auto"
    kv: KvSettings = DEFAULT_KV
    kv_type: KvType = "f16"
    chat_format: str | None = None
    loras: tuple[tuple[Path, float], ...] = ()
    speculation: Literal["auto", "off"] = "auto"
    n_parallel: int = 1


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What a load has made. `weights` and `fingerprint` are hashes, hex."""

    settings: LocalSettings
    model: Model
    glue: Glue
    context: Context
    kv: OpenedKv
    weights: str
    fingerprint: str
    read_bytes_per_s: float | None = None

    @property
    def bytes_per_token(self) -> int:
        """The formula's prediction for a dense cache; for the other kinds what was measured."""
        if self.model.memory_kind == "dense":
            return self.model.kv_shape_of(self.context.settings.kv_type).bytes_per_token
        return self.context.row_bytes

    def info(self, *, load_s: float) -> ModelInfo:
        """What is told of it; memory that is not dense has to be measured (`Context.warm_up`) before."""
        model, path, used = self.model, self.settings.model_path, self.context.settings
        return ModelInfo(
            name=name_of(path, model.metadata("general.name")),
            path=str(path),
            architecture=model.architecture,
            n_params=model.n_params,
            weights_bytes=model.weights_bytes,
            n_ctx=self.context.n_ctx,
            n_ctx_train=model.n_ctx_train,
            kv_bytes_per_token=self.bytes_per_token,
            flash_attention=used.flash_attention,
            threads=used.threads,
            gpu_layers=self.settings.gpu_layers,
            fingerprint=self.fingerprint,
            supports_system=self.glue.supports_system,
            kv_note=self.kv.reason,
            load_s=load_s,
            memory_kind=model.memory_kind,
            kv_state_bytes=self.kv.state_bytes,
            kv_type=used.kv_type,
            notes=self.glue.notes,
            sampling=model.recommended_sampling,
            weights=self.weights,
            file_bytes=sum(part.stat().st_size for part in model_files(path)),
            reasoning=self.glue.reasoning,
            active_bytes=active_bytes(list(map(read_header, model_files(path)))),
            read_bytes_per_s=self.read_bytes_per_s,
            n_parallel=max(1, used.n_branches),
        )


def load(settings: LocalSettings, emit: Emit, loading: LoadingWeights | None = None) -> LoadedModel:
    """Load everything, telling `emit` the progress. Raises `ModelError`.

    `loading` are the weights of these settings, where that was begun already.
    """
    if settings.gpu_layers and not can_offload():
        settings = replace(settings, gpu_layers=0)  # this build of llama.cpp knows no GPU
    path = settings.model_path
    loading = loading or LoadingWeights(path, gpu_layers=settings.gpu_layers, loras=settings.loras)
    emit(Progress("load", 0, 1000))
    weights = _hash(path, settings.cache_dir, emit)
    model = loading.take(lambda share: emit(Progress("load", 300 + int(share * 600), 1000)))
    glue = probe(
        model.chat_template,
        bos_token=model.token_text("bos"),
        eos_token=model.token_text("eos"),
        cache_dir=settings.cache_dir,
        chat_format=settings.chat_format,
    )
    tuning = _tuning(settings, model, weights, emit)
    used = ContextSettings(
        _n_ctx(settings, model),
        tuning.flash_attention,
        tuning.threads,
        settings.kv_type,
        tuning.threads_batch,
        tuning.n_ubatch,
        # A state that cannot be shared belongs to one sequence.
        settings.n_parallel if settings.n_parallel > 1 and model.memory_kind in ("dense", "sliding window") else 0,
    )
    context = Context(model, used)
    loras = [(_hash(lora, settings.cache_dir, emit), scale) for lora, scale in settings.loras]
    fingerprint = fingerprint_of(model, used, weights=weights, loras=loras, gpu_layers=settings.gpu_layers)
    kv = open_kv(
        model,
        used,
        fingerprint,
        cache_dir=settings.cache_dir,
        data_dir=settings.data_dir,
        kv=settings.kv,
        path=path,
        check=lambda: emit(Progress("check", 0, 1)),
    )
    # Layers on a GPU are read from its own memory.
    speed = None if settings.gpu_layers else read_speed(used.threads, settings.cache_dir)
    return LoadedModel(settings, model, glue, context, kv, weights, fingerprint.digest().hex(), speed)


def _hash(path: Path, cache_dir: Path, emit: Emit) -> str:
    return weights_hash(path, cache_dir, lambda done, n: emit(Progress("load", done * 300 // n, 1000)))


def _n_ctx(settings: LocalSettings, model: Model) -> int:
    n_ctx = settings.n_ctx or default_context(model.n_ctx_train, model.kv_shape.bytes_per_token, available_memory())
    if n_ctx > model.n_ctx_train:
        raise ModelError(
            f"This model was trained for a context of {model.n_ctx_train:,} tokens and writes nonsense "
            f"beyond it; choose --ctx up to that, not {n_ctx:,}."
        )
    return n_ctx


def _tuning(settings: LocalSettings, model: Model, weights: str, emit: Emit) -> Tuning:
    if settings.kv_type != "f16":
        settings = replace(settings, flash_attention="on")  # quantized V needs it
    if settings.flash_attention != "auto" and settings.threads:
        return Tuning(settings.flash_attention == "on", settings.threads, settings.threads)
    tuning = tune(
        model,
        weights,
        settings.cache_dir,
        gpu_layers=settings.gpu_layers,
        kv_type=settings.kv_type,
        progress=lambda done, n: emit(Progress("tune", done, n)),
    )
    if settings.flash_attention != "auto":
        tuning = replace(tuning, flash_attention=settings.flash_attention == "on")
    if settings.threads:
        n = min(settings.threads, 4 * cores())
        tuning = replace(tuning, threads=n, threads_batch=n)
    return tuning
