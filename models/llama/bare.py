"""The low-level API with nothing around it, as a program of its own: what benchmarks measure the product against.

It is run by its path, so that nothing of the product is imported. Reads one JSON request a line and answers one object
a line:

- `load` (`model`, `gpu_layers`, `n_ctx`, `threads`, `flash_attention`, `kv_type`): `load_s`, weights and context, the
  import left out;
- `prefill` (`ids`, `keep`): evaluates `ids[keep:]` behind the first `keep` of them, which must be resident: `s`;
- `decode` (`n`): samples and evaluates `n` tokens, greedily, whatever ends an answer: `tpot_s`, (last - first) /
  (n - 1), and `ids`;
- `steps` (`n`, `width`): `n` evaluations of `width` tokens behind what is resident, nothing sampled: `step_s`, the
  median.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from llama_cpp import llama_cpp as lib

_N_BATCH = 512


class _Loop:
    """A model and a context with the library's own defaults, but for what the request says."""

    def __init__(self, request: dict[str, Any]) -> None:
        lib.llama_backend_init()
        weights = lib.llama_model_default_params()
        weights.n_gpu_layers = request["gpu_layers"]
        self.model = lib.llama_model_load_from_file(request["model"].encode(), weights)
        assert self.model, "the model cannot be loaded"
        params = lib.llama_context_default_params()
        params.n_ctx = request["n_ctx"]
        params.n_batch = params.n_ubatch = _N_BATCH
        params.n_threads = params.n_threads_batch = request["threads"]
        params.flash_attn_type = int(request["flash_attention"])
        if request["kv_type"] == "q8_0":
            params.type_k = params.type_v = lib.GGML_TYPE_Q8_0
        params.no_perf = True
        self.context = lib.llama_init_from_model(self.model, params)
        assert self.context, "there is no memory for the context"
        self.memory = lib.llama_get_memory(self.context)
        self.sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        lib.llama_sampler_chain_add(self.sampler, lib.llama_sampler_init_greedy())
        self.one = (lib.llama_token * 1)()

    def prefill(self, ids: Sequence[int], keep: int) -> float:
        """Return the seconds that evaluating takes."""
        assert lib.llama_memory_seq_rm(self.memory, 0, keep, -1), "the memory cannot rewind"
        assert lib.llama_memory_seq_pos_max(self.memory, 0) == keep - 1, "what is kept is not resident"
        chunks = [ids[at : at + _N_BATCH] for at in range(keep, len(ids), _N_BATCH)]
        batches = [(lib.llama_token * len(chunk))(*chunk) for chunk in chunks]
        begun = time.perf_counter()
        for batch in batches:
            assert lib.llama_decode(self.context, lib.llama_batch_get_one(batch, len(batch))) == 0
        lib.llama_synchronize(self.context)
        return time.perf_counter() - begun

    def decode(self, n: int) -> dict[str, Any]:
        """Sample and evaluate `n` tokens."""
        ids: list[int] = []
        times: list[float] = []
        while len(ids) < n:
            self.one[0] = lib.llama_sampler_sample(self.sampler, self.context, -1)
            times.append(time.perf_counter())
            ids.append(self.one[0])
            assert lib.llama_decode(self.context, lib.llama_batch_get_one(self.one, 1)) == 0
        return {"tpot_s": (times[-1] - times[0]) / max(1, n - 1), "ids": ids}

    def steps(self, n: int, width: int) -> float:
        """Return the median seconds of an evaluation of `width` tokens; they do not stay resident."""
        tokens = (lib.llama_token * width)(*range(1, width + 1))
        end = lib.llama_memory_seq_pos_max(self.memory, 0) + 1
        times = []
        for _ in range(n):
            begun = time.perf_counter()
            assert lib.llama_decode(self.context, lib.llama_batch_get_one(tokens, width)) == 0
            lib.llama_synchronize(self.context)
            times.append(time.perf_counter() - begun)
            lib.llama_memory_seq_rm(self.memory, 0, end, -1)
        return statistics.median(times)


def main() -> None:
    """Answer requests until the input ends."""
    quiet = lib.llama_log_callback(lambda _level, _text, _data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    loop: _Loop | None = None
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        if loop is None:
            begun = time.perf_counter()
            loop = _Loop(request)
            answer = {"load_s": time.perf_counter() - begun}
        elif request["op"] == "prefill":
            answer = {"s": loop.prefill(request["ids"], request["keep"])}
        elif request["op"] == "decode":
            answer = loop.decode(request["n"])
        else:
            answer = {"step_s": loop.steps(request["n"], request["width"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
