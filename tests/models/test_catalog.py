import sys
from pathlib import Path

import pytest

from models.catalog import check_gguf, starter_model
from models.errors import ModelError


def test_a_gguf_passes(tmp_path: Path) -> None:
    """Four bytes decide."""
    (tmp_path / "a.gguf").write_bytes(b"GGUFrest")
    check_gguf(tmp_path / "a.gguf")


def test_no_file_is_one_sentence(tmp_path: Path) -> None:
    """The sentence names the path and the way out."""
    with pytest.raises(ModelError, match=r"^There is no model file at .*none\.gguf; pass another with --model"):
        check_gguf(tmp_path / "none.gguf")


def test_a_folder_is_one_sentence(tmp_path: Path) -> None:
    """A folder is not a file."""
    with pytest.raises(ModelError, match="is a folder"):
        check_gguf(tmp_path)


@pytest.mark.parametrize("data", [b"", b"GGU", b"GGML....", b"\x7fELF....", b"<html>"])
def test_another_kind_of_file_is_one_sentence(tmp_path: Path, data: bytes) -> None:
    """Other magic bytes, or fewer than four, are not a GGUF."""
    (tmp_path / "a.gguf").write_bytes(data)
    with pytest.raises(ModelError, match="is not a GGUF model file"):
        check_gguf(tmp_path / "a.gguf")


def test_an_unreadable_file_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's reason is passed on."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        check_gguf(tmp_path / "a.gguf")


def test_a_path_through_a_file_is_one_sentence(tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read"):
        check_gguf(tmp_path / "file" / "a.gguf")


def test_the_starter_is_found_without_running_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's GGUF is found as data; its own code is not imported."""
    package = tmp_path / "a_starter_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("models.catalog._STARTER_PACKAGE", "a_starter_package")
    assert starter_model() == package / "model.gguf"
    assert "a_starter_package" not in sys.modules


def test_without_the_package_there_is_no_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    """None, not an error."""
    monkeypatch.setattr("models.catalog._STARTER_PACKAGE", "no_such_package_at_all")
    assert starter_model() is None
