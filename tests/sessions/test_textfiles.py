import os
from pathlib import Path

import pytest

from sessions.errors import BadRequest
from sessions.textfiles import MAX_BYTES, read_text

KOREAN = "안녕하세요, 세계.\n두 번째 줄입니다.\n"


@pytest.mark.parametrize(
    ("data", "text", "encoding", "n_replaced"),
    [
        (KOREAN.encode(), KOREAN, "UTF-8", 0),
        (b"\xef\xbb\xbf" + KOREAN.encode(), KOREAN, "UTF-8", 0),
        (KOREAN.encode("utf-16"), KOREAN, "UTF-16", 0),
        (b"\xfe\xff" + KOREAN.encode("utf-16-be"), KOREAN, "UTF-16", 0),
        (KOREAN.encode("utf-32"), KOREAN, "UTF-32", 0),
        (KOREAN.encode("cp949"), KOREAN, "EUC-KR", 0),
        ("Größe: 5 €, café".encode("cp1252"), "Größe: 5 €, café", "Windows-1252", 0),
        (b"caf\xe9 \x81", "café �", "Windows-1252", 1),
        ("가나다".encode()[:-1], "가나�", "UTF-8", 1),
        ("genuine � stays".encode(), "genuine � stays", "UTF-8", 0),
        (b"a\r\nb\rc", "a\nb\nc", "UTF-8", 0),
        (KOREAN.encode("utf-16")[:-1], KOREAN[:-1] + "�", "UTF-16", 1),
    ],
)
def test_any_encoding_is_read(tmp_path: Path, data: bytes, text: str, encoding: str, n_replaced: int) -> None:
    """By mark, as UTF-8, as Korean, as Windows-1252; what spells nothing is counted."""
    path = tmp_path / "file"
    path.write_bytes(data)
    found = read_text(path)
    assert (found.text, found.encoding, found.n_replaced) == (text, encoding, n_replaced)


@pytest.mark.parametrize("data", [b"\x7fELF\0\0\0", b"PK\x03\x04" + bytes(range(32)) * 4, b"text\0text"])
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    """A program or an archive is not attached as text."""
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(BadRequest, match="is not a text"):
        read_text(path)


def test_limits_are_looked_at_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too large is not even opened; the sentence has the numbers."""
    path = tmp_path / "big.log"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 2_000_000)
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opened"))
    with pytest.raises(BadRequest, match=r"10\.0 MB: 8 MB is the most"):
        read_text(path)
    os.truncate(path, 1_000_000)
    with pytest.raises(BadRequest, match=r"about 250,000 tokens, and the context holds 4,096"):
        read_text(path, max_tokens=4096)


def test_nothing_that_could_hang_is_read(tmp_path: Path) -> None:
    """Pipes, devices, folders, loops and files that are not there are refused at once, also behind a link."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "to_zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in (
        ("pipe", "a pipe or a device"),
        ("to_pipe", "a pipe or a device"),
        ("to_zero", "a pipe or a device"),
        (".", "is a folder"),
        ("loop", "cannot be read"),
        ("missing", "cannot be read"),
    ):
        with pytest.raises(BadRequest, match=words):
            read_text(tmp_path / name)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    """It is the file that counts, not how it is reached."""
    (tmp_path / "file").write_text("text", encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_text(tmp_path / "link").text == "text"


def test_an_empty_file_is_not_attached(tmp_path: Path) -> None:
    """There is nothing in it."""
    (tmp_path / "file").write_text(" \n", encoding="utf-8")
    with pytest.raises(BadRequest, match="is empty"):
        read_text(tmp_path / "file")
