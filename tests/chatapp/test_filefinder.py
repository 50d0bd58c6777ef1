from pathlib import Path

import pytest

from chatapp.filefinder import FileFinder, fit


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with what is not to be offered."""
    for name, data in {
        "README.md": b"x",
        "src/main.py": b"x",
        "src/한글.txt": b"x",
        "src/deep/er/notes.md": b"x",
        "node_modules/pkg/index.js": b"x",
        ".git/config": b"x",
        ".hidden/secret.txt": b"x",
        ".env": b"x",
        "photo.png": b"x",
        "empty.txt": b"",
        "made/out.txt": b"x",
        "logs/a.log": b"x",
        "src/b.log": b"x",
        ".gitignore": b"# made by hand\nmade/\n*.log\n!keep.log\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "link").symlink_to(tmp_path / "src")
    return tmp_path


def test_only_texts_that_belong_to_the_project_are_offered(root: Path) -> None:
    """Neither what git ignores, nor packages, pictures, empty files, or folders behind links."""
    assert sorted(FileFinder(root).find("", limit=100)) == [
        ".env",
        ".gitignore",
        "README.md",
        "src/deep/er/notes.md",
        "src/main.py",
        "src/한글.txt",
    ]


@pytest.mark.parametrize(
    ("query", "first"),
    [("main", "src/main.py"), ("smp", "src/main.py"), ("readme", "README.md"), ("한", "src/한글.txt")],
)
def test_a_few_letters_are_enough(root: Path, query: str, first: str) -> None:
    """In their order, whatever the case; names come before folders."""
    assert FileFinder(root).find(query)[0] == first


def test_nothing_fits_what_has_other_letters(root: Path) -> None:
    """No offer is better than a wrong one."""
    assert FileFinder(root).find("qqq") == []
    assert fit("ba", "ab") is None


def test_a_walk_is_good_for_a_while(root: Path) -> None:
    """A key does not walk again; later, new files are found."""
    now = [0.0]
    finder = FileFinder(root, monotonic=lambda: now[0])
    assert finder.find("new") == []
    (root / "new.txt").write_text("x", encoding="utf-8")
    assert finder.find("new") == []
    now[0] = 11.0
    assert finder.find("new") == ["new.txt"]


def test_a_walk_ends_in_time(root: Path) -> None:
    """What was found by then is offered."""
    ticks = iter(range(10_000))
    assert len(FileFinder(root, monotonic=lambda: float(next(ticks))).find("", limit=100)) < 6


def test_other_folders_are_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that leads out of the folder is completed name by name."""
    monkeypatch.setenv("HOME", str(root))
    finder = FileFinder(root / "src")
    assert finder.find("../REA") == ["../README.md"]
    assert finder.find("~/s") == ["~/src/"]
    assert finder.find(f"{root}/src/m") == [f"{root}/src/main.py"]
    assert finder.find("~") == ["~/"]
    assert finder.find("/no/such/folder/x") == []
