import json
import os
from pathlib import Path

import pytest

from models.errors import ModelError
from models.modelfacts import FactsCache
from models.modelfiles import Entry, entry_at
from models.ownmodels import Default, add, read_default, remove, write_default
from tests.models.ggufs import gguf, llama, tensor

MODEL = gguf(llama(), [tensor("t", [8])], data=bytes(32))


class Own:
    """An own folder, and a model elsewhere."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "data" / "models"
        self.elsewhere = root / "else where"
        self.elsewhere.mkdir()
        self.told: list[tuple[int, int]] = []
        self._cache = FactsCache(root / "cache")

    def put(self, name: str, content: bytes = MODEL) -> Path:
        """Write a file elsewhere."""
        (self.elsewhere / name).write_bytes(content)
        return self.elsewhere / name

    def add(self, path: Path, *, copy: bool = False) -> Entry:
        """Add a file."""
        return add(self.folder, path, self._cache, copy=copy, progress=lambda *done: self.told.append(done))

    def names(self) -> list[str]:
        """What lies in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def own(tmp_path: Path) -> Own:
    """An own folder that does not exist yet."""
    return Own(tmp_path)


def test_adding_makes_a_link(own: Own) -> None:
    """To the file itself, whatever link led to it; again, it changes nothing."""
    file = own.put("a b.gguf")
    (own.elsewhere / "link.gguf").symlink_to(file)
    for _ in range(2):
        assert own.add(own.elsewhere / "link.gguf") == Entry("link", "own", (own.folder / "link.gguf",))
    assert (own.folder / "link.gguf").readlink() == file
    assert own.told == []


def test_a_copy_is_a_file_of_its_own(own: Own) -> None:
    """Complete, with progress, and nothing left beside it."""
    file = own.put("m.gguf")
    entry = own.add(file, copy=True)
    file.unlink()
    assert not entry.path.is_symlink()
    assert entry.path.read_bytes() == MODEL
    assert own.told == [(len(MODEL), len(MODEL))]
    assert own.names() == ["m.gguf"]


def test_all_parts_are_added(own: Own) -> None:
    """Whichever of them is named."""
    parts = [own.put(f"m-0000{n}-of-00002.gguf") for n in (1, 2)]
    assert own.add(parts[1]).name == "m"
    assert own.names() == [part.name for part in parts]


def test_a_blob_gets_an_ending(own: Own) -> None:
    """So that it is found again."""
    assert own.add(own.put("sha256-ab")).path.name == "sha256-ab.gguf"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("m.gguf", b"<html>", "m.gguf is not a GGUF model file."),
        ("m.gguf", MODEL[:50], "m.gguf is cut short or damaged: its header says more than the file holds."),
        ("m.gguf", MODEL[:-2], "m.gguf is cut short: 2 bytes are missing."),
        ("m-00001-of-00002.gguf", MODEL, "m-00002-of-00002.gguf is missing."),
        ("m.gguf", gguf({"general.type": "adapter"}), "m.gguf is no model but a part of one (adapter)."),
    ],
)
def test_what_cannot_be_used_is_not_added(own: Own, name: str, content: bytes, sentence: str) -> None:
    """One sentence says why."""
    with pytest.raises(ModelError) as raised:
        own.add(own.put(name, content))
    assert str(raised.value) == sentence
    assert not own.folder.exists()


def test_what_is_no_file_is_not_added(own: Own) -> None:
    """A folder, nothing."""
    with pytest.raises(ModelError, match="is a folder"):
        own.add(own.elsewhere)
    with pytest.raises(ModelError, match="There is no model file at"):
        own.add(own.elsewhere / "none.gguf")


def test_another_model_of_the_name_is_kept(own: Own, tmp_path: Path) -> None:
    """The sentence says how to remove it; a dead link is in the way too."""
    own.add(own.put("m.gguf"))
    other = tmp_path / "m.gguf"
    other.write_bytes(MODEL)
    with pytest.raises(ModelError, match=r"already there: `chatapp models remove m`"):
        own.add(other)
    (own.elsewhere / "m.gguf").unlink()
    with pytest.raises(ModelError, match="already there"):
        own.add(other)


def test_a_full_disk_is_one_sentence(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left behind."""
    file = own.put("m.gguf")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ModelError, match=r"cannot be put into .*: No space left"):
        own.add(file, copy=True)
    assert own.names() == []


def test_a_part_that_fails_takes_the_others_along(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a model is there, or none of it."""
    parts = [own.put(f"m-0000{n}-of-00002.gguf") for n in (1, 2)]
    link = Path.symlink_to

    def failing(target: Path, file: Path) -> None:
        if target.name == parts[1].name:
            raise PermissionError(13, "Permission denied")
        link(target, file)

    monkeypatch.setattr(Path, "symlink_to", failing)
    with pytest.raises(ModelError, match="Permission denied"):
        own.add(parts[0])
    assert own.names() == []


def test_removing_leaves_other_files_alone(own: Own) -> None:
    """A link goes, the file stays; a copy goes."""
    file = own.put("m.gguf")
    assert remove(own.folder, own.add(file)) == 0
    assert file.exists()
    assert remove(own.folder, own.add(file, copy=True)) == len(MODEL)
    assert file.exists()
    assert own.names() == []


def test_other_programs_models_are_never_removed(own: Own) -> None:
    """Not even with one foot in the own folder."""
    file = own.put("m.gguf")
    with pytest.raises(ModelError, match=r"m is not in chatapp's own folder \(LM Studio\)"):
        remove(own.folder, Entry("m", "LM Studio", (file,)))
    link = own.add(file).path
    with pytest.raises(ModelError, match="own folder"):
        remove(own.folder, Entry("m", "own", (link, file)))
    assert file.exists()
    assert link.exists()


def test_what_cannot_be_removed_is_one_sentence(own: Own) -> None:
    """It is gone already, for instance."""
    entry = own.add(own.put("m.gguf"))
    entry.path.unlink()
    with pytest.raises(ModelError, match=r"m\.gguf cannot be removed: No such file"):
        remove(own.folder, entry)


def test_the_default_is_remembered(own: Own) -> None:
    """By name and path; removing the model forgets it, removing another does not."""
    assert read_default(own.folder) is None
    entry, other = own.add(own.put("m \udce9.gguf")), own.add(own.put("other.gguf"))
    write_default(own.folder, entry)
    remove(own.folder, other)
    assert read_default(own.folder) == Default(entry.name, entry.path)
    remove(own.folder, entry)
    assert read_default(own.folder) is None
    assert own.names() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"[" * 100_000,
        b"{}",
        json.dumps({"version": 2, "name": "m", "path": "/m"}).encode(),
        json.dumps({"version": 1, "name": 1, "path": "/m"}).encode(),
        json.dumps({"version": 1, "name": "m"}).encode(),
    ],
)
def test_a_damaged_default_is_none(own: Own, content: bytes) -> None:
    """The starter is used then."""
    own.folder.mkdir(parents=True)
    (own.folder / "default").write_bytes(content)
    assert read_default(own.folder) is None


def test_a_default_that_cannot_be_kept_is_one_sentence(own: Own, tmp_path: Path) -> None:
    """A file stands where the folder should be."""
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be kept in"):
        write_default(tmp_path / "file", entry_at(own.put("m.gguf")))
