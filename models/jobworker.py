"""The process behind `models.jobs`: one request on stdin, progress and one result on stdout, one JSON object a line.

As in the engine process, native code may print and abort: the pipes are moved away before llama_cpp is imported.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from models.errors import EngineError, ModelError
from models.jobs import JobPhase


class Job:
    """One piece of work: what it is asked, and where its progress goes."""

    def __init__(self, request: dict[str, Any], events: BinaryIO) -> None:
        self._request = request
        self._events = events
        self._last: tuple[JobPhase, int] | None = None

    def run(self) -> dict[str, Any]:
        """Do what is asked. Raises `EngineError`."""
        return self._tune() if self._request["op"] == "tune" else self._convert()

    def outcome(self) -> dict[str, Any]:
        """The last line: the result, or in one sentence why there is none."""
        try:
            return {"result": self.run()}
        except EngineError as exc:
            return {"failed": str(exc), "kind": exc.kind}
        except OSError as exc:
            return {"failed": f"{exc.filename or 'A file'} cannot be used: {exc.strerror or exc}.", "kind": "model"}
        except MemoryError:
            text = "There is not enough memory for this: close other programs, or take a smaller model."
            return {"failed": text, "kind": "model"}

    def tell(self, phase: JobPhase, done: int, total: int) -> None:
        """Report progress, a hundred times a phase at most."""
        share = 100 * done // max(total, 1)
        if (phase, share) != self._last:
            self._last = (phase, share)
            self.write({"progress": [phase, done, total]})

    def write(self, message: dict[str, Any]) -> None:
        """Send one line."""
        self._events.write(json.dumps(message).encode() + b"\n")
        self._events.flush()

    # --- tune ---

    def _tune(self) -> dict[str, Any]:
        from models.fingerprint import LLAMA_BUILD, weights_hash
        from models.kvstatus import stored_by_flash_attention
        from models.llama import can_offload
        from models.tuner import ASKED, THOROUGH, Effort, measure
        from models.tuning import remembered

        ask = self._request
        path, cache_dir, kv_type = Path(ask["model"]), Path(ask["cache_dir"]), ask["kv_type"]
        effort = THOROUGH if ask["thorough"] or (ask["seconds"] or 0) > ASKED.budget_s else ASKED
        if ask["seconds"]:
            effort = Effort(ask["seconds"], effort.depth, effort.n_prompt, effort.n_windows, is_wide=True)
        weights = weights_hash(path, cache_dir, lambda done, n: self.tell("load", done, n))
        before = remembered(cache_dir, weights, kv_type)
        stored = stored_by_flash_attention(cache_dir / "kv", weights, kv_type, LLAMA_BUILD)
        with closing(self._model(path)) as model:
            tuned = measure(model, effort, kv_type, stored=stored, progress=lambda done, n: self.tell("tune", done, n))
        if tuned is None:
            raise ModelError("No settings could be measured: the machine is too busy, or has no memory left.")
        on_gpu = None
        if can_offload():
            # Where it does not fit there is nothing to recommend.
            with contextlib.suppress(EngineError), closing(self._model(path, gpu_layers=-1)) as model:
                on_gpu = measure(model, effort, kv_type, stored={}, progress=lambda done, n: self.tell("tune", done, n))
        return {
            "weights": weights,
            "tuned": asdict(tuned),
            "before": asdict(before) if before else None,
            "stored": {("on" if flash else "off"): asdict(kv) for flash, kv in stored.items()},
            "on_gpu": asdict(on_gpu.rates) if on_gpu else None,
            "types": self._types(cache_dir, tuned.choice.threads_batch),
        }

    def _types(self, cache_dir: Path, threads: int) -> dict[str, Any] | None:
        """Rates of weight types: the remembered ones unless a thorough look is wanted."""
        from models.typeprobe import measure_types
        from models.typerates import remember_types, remembered_types

        types = None if self._request["thorough"] else remembered_types(cache_dir)
        if types is None:
            folder = cache_dir / "weighttypes"
            types = measure_types(folder, threads=threads, progress=lambda done, n: self.tell("types", done, n))
            if types and not types.is_doubtful:
                remember_types(cache_dir, types)
        return asdict(types) if types else None

    def _model(self, path: Path, gpu_layers: int = 0) -> Any:
        from models.llama import Model

        return Model(path, gpu_layers=gpu_layers, progress=lambda share: self.tell("load", int(share * 1000), 1000))

    # --- convert ---

    def _convert(self) -> dict[str, Any]:
        from models.busy import ForeignLoad
        from models.llama.quantizer import quantize
        from models.loss import compare
        from models.measuring import speed_ratios
        from models.tuning import cores

        ask = self._request
        source, target, type_name = Path(ask["model"]), Path(ask["target"]), ask["type"]
        quantize(
            source,
            target,
            type_name,
            threads=cores(),
            told=lambda done, n: self.tell("convert", done, n),
            log=_log,
        )
        with closing(self._model(source)) as before, closing(self._model(target)) as after:
            loss = compare(before, after, threads=ask["threads"], progress=lambda done, n: self.tell("loss", done, n))
            load = ForeignLoad()
            ratios = speed_ratios(before, after, threads=ask["threads"])
            foreign = load.cores_used()
        with target.open("rb") as file:
            os.fsync(file.fileno())
        speed = (asdict(ratios) if ratios else {"prefill_ratio": None, "decode_ratio": None}) | {"foreign": foreign}
        return {"size_bytes": target.stat().st_size, "loss": asdict(loss), "speed": speed}


def main() -> None:
    """Move the pipes away from descriptors 0 to 2, do the work, end."""
    requests = os.fdopen(os.dup(0), "rb")
    events = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    # Ctrl+C reaches the whole group; the front end ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    request = json.loads(requests.readline())
    threading.Thread(target=_end_with_parent, args=(requests, request.get("target")), daemon=True).start()
    job = Job(request, events)
    job.write(job.outcome())
    # Native destructors are slow and may abort; everything worth keeping is on disk.
    sys.stderr.flush()
    os._exit(0)


def _log(text: str) -> None:
    sys.stderr.write(text)


def _end_with_parent(requests: BinaryIO, target: str | None) -> None:
    """Whoever wanted the work is gone: nobody will look at what was written."""
    requests.read()
    if target:
        Path(target).unlink(missing_ok=True)
    os._exit(1)


if __name__ == "__main__":
    main()
