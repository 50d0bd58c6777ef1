import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from models.fingerprint import Fingerprint, weights_hash
from tests.models.helpers import FINGERPRINT, changed

OTHER: dict[type, Any] = {str: "other", int: 12_345, float: 0.25, bool: True}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Fingerprint)])
def test_every_field_changes_the_digest(field: str) -> None:
    """No field is left out of the digest, and the difference names it."""
    other = changed(**{field: OTHER[type(getattr(FINGERPRINT, field))]})
    assert other.digest() != FINGERPRINT.digest()
    assert FINGERPRINT.difference(other.to_json()) == [field.replace("_", " ")]


def test_equal_fingerprints_have_equal_digests() -> None:
    """The digest is of the values, 32 bytes, and the same in every run."""
    assert FINGERPRINT.digest() == changed().digest()
    assert FINGERPRINT.digest() == hashlib.sha256(b"chatapp-fingerprint-1\0" + FINGERPRINT.to_json().encode()).digest()
    assert FINGERPRINT.difference(FINGERPRINT.to_json()) == []


def test_weights_are_hashed_once(tmp_path: Path) -> None:
    """The hash is BLAKE3 of the file; the second time it is remembered."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        digest = weights_hash(model, tmp_path / "cache", lambda done, total: seen.append((done, total)))
        assert digest == blake3(b"weights").hexdigest()
    assert seen == [(7, 7)]


def test_a_changed_file_is_hashed_anew(tmp_path: Path) -> None:
    """Another size or another time of change is another file."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    first = weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(1, 1))
    second = weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    assert second == blake3(b"WEIGHTS").hexdigest() != first


@pytest.mark.parametrize("junk", [b"", b"short", b"\xff" * 64, b"z" * 64])
def test_a_damaged_note_is_hashed_anew(tmp_path: Path, junk: bytes) -> None:
    """What is no hash is not believed."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    (note,) = (tmp_path / "cache" / "weights").iterdir()
    note.write_bytes(junk)
    digest = weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    assert digest == blake3(b"weights").hexdigest() == note.read_text()


def test_a_note_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file in the place of the cache folder only costs the next run a measurement."""
    (tmp_path / "cache").write_bytes(b"")
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    digest = weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    assert digest == blake3(b"weights").hexdigest()
