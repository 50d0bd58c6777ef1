import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.errors import StoreError
from sessions.purge import delete_forever, forget_nothing
from sessions.store import Store
from tests.sessions.test_search import ask, found

ROOT = Path(__file__).parents[2]
WORDS = ("kumquat", "mangosteen", "회의", "北京", "ทุเรียน", "rambutan")


def add(store: Store, text: str, *, title: str = "t") -> str:
    """Add a conversation with one question; return its id."""
    session = store.create_session()
    store.add_question(session.id, text, title=title)
    return session.id


def content(store: Store) -> bytes:
    """Return the bytes of all files of the data folder."""
    return b"".join(path.read_bytes() for path in sorted(store.path.parent.rglob("*")) if path.is_file())


def vocabulary(store: Store) -> list[str]:
    """Return every word that the index holds."""
    store.db._db.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.words USING fts5vocab('main', 'search', 'row')")
    return [row["term"] for row in store.db.rows("SELECT term FROM temp.words")]


def shadow(store: Store) -> list[object]:
    """Return everything that search keeps."""
    tables = ("search_state", "search_titles", "search_data", "search_idx", "search_docsize")
    return [store.db.rows(f"SELECT * FROM {table}") for table in tables]


def test_a_turn_writes_nothing_to_the_index(store: Store) -> None:
    """Only a search, or an idle moment, does."""
    key = add(store, "before")
    store.search("x")
    before = shadow(store)
    question = store.add_question(key, "news", title="t")
    store.add_answer(question, "more news", "complete", run=None)
    store.rename(key, "another title")
    assert shadow(store) == before
    assert store.words.n_unindexed() == 2
    assert store.words.catch_up() == 3
    assert shadow(store) != before
    assert (store.words.n_unindexed(), store.words.catch_up()) == (0, 0)


def test_an_answer_that_goes_on_is_found_as_it_is_now(store: Store) -> None:
    """Its turn notes a number; by then it is found by what it said before."""
    key = add(store, "question")
    (question,) = store.messages(key)
    begun = "<think>plum</think>\n\nIt begins with kumq"
    answer = store.add_answer(question, begun, "cut", run=None)
    assert found(store, "kumq") == [answer.id]
    for text in ("uat and more", " and \0 even more"):
        answer = store.extend_answer(answer, answer.text + text, "cut", run=None)
    (noted,) = store.db.rows("SELECT * FROM search_changed")
    assert noted == {"message_id": answer.id, "n_chars": len(begun), "text": None}
    assert store.words.n_unindexed() == 1
    assert found(store, '"kumquat and more and even more"') == [answer.id]
    assert found(store, '"with kumq"') == found(store, "plum") == []
    store.purge(key)
    assert vocabulary(store) == []


@pytest.mark.parametrize("text", ["kumquat and more", "something else", "\0kumq", ""])
def test_deleting_takes_out_what_was_indexed_before_a_change(store: Store, text: str) -> None:
    """Whatever became of the text since then."""
    key = add(store, "question", title="kumquat")
    (question,) = store.messages(key)
    answer = store.add_answer(question, "kumq\0uat", "cut", run=None)
    store.search("x")
    store.extend_answer(answer, text, "cut", run=None)
    store.purge(key)
    assert vocabulary(store) == []
    assert b"kumq" not in content(store)
    assert store.db.rows("SELECT * FROM search_changed") == []


