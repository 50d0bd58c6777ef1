"""A program that uses a KV folder hard, beside others like it: `python -m tests.models.kv_hammer ROOT SEED STEPS`.

Prints a line for each step. Ends with 3 when it is given bytes that are not those of the tokens it asked for.
"""

import contextlib
import random
import sys
import time
from pathlib import Path

from models.kvbudget import KvFull, evict
from models.kvformat import SegmentDamaged, SegmentId
from models.kvreconcile import reconcile
from models.kvsettings import KvSettings
from models.kvstore import KvStore
from tests.models.helpers import FINGERPRINT

KEY = b"k" * 32
N_CHATS, N_TURNS, TURN = 6, 8, 40
BUDGET = 250_000
PAYLOAD = 10_000


def tokens_of(chat: int, n_turns: int) -> list[int]:
    """The tokens of a conversation's first turns; all share the first turn, pairs of them the second."""
    shared = [0, chat // 2 + 10] + [100 + chat] * N_TURNS
    return [1_000 * shared[turn] + turn * 50 + i % 7 for turn in range(n_turns) for i in range(TURN)]


def payload_of(segment: SegmentId) -> bytes:
    """What stands for the rows of a segment: nothing else has the same."""
    return (segment.key * (PAYLOAD // 32 + 1))[:PAYLOAD]


def step(store: KvStore, rng: random.Random) -> None:
    """Continue a conversation as far as it is stored, checking all of it; or do what others do meanwhile."""
    action = rng.random()
    if action < 0.06:
        with store._folder.locked():
            evict(store._folder, store._index, rng.randrange(BUDGET), build=FINGERPRINT.llama_build)
        return
    if action < 0.09:
        with store._folder.locked():
            reconcile(store._folder, store._index, time.time())
        return
    chat = rng.randrange(N_CHATS)
    wanted = tokens_of(chat, rng.randint(1, N_TURNS))
    hits = store.lookup(wanted).hits
    chain = [hit.segment for hit in hits if hit.is_whole]
    store.use(chain[-1] if chain else None)
    with contextlib.suppress(OSError, SegmentDamaged):
        for segment, payload in zip(chain, store.read_each([(one, "rows") for one in chain]), strict=True):
            if bytes(payload) != payload_of(segment):
                sys.exit(3)
    position = chain[-1].end if chain else 0
    if position < len(wanted):
        parent = chain[-1].key if chain else store.root_key
        segment = SegmentId(store.digest, parent, position, tuple(wanted[position : position + TURN]))
        with contextlib.suppress(KvFull):
            store.write(segment, payload_of(segment))


def main() -> None:
    """Take the steps."""
    root, seed, n_steps = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    settings = KvSettings(budget_bytes=BUDGET, free_floor_bytes=0)
    store = KvStore(root, KEY, FINGERPRINT, clock=time.time, settings=settings)
    rng = random.Random(seed)
    for _ in range(n_steps):
        step(store, rng)
        print(".", flush=True)
    store.close()


if __name__ == "__main__":
    main()
