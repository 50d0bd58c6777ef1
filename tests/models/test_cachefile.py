from pathlib import Path

from models.cachefile import write_atomically


def test_notes_are_private(tmp_path: Path) -> None:
    """Mode 0600 in a folder of mode 0700, and no temporary file is left."""
    write_atomically(tmp_path / "notes" / "a", b"1")
    assert (tmp_path / "notes").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "notes" / "a").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["a"]


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file in the place of the folder is left alone."""
    (tmp_path / "cache").write_bytes(b"kept")
    write_atomically(tmp_path / "cache" / "a", b"1")
    assert (tmp_path / "cache").read_bytes() == b"kept"
