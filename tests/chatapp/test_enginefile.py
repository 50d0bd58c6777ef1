"""Servers come into the settings file and out of it; everything else in it stays, comments too."""

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatapp.enginefile import EngineFileError, added, removed, write

FILE = """# mine
model = "a.gguf"  # this one
[kv]
budget = "1GiB"

[engines.old]  # of the office
base_url = "https://old/v1"
[engines.old.headers]
X = "y"

[presets]
"m" = "precise"
"""


def test_in_and_out() -> None:
    """What was put in is read as it was meant, and taking it out leaves the file as it was."""
    fields = {"base_url": "https://new/v1", "allow_http": True, "model": 'say "x"\\', "ctx": 5}
    text = added(FILE, "new.one", fields)
    assert text.startswith(FILE)
    assert tomllib.loads(text)["engines"]["new.one"] == fields
    assert removed(text, "new.one").rstrip() == FILE.rstrip()
    assert tomllib.loads(added("", "a", {})) == {"engines": {"a": {}}}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_a_value(value: str) -> None:
    """Quotation marks, line ends and control characters too."""
    assert tomllib.loads(added("a = 1", "x", {"model": value}))["engines"]["x"]["model"] == value


def test_a_server_in_the_middle() -> None:
    """It goes with the tables below it; comments of others stay."""
    text = removed(FILE, "old")
    assert "old" not in text
    assert tomllib.loads(text) == {"model": "a.gguf", "kv": {"budget": "1GiB"}, "presets": {"m": "precise"}}
    assert "# mine" in text


@pytest.mark.parametrize("text", ['engines = {a = {base_url = "x"}}\n', '[engines]\na = {base_url = "x"}\n'])
def test_a_server_that_is_written_in_another_way(text: str) -> None:
    """It is left to the user instead of guessed at."""
    with pytest.raises(EngineFileError, match="editor"):
        removed(text, "a")


def test_a_file_that_takes_no_further_table() -> None:
    """It is not written so that no command could read it any more."""
    with pytest.raises(EngineFileError, match="add b with an editor"):
        added('engines = {a = {base_url = "x"}}\n', "b", {"base_url": "y"})


def test_writing(tmp_path: Path) -> None:
    """Folders are made, nobody else can read the file, a link stays one, and what is no file is left alone."""
    path = tmp_path / "new" / "config.toml"
    write(path, "a = 1\r\n")
    assert path.read_bytes() == b"a = 1\r\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    link = tmp_path / "link.toml"
    link.symlink_to(path)
    write(link, "b = 2\n")
    assert link.is_symlink()
    assert path.read_text() == "b = 2\n"
    assert [found.name for found in path.parent.iterdir()] == ["config.toml"]
    with pytest.raises(EngineFileError, match="no file"):
        write(tmp_path, "x")
