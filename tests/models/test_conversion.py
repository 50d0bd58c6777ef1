import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from models.conversion import BITS, converted_name, expected_bytes, finish, unfinished
from models.errors import ModelError


@pytest.mark.parametrize(
    ("name", "quantization", "expected"),
    [
        ("Qwen-7B-Q4_K_M", "Q4_K_M", "Qwen-7B-Q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1", "SmolLM2-135M-Instruct-Q8_0"),
        ("model-f16", "F16", "model-Q8_0"),
        ("model", "F16", "model-Q8_0"),
        ("model", None, "model-Q8_0"),
        ("Q4_1", "Q4_1", "Q4_1-Q8_0"),
        ("qwen3:8b", "Q4_1", "qwen3-8b-Q8_0"),
        ("hf.co/owner/Model-GGUF:Q4_1", "Q4_1", "hf.co-owner-Model-GGUF-Q8_0"),
        ("../..\\.x\x1b[31m\n", None, "-..-.x-[31m--Q8_0"),
        (".hidden", None, "hidden-Q8_0"),
    ],
)
def test_the_type_at_the_end_of_a_name_is_exchanged(name: str, quantization: str | None, expected: str) -> None:
    """In any case of letters; where there is none, it is appended. What comes out is the name of a file."""
    assert converted_name(name, quantization, "Q8_0") == expected


def test_room_is_asked_for_by_type() -> None:
    """More bits, more room; never less than the bits themselves."""
    sizes = [expected_bytes(1_000_000, name) for name in sorted(BITS, key=lambda name: BITS[name])]
    assert sizes == sorted(sizes)
    assert all(expected_bytes(1_000_000, name) > 1_000_000 * bits / 8 for name, bits in BITS.items())


def test_a_finished_file_is_in_its_place(tmp_path: Path) -> None:
    """With what was written, readable by its owner alone, and nothing beside it."""
    target = tmp_path / "models" / "new.gguf"
    with unfinished(target, 10) as part:
        part.write_bytes(b"whole")
        finish(part, target)
    assert (target.read_bytes(), list(target.parent.iterdir())) == (b"whole", [target])
    assert os.name == "nt" or target.stat().st_mode & 0o077 == 0


def test_what_is_not_finished_is_deleted(tmp_path: Path) -> None:
    """Whatever ends the work."""

    def work() -> None:
        with unfinished(tmp_path / "new.gguf", 10) as part:
            part.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_replaced(tmp_path: Path) -> None:
    """Neither one that is there before the work nor one that came meanwhile."""
    target = tmp_path / "new.gguf"
    with unfinished(target, 10) as part:
        target.write_bytes(b"other")
        with pytest.raises(ModelError, match="is there by now"):
            finish(part, target)
    with pytest.raises(ModelError, match="is already there"), unfinished(target, 10):
        pytest.fail("this must not be reached")
    assert (target.read_bytes(), list(tmp_path.iterdir())) == (b"other", [target])


@pytest.mark.parametrize("is_there", [False, True])
def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    """The file is moved into its place, and replaces nothing there either."""

    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("models.conversion.os.link", link)
    target = tmp_path / "new.gguf"
    with unfinished(target, 10) as part:
        part.write_bytes(b"whole")
        if is_there:
            target.write_bytes(b"other")
            with pytest.raises(ModelError, match="is there by now"):
                finish(part, target)
        else:
            finish(part, target)
    assert (target.read_bytes(), list(tmp_path.iterdir())) == (b"other" if is_there else b"whole", [target])


def test_a_full_disk_is_seen_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names what is needed and what there is."""
    usage = shutil.disk_usage(tmp_path)._replace(free=2_000_000_000)
    monkeypatch.setattr("models.conversion.shutil.disk_usage", lambda _path: usage)
    message = r"2\.0 GB free and the file needs about 3\.0 GB"
    with pytest.raises(ModelError, match=message), unfinished(tmp_path / "new.gguf", 3_000_000_000):
        pytest.fail("this must not be reached")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    """Here because a file has its place."""
    (tmp_path / "models").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be written"), unfinished(tmp_path / "models" / "new.gguf", 1):
        pytest.fail("this must not be reached")


@pytest.mark.skipif(os.name == "nt", reason="process ids are not asked there")
def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    """Only of processes that are gone, and only files of this kind."""
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    left = tmp_path / f".old.gguf.{gone.pid}.chatapp-part"
    used = tmp_path / f".other.gguf.{os.getpid()}.chatapp-part"
    foreign = tmp_path / f".other.gguf.{gone.pid}.part"
    for path in (left, used, foreign):
        path.write_bytes(b"half")
    with unfinished(tmp_path / "new.gguf", 1):
        assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted([used, foreign])
