"""Several programs over one KV folder, some of them killed in the middle of whatever they do."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.kvfolder import KvFolder, take_crashes, tips_in_use
from models.kvreconcile import Reconciled, reconcile
from models.kvsettings import KvSettings
from models.kvstore import KvStore
from tests.models.helpers import FINGERPRINT, segment_files
from tests.models.kv_hammer import BUDGET, KEY, N_CHATS, N_TURNS, payload_of, tokens_of

N_AT_ONCE = 3


def hammer(root: Path, seed: int, n_steps: int) -> subprocess.Popen[str]:
    """Start one program."""
    command = [sys.executable, "-m", "tests.models.kv_hammer", str(root), str(seed), str(n_steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_programs_share_a_folder_and_may_be_killed(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """No program is ever given foreign bytes or an error; afterwards index and files agree, within the budget."""
    root, rng = tmp_path / "kv", random.Random(1)
    for generation in range(int(pytestconfig.getoption("--kv-kills"))):
        running = [hammer(root, 100 * generation + i, 60) for i in range(N_AT_ONCE)]
        victim = running[0]
        assert victim.stdout is not None
        for _ in range(rng.randrange(40)):
            victim.stdout.readline()
        victim.kill()
        victim.wait()
        for program in running[1:]:
            _, complaint = program.communicate(timeout=60)
            assert (program.returncode, complaint) == (0, "")
        for pipe in (victim.stdout, victim.stderr):
            assert pipe is not None
            pipe.close()

    store = KvStore(root, KEY, FINGERPRINT, clock=time.time, settings=KvSettings(budget_bytes=BUDGET))
    try:
        with store._folder.locked():
            first = reconcile(store._folder, store._index, time.time())
            assert reconcile(store._folder, store._index, time.time()) == Reconciled(0, 0, 0)
        assert first.damaged == 0
        assert store._index.total_bytes() == sum(path.stat().st_size for path in segment_files(root))
        assert store._index.total_bytes() <= BUDGET + 20_000
        for chat in range(N_CHATS):
            for hit in store.lookup(tokens_of(chat, N_TURNS)).hits:
                assert bytes(store.read(hit.segment)) == payload_of(hit.segment)
    finally:
        store.close()
    folder = KvFolder(root)
    with folder.locked():
        assert take_crashes(folder) == []
        assert tips_in_use(folder) == set()
        assert list((root / "in-use").iterdir()) == []
