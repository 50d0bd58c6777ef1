from pathlib import Path

import pytest

from sessions.errors import BadRequest
from sessions.snippets import Snippets, filled, variables


def test_variables_are_found_once_and_filled() -> None:
    """White space inside the braces does not count; what has no value, or is none, stays."""
    text = "{{a}} {{ b c }} {{a}} {{한글}} {{1}} {x} {{ }}"
    assert variables(text) == ["a", "b c", "한글"]
    assert filled(text, {"a": "{{b c}}", "b c": "2"}) == "{{b c}} 2 {{b c}} {{한글}} {{1}} {x} {{ }}"


def test_snippets_are_files_of_a_folder(tmp_path: Path) -> None:
    """Their names are the files'; nothing outside is reached."""
    folder = tmp_path / "snippets"
    folder.mkdir()
    (folder / "b.md").write_text("\nbee\n\n", encoding="utf-8")
    (folder / "a.md").write_text("ay", encoding="utf-8")
    (folder / "c.txt").write_text("no", encoding="utf-8")
    (tmp_path / "secret.md").write_text("no", encoding="utf-8")
    snippets = Snippets(folder)
    assert snippets.names() == ["a", "b"]
    assert snippets.text("b") == "bee"
    for name in ("c", "../secret", ""):
        with pytest.raises(BadRequest, match="There is no snippet"):
            snippets.text(name)


def test_a_folder_that_is_not_there_has_none(tmp_path: Path) -> None:
    """Nobody needs to make it."""
    assert Snippets(tmp_path / "missing").names() == []
