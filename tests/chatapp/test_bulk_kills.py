"""Batches that are killed in the middle of whatever they do, and go on."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from chatapp.__main__ import main
from tests.chatapp.test_cli import ROOT

N_ROWS = 60
TICKS_A_ROW = 9
"""Parts that a record is written in, about."""


def victim(*arguments: str) -> subprocess.Popen[bytes]:
    """Start a batch that writes its records in halves of halves."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.chatapp.batch_victim", "batch", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def whole_lines(path: Path) -> list[bytes]:
    """Return the records that are whole."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1].splitlines()


@pytest.mark.skipif(os.name != "posix", reason="a kill is POSIX's")
@pytest.mark.timeout(0)
def test_killed_at_random_no_row_is_lost_or_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    """Each record that was whole when the kill came is there in the end, and each row has one."""
    monkeypatch.setenv("CHATAPP_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("CHATAPP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CHATAPP_ENGINE", "fake")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    n_kills = int(pytestconfig.getoption("--batch-kills"))
    n_rows = max(N_ROWS, 4 * n_kills)
    rng = random.Random(7)
    rows = [json.dumps({"id": rng.randrange(n_rows // 2), "prompt": f"p{n % 7}"}).encode() for n in range(n_rows)]
    rows[n_rows // 2] = b"no JSON"
    source.write_bytes(b"\r\n".join(rows))
    arguments = ["--order", "prefix", "--save-sessions", "--system", "Be brief."]
    kept: set[bytes] = set()
    n_torn = 0
    for _ in range(n_kills):
        with victim(str(source), "-o", str(target), *arguments) as program:
            assert program.stdin
            assert program.stdout
            # Not so many that all rows are answered before the last kill.
            n_ticks = rng.randrange(1, TICKS_A_ROW * n_rows // n_kills)
            # It waits at the last tick, in the middle of a record perhaps, or runs on until the kill comes.
            program.stdin.write(b"." * (n_ticks - 1 + rng.choice((0, 1_000))))
            program.stdin.flush()
            assert program.stdout.read(n_ticks)
            program.kill()
            program.communicate()
        n_torn += target.exists() and not target.read_bytes().endswith(b"\n")
        found = whole_lines(target)
        assert kept <= set(found)
        assert len(found) == len(set(found))
        kept = set(found)
    assert n_torn, "no kill came into the middle of a record"
    assert len(kept) > n_kills

    monkeypatch.setattr(sys, "argv", ["chatapp", "batch", str(source), "-o", str(target), *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == 3
    records = whole_lines(target)
    assert kept <= set(records)
    answers = [json.loads(record) for record in records]
    assert [answer["line"] for answer in answers] == list(range(1, n_rows + 1))
    asked = [json.loads(row).get("id") if row != b"no JSON" else None for row in rows]
    assert [answer["id"] for answer in answers] == asked
    assert sorted(path.name for path in tmp_path.iterdir() if "out" in path.name) == ["out.jsonl"]

    monkeypatch.setattr(sys, "argv", ["chatapp", "sessions", "list", "--json", "--tag", "batch", "--limit", "9999"])
    ids = {answer["session"] for answer in answers} - {None}
    assert len(ids) == n_rows - 1
    listed = subprocess.run([sys.executable, "-m", *sys.argv], cwd=ROOT, capture_output=True, check=True).stdout
    assert {session["id"] for session in json.loads(listed)} == ids
