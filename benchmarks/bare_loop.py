"""The token loop with nothing around it: what the low-level API itself can do. Used by `benchmarks/decode.py`.

Prints one JSON object: seconds per output token, (last - first) / (tokens - 1), and the token ids.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

from llama_cpp import llama_cpp as lib


def main() -> None:
    """Arguments: model path, prompt (control tokens are recognised), tokens, threads, flash attention (0 or 1)."""
    path, prompt, n_tokens, threads, flash = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    quiet = lib.llama_log_callback(lambda _level, _text, _data: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
    vocab = lib.llama_model_get_vocab(model)
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 8192, 512, 512
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = flash
    params.no_perf = True
    context = lib.llama_init_from_model(model, params)
    data = prompt.encode()
    ids = (lib.llama_token * len(data))()
    n_prompt = lib.llama_tokenize(vocab, data, len(data), ids, len(data), False, True)
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_greedy())
    assert lib.llama_decode(context, lib.llama_batch_get_one(ids, n_prompt)) == 0
    one = (lib.llama_token * 1)()
    out, times = [], []
    while len(out) < n_tokens:
        one[0] = lib.llama_sampler_sample(sampler, context, -1)
        times.append(time.monotonic())
        out.append(one[0])
        if lib.llama_vocab_is_eog(vocab, one[0]) or lib.llama_decode(context, lib.llama_batch_get_one(one, 1)):
            break
    print(json.dumps({"tpot_s": (times[-1] - times[0]) / (len(times) - 1), "token_ids": out}))


if __name__ == "__main__":
    main()
