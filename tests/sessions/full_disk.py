"""Talk on a disk of 32 MiB that others fill: `python -m tests.sessions.full_disk FOLDER`; prints JSON."""

import json
import sys
import time
from pathlib import Path

from models.fingerprint import LLAMA_BUILD
from models.kvbudget import KvFull
from models.kvcare import give_way
from models.kvformat import SegmentId
from models.kvstore import KvStore
from sessions.store import Store
from tests.models.helpers import FINGERPRINT, changed, segment_files


def main() -> None:
    """Fill the disk with KV as far as it may, then with something else, then go on talking."""
    root = Path(sys.argv[1])
    kv = KvStore(root / "kv", b"k" * 32, changed(FINGERPRINT, llama_build=LLAMA_BUILD), clock=time.time)
    n_written = 0
    try:
        for n in range(64):
            kv.write(SegmentId(kv.digest, kv.root_key, 0, (n,)), bytes(1 << 20))
            n_written += 1
    except KvFull:
        pass
    n_kept = len(segment_files(root / "kv"))
    junk = 0
    try:
        with (root / "junk").open("wb", buffering=0) as file:
            while file.write(bytes(1 << 16)):
                junk += 1
    except OSError:
        pass
    (root / "data").mkdir(exist_ok=True)
    store = Store(root / "data", make_room=lambda n_bytes: give_way(root, n_bytes))
    session = store.create_session(system="Be brief.")
    for n in range(20):
        question = store.add_question(session.id, f"question {n} " * 2_000, title="")
        store.add_answer(question, "answer", "complete", run=None)
    print(
        json.dumps(
            {
                "kept": n_kept,
                "junk": junk,
                "left": len(segment_files(root / "kv")),
                "messages": len(store.messages(session.id)),
            }
        )
    )


if __name__ == "__main__":
    main()
