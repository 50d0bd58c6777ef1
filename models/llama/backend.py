"""The native library itself: its build, what it can do, its log."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib.metadata import version

from models.llama.native import lib

BUILD = f"llama-cpp-python {version('llama-cpp-python')}"


def can_offload() -> bool:
    """True if this build of the library can put layers on a GPU."""
    return bool(lib.llama_supports_gpu_offload())


def rotates_kv() -> bool:
    """True unless the library's own switch turns the rotation of quantized KV off; asked as the library asks."""
    libc = ctypes.CDLL(None) if not hasattr(ctypes, "windll") else ctypes.cdll.msvcrt
    libc.getenv.restype = ctypes.c_char_p
    switch = libc.getenv(b"LLAMA_ATTN_ROT_DISABLE")
    return switch is None or libc.atoi(switch) == 0


def quiet_logs(write: Callable[[str], None]) -> object:
    """Send the library's log lines to `write`; returns the callback, which must be kept alive."""
    callback = lib.llama_log_callback(lambda _level, text, _data: write(text.decode("utf-8", "replace")))
    lib.llama_log_set(callback, ctypes.c_void_p(0))
    return callback
