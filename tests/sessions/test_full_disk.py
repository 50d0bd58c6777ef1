import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_messages_are_saved_while_any_kv_can_go(tmp_path: Path) -> None:
    """On a real disk that KV and another program have filled, every message is saved, and KV is what went for it."""
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare to mount a small disk with")
    script = 'mount -t tmpfs -o size=32m tmpfs "$1" && exec "$2" -m tests.sessions.full_disk "$1"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in ran.stderr or "mount" in ran.stderr:
        pytest.skip(f"no small disk can be mounted here: {ran.stderr.strip()}")
    assert ran.stderr == ""
    found = json.loads(ran.stdout)
    assert found["junk"] > 0
    assert 0 <= found["left"] < found["kept"]
    assert found["messages"] == 41
