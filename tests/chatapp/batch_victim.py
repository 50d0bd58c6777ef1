"""`chatapp batch` that says after each part of a record that it was written, and waits for a byte on stdin to go on."""

import os
import sys
from pathlib import Path
from typing import BinaryIO
from unittest.mock import patch

from chatapp import bulk
from chatapp.__main__ import main
from sessions.batch_results import Results


class Halves:
    """A file that takes half of what it is given, as a disk may, says so and waits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write the first half."""
        n_bytes = self._file.write(data[: (len(data) + 1) // 2])
        os.write(sys.stdout.fileno(), b".")
        os.read(sys.stdin.fileno(), 1)
        return n_bytes

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


class Slow(Results):
    """An output whose records are written in several parts."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = Halves(self._file)  # type: ignore[assignment]


if __name__ == "__main__":
    with patch.object(bulk, "Results", Slow):
        main()
