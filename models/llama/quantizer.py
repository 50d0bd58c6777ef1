"""Another type of a model's weights, by the library's own quantizer."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from pathlib import Path

from models.errors import ModelError
from models.llama.native import lib

_STEP = re.compile(r"^\[\s*(\d+)/\s*(\d+)\]")
_UNWRITTEN = re.compile(r"failed to quantize: .*iostream")
"""What C++ says of a file that cannot be written on; of a model that is refused it says other things."""


def quantize(
    source: Path,
    target: Path,
    type_name: str,
    *,
    threads: int,
    told: Callable[[int, int], None],
    log: Callable[[str], None],
) -> None:
    """Write the model with its matrices in a type (`Q8_0`, `Q4_K_M`, ...); of a split model, all parts into one file.

    What cannot be in that type is in a better one. `told` receives (tensors done, tensors in all), read from the
    library's log, whose lines also go to `log`; later ones go to stderr. Raises `ModelError`; then there may be a part
    of the file.
    """
    params = lib.llama_model_quantize_default_params()
    params.ftype = getattr(lib, f"LLAMA_FTYPE_MOSTLY_{type_name}")
    params.nthread = threads
    # From one quantized type to another: what it costs is measured afterwards.
    params.allow_requantize = True

    why = "llama.cpp's quantizer refused it"

    def said(_level: int, text: bytes, _data: object) -> None:
        nonlocal why
        line = text.decode("utf-8", "replace")
        log(line)
        if _UNWRITTEN.search(line):
            why = f"{target.parent} has no room left, or cannot be written"
        if found := _STEP.match(line):
            told(int(found[1]), int(found[2]))

    callback = lib.llama_log_callback(said)
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        if lib.llama_model_quantize(bytes(source), bytes(target), ctypes.byref(params)) != 0:
            raise ModelError(f"{source.name} cannot be converted to {type_name}: {why}.")
    finally:
        # The callback ends with this call; the library's own prints to stderr.
        lib.llama_log_set(lib.llama_log_callback(), ctypes.c_void_p(0))