def test_catching_up_goes_step_by_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most as many titles and messages as are asked for, in transactions that are short for long texts too."""
    monkeypatch.setattr("sessions.wordindex._BATCH_CHARS", 100)
    for n in range(5):
        add(store, f"{n} " + "x" * 90)
    assert [store.words.catch_up(4) for _ in range(4)] == [4, 4, 2, 0]
    assert len(found(store, "x" * 90)) == 5


@pytest.mark.parametrize("is_indexed", [True, False])
def test_deleting_leaves_no_word_in_the_file(store: Store, is_indexed: bool) -> None:
    """Neither of messages nor of titles, of the old title neither, nor pairs of characters; not even beginnings."""
    for n in range(300):
        add(store, f"other words {n} " + " ".join(f"{chr(97 + n % 26)}{k}x" for k in range(n % 40)), title=f"title {n}")
    text = " ".join(WORDS)
    key = add(store, text, title="durian")
    store.search("x")
    question = store.add_question(key, f"again {text} carambola", title="")
    store.add_answer(question, f"<think>guava</think>{text}", "complete", run=None)
    store.rename(key, "soursop 韓国")
    if is_indexed:
        assert len(found(store, "kumquat")) == 3
        assert found(store, "韓国") == [None]
    parts = [
        b"kumq",
        b"mango",
        "회의".encode(),
        "北京".encode(),
        "ทุเ".encode(),
        b"rambu",
        b"duria",
        b"carambo",
        b"sours",
    ]
    parts += ["韓国".encode(), b"guava"]
    assert [part for part in parts if part not in content(store)] == []
    delete_forever(store, key, forget_nothing)
    assert [part for part in parts if part in content(store)] == []
    assert len(found(store, "other words")) == 100


SCRIPT = """
import sys
sys.modules["pysqlite3"] = None
from pathlib import Path
from models.sqlite import sqlite3
from sessions.store import Store
assert sqlite3.__name__ == "sqlite3", sqlite3
store = Store(Path(sys.argv[1]))
print(len(store.search("mangosteen").hits), len(store.search("北京").hits))
store.purge(sys.argv[2])
print(len(store.search("mangosteen").hits), len(store.search("apple").hits))
store.close()
"""


def test_another_sqlite_reads_the_index_and_deletes_as_well(store: Store) -> None:
    """The one that Python brings, in a process of its own; what it leaves is readable here."""
    for n in range(50):
        add(store, f"apple {n}")
    key = add(store, " ".join(WORDS))
    assert len(found(store, "mangosteen")) == 1
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(store.path.parent), key],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1", "1", "0", "20"]
    store.db.fold_log()
    assert [word for word in WORDS if word.encode() in content(store)] == []
    assert len(found(store, "apple")) == 50


@settings(max_examples=30)
@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=40)), min_size=1, max_size=6))
def test_deleting_takes_out_exactly_what_was_put_in(texts: list[tuple[str, str]]) -> None:
    """Of any texts and titles nothing is left in the index, and it passes its own check."""
    with tempfile.TemporaryDirectory() as folder, closing(Store(Path(folder))) as store:
        keys = [
            add(store, *(part.encode("utf-8", "replace").decode() for part in (text,)), title="t") for text, _ in texts
        ]
        store.search("x")
        for key, (_, title) in zip(keys, texts, strict=True):
            store.rename(key, title.encode("utf-8", "replace").decode())
        store.search("x")
        store.purge(*keys)
        assert vocabulary(store) == []
        with store.db.transaction() as db:
            db.execute("INSERT INTO search (search) VALUES ('integrity-check')")


def test_a_wipe_that_was_cut_short_is_made_up_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the deletion and the merging, the next look at the index takes the words out."""
    for n in range(20):
        add(store, f"apple {n}")
    key = add(store, "kumquat")
    store.search("x")

    def killed() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store.words, "wipe", killed)
        with pytest.raises(KeyboardInterrupt):
            store.purge(key)
    assert b"kumquat" in content(store)
    with closing(Store(store.path.parent)) as other:
        other.words.catch_up()
        assert b"kumquat" not in content(other)


def test_ids_that_are_given_out_again_are_indexed_again(store: Store) -> None:
    """The newest conversation is deleted and another one gets its message's id."""
    add(store, "apple")
    key = add(store, "pear")
    (gone,) = found(store, "pear")
    store.purge(key)
    assert ask(store, "plum") == gone
    assert found(store, "plum") == [gone]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE search_data SET block = x'00' WHERE id > 10",
        "DELETE FROM search_data",
        "DELETE FROM search_data WHERE id > 10",
        "DROP TABLE search",
        "UPDATE search_state SET format = 99",
    ],
)
def test_an_index_that_is_damaged_is_made_anew(store: Store, damage: str) -> None:
    """A search finds everything again, and a deletion leaves nothing behind."""
    key = add(store, "kumquat")
    other = ask(store, "apple")
    store.search("x")
    with store.db.transaction() as db:
        db.execute(damage)
    with closing(Store(store.path.parent)) as damaged:
        assert found(damaged, "apple") == [other]
    with store.db.transaction() as db:
        db.execute(damage)
    with closing(Store(store.path.parent)) as damaged:
        damaged.purge(key)
        assert b"kumquat" not in content(damaged)
        assert found(damaged, "apple") == [other]


def test_without_full_text_search_only_searching_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversations are made and deleted; the sentence has a way out."""

    def fail(_db: object) -> None:
        raise StoreError("no full-text search")

    monkeypatch.setattr("sessions.wordindex._recreate", fail)
    key = add(store, "kumquat")
    with pytest.raises(StoreError, match="no full-text search"):
        store.search("kumquat")
    store.purge(key)
    assert b"kumquat" not in content(store)
