"""Takes the pictures of the window: `python -m tools.pictures [FOLDER [NAME...]]`; `--snapshots`: the tests' own."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tools.scenes import PICTURES, SNAPSHOTS
from tools.studio import take


def main(arguments: list[str]) -> None:
    """Take all pictures, or those that are named."""
    are_snapshots = "--snapshots" in arguments
    given = [argument for argument in arguments if argument != "--snapshots"]
    folder = Path(given.pop(0) if given else "tests/chatapp/snapshots" if are_snapshots else "docs/pictures")
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SNAPSHOTS if are_snapshots else PICTURES:
        if not given or scene.name in given:
            (folder / f"{scene.name}.svg").write_text(asyncio.run(take(scene)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
