from pathlib import Path

from sessions.locks import OsLock, is_locked


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second one is refused at once, and gets it when it is given back."""
    one, other = OsLock(tmp_path / "x.lock"), OsLock(tmp_path / "x.lock")
    assert one.take()
    assert not other.take()
    one.release()
    assert other.take()
    assert not one.take()
    other.release()


def test_no_file_is_left(tmp_path: Path) -> None:
    """Giving back removes the file, and doing it again does nothing to the next holder's."""
    one, other = OsLock(tmp_path / "x.lock"), OsLock(tmp_path / "x.lock")
    assert one.take()
    one.release()
    assert list(tmp_path.iterdir()) == []
    assert other.take()
    one.release()
    assert is_locked(other.path)
    other.release()


def test_looking_removes_what_was_left_behind(tmp_path: Path) -> None:
    """A file that nobody holds is no lock; one that somebody holds stays."""
    path = tmp_path / "x.lock"
    assert not is_locked(path)
    path.write_bytes(b"left by a killed process")
    assert not is_locked(path)
    assert not path.exists()
    lock = OsLock(path)
    assert lock.take()
    assert is_locked(path)
    assert path.exists()
    lock.release()
