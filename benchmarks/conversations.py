"""A large library of conversations: how soon its list is there, and what a search finds.

`python benchmarks/conversations.py [--sessions 10000] [--messages 30] [--repeats 7]` builds a database in a
temporary folder and prints medians in milliseconds, sizes in MB. `scan_ms` is the reference, the same
word looked for without an index (LIKE), in the same run. `first_*` are in a connection that was just opened.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from operator import methodcaller
from pathlib import Path

from models.sqlite import Database
from sessions.overview import Wanted
from sessions.purge import delete_forever, forget_nothing
from sessions.store import Store

NOW = 1_800_000_000.0
_SYLLABLES = [a + b for a in "bcdfghklmnprstvwz" for b in ("a", "e", "i", "o", "u", "ar", "en", "is")]
_HANGUL = "회의일정보고서자료정리번역문장요약질문답변코드수정서버배포테스트오류"
_HAN = "北京東京会議報告資料整理翻訳要約質問回答修正確認予定明日今日問題解決方法"


def main() -> None:
    """Build, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=30, help="of each conversation")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, object] = {
            "sessions": arguments.sessions,
            "messages": arguments.sessions * arguments.messages,
        }
        figures["build_s"] = _timed(lambda: build(Path(folder), arguments.sessions, arguments.messages)) / 1000
        figures |= _index(Path(folder))
        for name, action in _lists().items():
            figures[f"first_{name}_ms"] = _first(Path(folder), action)
            figures[f"{name}_ms"] = _median(Path(folder), action, arguments.repeats)
        for query in _QUERIES:
            search = methodcaller("search", query)
            figures[f"first_search {query}_ms"] = _first(Path(folder), search)
            figures[f"search {query}_ms"] = _median(Path(folder), search, arguments.repeats)
        figures["scan_ms"] = _first(Path(folder), _scan)
        figures |= _one_message_later(Path(folder))
        figures["delete_forever_ms"] = _first(Path(folder), _delete_one)
    for name, value in figures.items():
        print(f"{name:<34} {value if isinstance(value, int) else format(value, '.2f')}")


_QUERIES = (
    "the",
    "t",
    "the a of",
    "zenobia",
    "회의",
    "京",
    "tag:blue the",
    "in:title the",
    "is:archived the",
    '"of the"',
)


def build(folder: Path, n_sessions: int, n_messages: int) -> None:
    """Make a store of so many conversations with so many messages each."""
    rng = random.Random(1)
    words = _vocabulary(rng)
    with closing(Store(folder)) as store, store.db.transaction() as db:
        db.execute("INSERT INTO models (weights, name, path, n_bytes) VALUES ('w', 'model', '/m.gguf', 1)")
        for number in range(n_sessions):
            _insert_session(db, rng, words, number, n_sessions, n_messages)


