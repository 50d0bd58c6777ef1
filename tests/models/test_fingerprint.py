import dataclasses
import hashlib
import json
import os
from pathlib import Path

import pytest
from blake3 import blake3

from models.fingerprint import LLAMA_BUILD, Fingerprint, weights_hash
from tests.models.helpers import FIELD_NAMES, FINGERPRINT, changed, other_in


def test_every_field_has_a_name_for_the_user() -> None:
    """No field is left out of these tests."""
    assert [field.name for field in dataclasses.fields(Fingerprint)] == list(FIELD_NAMES)


@pytest.mark.parametrize(("field", "name"), FIELD_NAMES.items())
def test_every_field_changes_the_digest(field: str, name: str) -> None:
    """No field is left out of the digest, and the difference names it."""
    assert other_in(field).digest() != FINGERPRINT.digest()
    assert FINGERPRINT.difference(other_in(field).fields()) == [name]


@pytest.mark.parametrize(("field", "name"), FIELD_NAMES.items())
def test_a_field_that_is_not_there_differs(field: str, name: str) -> None:
    """A generation of an older program, which did not know the field, is another one."""
    fields = FINGERPRINT.fields()
    del fields[field]
    assert FINGERPRINT.difference(fields) == [name]


def test_differences_are_named_in_order() -> None:
    """Several fields are told in the order they are declared in."""
    assert FINGERPRINT.difference(changed(gpu_layers=9, type_k="q8_0", type_v="q8_0").fields()) == [
        "KV type of K",
        "KV type of V",
        "GPU layers",
    ]


@pytest.mark.parametrize("junk", [None, "fields", 5, [["weights", "ab"]]])
def test_what_is_no_generation_has_no_differences(junk: object) -> None:
    """A damaged description explains nothing."""
    assert FINGERPRINT.difference(junk) == []


def test_equal_fingerprints_have_equal_digests() -> None:
    """The digest is of the values, 32 bytes, and the same in every run."""
    canonical = json.dumps(FINGERPRINT.fields(), sort_keys=True, separators=(",", ":")).encode()
    assert FINGERPRINT.digest() == changed().digest()
    assert FINGERPRINT.digest() == hashlib.sha256(b"chatapp-fingerprint-2\0" + canonical).digest()


def test_the_fields_come_back_from_json() -> None:
    """What a generation's folder says of itself is compared as it was written."""
    stored = json.loads(json.dumps(FINGERPRINT.fields()))
    assert FINGERPRINT.difference(stored) == []
    assert Fingerprint(**stored) == FINGERPRINT


def test_the_build_is_the_installed_bindings() -> None:
    """It names package and version, as the pin in the dependencies does."""
    name, version = LLAMA_BUILD.rsplit(" ", 1)
    assert name == "llama-cpp-python"
    assert version[0].isdigit()


# --- the hash of the weights ---


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
    """Another time of change is another file, even if the time of modification was set back."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"weights")
    before = model.stat()
    first = weights_hash(model, tmp_path / "cache", lambda _done, _total: None)
    model.write_bytes(b"WEIGHTS")
    while model.stat().st_ctime_ns == before.st_ctime_ns:  # the system's clock of files ticks slowly
        model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
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


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    """A change in any part is another model, whatever the parts are called."""
    parts = [tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(b"part of " + part.name.encode())
    before = weights_hash(parts[0], tmp_path / "cache", lambda _done, _total: None)
    parts[1].write_bytes(b"another")
    assert weights_hash(parts[0], tmp_path / "cache", lambda _done, _total: None) != before
