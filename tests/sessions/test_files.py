import os
from pathlib import Path

import pytest

from sessions.files import make_private_file, make_private_folder, sync_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")


def test_missing_parents_are_private_too(tmp_path: Path) -> None:
    """Every folder that is made has mode 0700; one that was there keeps its mode."""
    tmp_path.chmod(0o755)
    make_private_folder(tmp_path / "a" / "b")
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    assert modes == [0o755, 0o700, 0o700]
    sync_folder(tmp_path)


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    """A file where the folder should be is not taken for one."""
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "a")


def test_content_survives_making_a_file_private(tmp_path: Path) -> None:
    """Only the mode of a file that exists changes."""
    path = tmp_path / "f"
    path.write_text("content")
    path.chmod(0o644)
    make_private_file(path)
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("content", 0o600)


def test_links_are_not_followed(tmp_path: Path) -> None:
    """A planted symbolic link is an error, not a way to another file."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic"):
        make_private_file(tmp_path / "link")
    assert not (tmp_path / "target").exists()