def _insert_session(
    db: Database, rng: random.Random, words: Callable[[int], str], number: int, n_sessions: int, n_messages: int
) -> None:
    session_id, at = f"{number:016d}", NOW - (n_sessions - number) * 3600.0
    pinned = at if number % 1000 == 1 else None
    archived = at if number % 20 == 2 else None
    trashed = at if number % 50 == 3 else None
    db.execute(
        """INSERT INTO sessions (id, title, task, state, created_at, updated_at, trashed_at, pinned_at, archived_at,
            model_id, head_id) VALUES (?, ?, ?, 'open', ?, ?, ?, ?, ?, 1, ?)""",
        [session_id, words(6), words(6), at, at + 60, trashed, pinned, archived, (number + 1) * n_messages],
    )
    if number % 100 == 4:
        db.execute("INSERT INTO tags VALUES (?, 'blue')", [session_id])
    for place in range(n_messages):
        message_id = number * n_messages + place + 1
        role = "system" if place == 0 else "user" if place % 2 else "assistant"
        text = words(rng.randint(4, 20) if role == "user" else rng.randint(20, 120))
        parent = message_id - 1 if place else None
        db.execute(
            """INSERT INTO messages (id, session_id, role, status, created_at, text, parent_id)
                VALUES (?, ?, ?, 'complete', ?, ?, ?)""",
            [message_id, session_id, role, at + place, text, parent],
        )
        ids = struct.pack(f"<{len(text) // 4}I", *range(len(text) // 4))
        db.execute("INSERT INTO token_runs VALUES (?, 1, 0, ?, ?)", [message_id, len(text) // 4, ids])
        if role == "assistant":
            db.execute("INSERT INTO answer_stats VALUES (?, ?)", [message_id, '{"ttft_s":0.1,"prefilled_tokens":30}'])


def _vocabulary(rng: random.Random) -> Callable[[int], str]:
    """Return what makes texts of words as frequent as in language (Zipf), one of twenty Korean, one Japanese."""
    common = ["the", "of", "and", "to", "a", "in", "is", "that", "it", "was"]
    rare = ["".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4))) for _ in range(40_000)]
    words = [*common, *rare, "zenobia"]
    weights = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))

    def text(n: int) -> str:
        match rng.randint(0, 19):
            case 0:
                return " ".join("".join(rng.choices(_HANGUL, k=rng.randint(2, 4))) for _ in range(n))
            case 1:
                return "".join(rng.choices(_HAN, k=2 * n))
        return " ".join(rng.choices(words, cum_weights=weights, k=n))

    return text


def _index(folder: Path) -> Iterator[tuple[str, object]]:
    before = _size_mb(folder)
    with closing(Store(folder)) as store:
        slices = []
        while store.words.n_unindexed():
            slices.append(_timed(store.words.catch_up))
    yield "database_mb", before
    yield "index_mb", _size_mb(folder) - before
    yield "index_s", sum(slices) / 1000
    yield "index_slice_ms", statistics.median(slices)
    yield "index_slowest_slice_ms", max(slices)


def _lists() -> dict[str, Callable[[Store], object]]:
    def second_page(store: Store) -> object:
        return store.summaries(limit=50, after=store.summaries(limit=50)[-1])

    return {
        "list_50": lambda store: store.summaries(limit=50),
        "list_200": lambda store: store.summaries(limit=200),
        "list_two_pages": second_page,
        "list_tag": lambda store: store.summaries(Wanted(tag="blue"), limit=50),
        "list_pinned": lambda store: store.summaries(Wanted(is_pinned=True), limit=50),
        "list_archived": lambda store: store.summaries(Wanted(is_archived=True), limit=50),
        "list_trash": lambda store: store.summaries(trash=True, limit=50),
    }


def _one_message_later(folder: Path) -> Iterator[tuple[str, object]]:
    """A search that has to index what was just said."""
    with closing(Store(folder)) as store:
        store.search("the")
        (summary,) = store.summaries(limit=1)
        store.add_question(summary.session.id, "news of the day", title="")
        yield "search_after_a_message_ms", _timed(lambda: store.search("the"))


def _delete_one(store: Store) -> None:
    delete_forever(store, store.summaries(limit=1)[0].session.id, forget_nothing)


def _scan(store: Store) -> object:
    return store.db.rows("SELECT id FROM messages WHERE text LIKE '%zenobia%' ORDER BY id DESC LIMIT 20")


def _first(folder: Path, action: Callable[[Store], object]) -> float:
    with closing(Store(folder)) as store:
        return _timed(lambda: action(store))


def _median(folder: Path, action: Callable[[Store], object], repeats: int) -> float:
    with closing(Store(folder)) as store:
        action(store)
        return statistics.median(_timed(lambda: action(store)) for _ in range(repeats))


def _timed(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return 1000 * (time.perf_counter() - begun)


def _size_mb(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.glob("chat.db*")) / 1e6


if __name__ == "__main__":
    main()
