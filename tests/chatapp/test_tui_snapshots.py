"""What the window looks like, compared with pictures that somebody looked at.

`python -m tools.pictures --snapshots` takes them anew; they are reviewed by eye before they are kept.
"""

import difflib
import html
import re
from pathlib import Path

import pytest
import textual

from tools.scenes import SNAPSHOTS
from tools.studio import Scene, take

FOLDER = Path(__file__).parent / "snapshots"
TAKEN_WITH = "8.2.8"
"""The Textual that the kept pictures were taken with; another one may paint its own widgets otherwise."""


def words(svg: str) -> list[str]:
    """The lines of text of a picture, for a difference that can be read."""
    rows: dict[float, str] = {}
    for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        rows[float(y)] = rows.get(float(y), "") + html.unescape(text)
    return [rows[y] for y in sorted(rows)]


@pytest.mark.skipif(textual.__version__ != TAKEN_WITH, reason=f"the pictures were taken with Textual {TAKEN_WITH}")
@pytest.mark.parametrize("scene", SNAPSHOTS, ids=lambda scene: scene.name)
async def test_the_window_looks_as_before(scene: Scene) -> None:
    """Every cell, with its colours; where the text differs, that is shown."""
    kept = (FOLDER / f"{scene.name}.svg").read_text(encoding="utf-8")
    taken = await take(scene)
    if taken != kept:
        lines = "\n".join(difflib.unified_diff(words(kept), words(taken), "kept", "taken", lineterm=""))
        pytest.fail(f"{scene.shows} looks otherwise than in {scene.name}.svg:\n{lines or 'only colours differ'}")


def test_every_kept_picture_has_a_scene() -> None:
    """None is left over from a scene that is gone."""
    assert sorted(path.stem for path in FOLDER.glob("*.svg")) == sorted(scene.name for scene in SNAPSHOTS)
