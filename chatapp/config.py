"""Settings: flags before environment before defaults. The only reader of the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import platformdirs

FlashAttention = Literal["auto", "on", "off"]
DEBUG = "CHATAPP_DEBUG"


class ConfigError(Exception):
    """A setting has a value that cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run of the program works with.

    `model` None is the starter model, `n_ctx` None the default for this machine, `threads` None the measured
    best. `engine` is `llama`, or `fake` for demonstrations and tests (`fake:50` answers 50 tokens a second).
    """

    data_dir: Path
    cache_dir: Path
    model: Path | None = None
    n_ctx: int | None = None
    gpu_layers: int = 0
    threads: int | None = None
    flash_attention: FlashAttention = "auto"
    engine: str = "llama"


def load_settings(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Combine flags (None: not given) with `CHATAPP_*` variables and defaults. Raises `ConfigError`."""
    environ = os.environ if environ is None else environ

    def pick(flag: str, variable: str) -> Any:
        value = flags.get(flag)
        return value if value is not None else environ.get(f"CHATAPP_{variable}") or None

    engine = _engine(pick("engine", "ENGINE") or "llama")
    gpu_layers = _whole(pick("gpu_layers", "GPU_LAYERS"), "CHATAPP_GPU_LAYERS", least=-1)
    return Settings(
        data_dir=_folder(pick("data_dir", "DATA_DIR")) or platformdirs.user_data_path("chatapp", False),
        cache_dir=_folder(pick("cache_dir", "CACHE_DIR")) or platformdirs.user_cache_path("chatapp", False),
        model=_folder(pick("model", "MODEL")),
        n_ctx=_whole(pick("n_ctx", "CTX"), "CHATAPP_CTX", least=1),
        gpu_layers=0 if gpu_layers is None else gpu_layers,
        threads=_whole(pick("threads", "THREADS"), "CHATAPP_THREADS", least=1),
        flash_attention=_flash_attention(pick("flash_attention", "FLASH_ATTENTION") or "auto"),
        engine=engine,
    )


def is_debug() -> bool:
    """True when errors of the program itself are to be shown with their traceback."""
    return bool(os.environ.get(DEBUG))


def _folder(value: str | Path | None) -> Path | None:
    return Path(value).expanduser().absolute() if value else None


def _whole(value: int | str | None, variable: str, *, least: int) -> int | None:
    if value is None or isinstance(value, int):
        return value
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{variable} must be a whole number of at least {least}, not {value!r}.")
    return number


def _engine(value: str) -> str:
    if value not in ("llama", "fake") and not re.fullmatch(r"fake:[1-9]\d*", value):
        raise ConfigError(f"There is no engine {value!r}: leave CHATAPP_ENGINE unset.")
    return value


def _flash_attention(value: str) -> FlashAttention:
    for choice in get_args(FlashAttention):
        if value == choice:
            return choice  # type: ignore[no-any-return]  # get_args forgets the type
    raise ConfigError(f"CHATAPP_FLASH_ATTENTION must be auto, on or off, not {value!r}.")
