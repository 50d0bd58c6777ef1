"""What the tests of import and export share."""

import io
import json
import sqlite3
import zipfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from sessions.importing import Format, Outcome, import_file
from sessions.portable import write
from sessions.store import Store
from sessions.transcript import Transcript, load

DATA = Path(__file__).parents[1] / "data"
NOW = 1_800_000_000.0


def brought(store: Store, path: Path, format_: Format | None = None, *, tokens: bool = False) -> list[Outcome]:
    """Import a file at a fixed time; return what became of each conversation."""
    return list(import_file(store, path, format=format_, tokens=tokens, clock=lambda: NOW))


def only(store: Store, outcomes: list[Outcome]) -> Transcript:
    """Return the one conversation that was added."""
    (outcome,) = [outcome for outcome in outcomes if outcome.status == "added"]
    assert outcome.id is not None
    return load(store, outcome.id)


def talk(transcript: Transcript) -> list[tuple[str, str]]:
    """Return role and text of the branch that is shown."""
    return [(line.role, line.text) for line in transcript.shown()]


def exported(store: Store, ids: Iterable[str], *, tokens: bool = False) -> str:
    """Return the own JSON of conversations."""
    return "".join(write((load(store, session_id) for session_id in ids), tokens=tokens))


def json_file(path: Path, value: Any) -> Path:
    """Write a value as JSON."""
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def database(path: Path, script: str) -> Path:
    """Make a SQLite file from statements."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return path


def archive(path: Path, members: dict[str, bytes]) -> Path:
    """Make a zip archive."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    path.write_bytes(packed.getvalue())
    return path


def chatgpt_tree(*nodes: tuple[str, str | None, str, str], head: str = "") -> dict[str, Any]:
    """Return a ChatGPT conversation of (key, parent, role, text)."""
    mapping: dict[str, Any] = {
        key: {
            "id": key,
            "parent": parent,
            "children": [],
            "message": {"author": {"role": role}, "content": {"content_type": "text", "parts": [text]}},
        }
        for key, parent, role, text in nodes
    }
    return {"title": "t", "create_time": 1.0, "id": "k", "mapping": mapping, "current_node": head or nodes[-1][0]}
