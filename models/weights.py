"""Native weights, loaded in a thread while the rest of the engine is imported and the file's hash is looked up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from models.catalog import check_gguf
from models.errors import ModelError
from models.llama import Model, can_offload

_REPORT_S = 0.05


class LoadingWeights:
    """A model on its way into memory; `take` hands it over, once."""

    def __init__(self, path: Path, *, gpu_layers: int, loras: Sequence[tuple[Path, float]] = ()) -> None:
        """Begin; raises `ModelError` for what is no model file. A build that knows no GPU puts no layers there."""
        check_gguf(path)
        self._path = path
        self._gpu_layers = gpu_layers if gpu_layers and can_offload() else 0
        self._loras = loras
        self._share = 0.0
        self._came_to: Model | ModelError | None = None
        self._thread = threading.Thread(target=self._load, name="weights", daemon=True)
        self._thread.start()

    def take(self, progress: Callable[[float], None]) -> Model:
        """Wait for the model, telling `progress` how far it is (0 to 1). Raises `ModelError`."""
        while self._thread.is_alive():
            self._thread.join(_REPORT_S)
            progress(self._share)
        if isinstance(self._came_to, Model):
            return self._came_to
        raise self._came_to or ModelError(f"{self._path.name} cannot be loaded: there is not enough memory for it.")

    def _load(self) -> None:
        try:
            self._came_to = Model(self._path, gpu_layers=self._gpu_layers, loras=self._loras, progress=self._reached)
        except ModelError as failure:
            self._came_to = failure

    def _reached(self, share: float) -> None:
        self._share = share
