import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from models.engine import TokenRun, TurnStats
from models.presets import SamplingChoice
from sessions.conversation import Draft, ModelRef, Version
from sessions.errors import BadRequest, SessionNotFound, StoreError
from sessions.store import Store
from tests.sessions.helpers import Clock, crash_copy

ROOT = Path(__file__).parents[2]
RUN = TokenRun((1, 2**32 - 1, 0, 7), 1, 3)
TINY = ModelRef("aa", "tiny", "/models/tiny.gguf", 9)
OTHER = ModelRef("bb", "other", "/models/other.gguf", 8)


def others_may(path: Path) -> int:
    """Return the permission bits of group and others."""
    return stat.S_IMODE(path.stat().st_mode) & 0o077


def test_what_is_written_is_read_back(store: Store) -> None:
    """Sessions and messages come back as the values they were."""
    stats = TurnStats(ttft_s=0.5, prefilled_tokens=3, miss_reason="no file")
    session = store.create_session(system="Be brief.")
    question = store.add_question(session.id, "Wie geht's?\0\n", title="Wie geht's?")
    answer = store.add_answer(question, "Gut 👍", "cut", run=RUN, stats=stats, runs={question.id: RUN}, model=TINY)
    system, asked, answered = store.messages(session.id)
    assert (system.role, system.text, system.run) == ("system", "Be brief.", None)
    assert (asked.text, asked.run, asked.status) == ("Wie geht's?\0\n", RUN, "complete")
    assert answered == answer
    read = store.session(session.id)
    assert (read.system, read.title, read.task, read.model) == (
        "Be brief.",
        "Wie geht's?",
        "Wie geht's?",
        TINY,
    )


def test_the_title_comes_from_the_first_question_only(store: Store) -> None:
    """Later questions leave title and task alone, a rename leaves the task alone."""
    session = store.create_session()
    store.add_question(session.id, "first", title="first")
    store.add_question(session.id, "second", title="second")
    renamed = store.rename(session.id, "mine")
    assert (renamed.title, renamed.task) == ("mine", "first")


def test_summaries_count_and_order(store: Store) -> None:
    """The sidebar has the last used first, without the system prompt in the count and without the trash."""
    old, new, gone = (store.create_session(system="s") for _ in range(3))
    question = store.add_question(old.id, "x", title="x")
    store.add_answer(question, "y", "complete", run=RUN, runs={question.id: RUN})
    store.set_trashed(gone.id, trashed=True)
    summaries = store.summaries()
    assert [(row.session.id, row.n_messages, row.n_tokens) for row in summaries] == [
        (old.id, 2, 8),
        (new.id, 0, 0),
    ]
    assert [row.session.id for row in store.summaries(trash=True)] == [gone.id]
    assert len(store.summaries(limit=1)) == 1


def test_the_trash_can_be_left(store: Store) -> None:
    """Trashing sets the time, restoring clears it."""
    session = store.create_session()
    assert store.set_trashed(session.id, trashed=True).trashed_at is not None
    assert store.set_trashed(session.id, trashed=False).trashed_at is None


def test_a_prefix_finds_one_conversation(tmp_path: Path) -> None:
    """A unique beginning of an id is enough; an ambiguous, unknown or empty one is refused."""
    with closing(Store(tmp_path, clock=Clock())) as store:
        one, other = store.create_session().id, store.create_session().id
        unique = next(one[:n] for n in range(len(one)) if not other.startswith(one[:n]))
        assert store.find(unique.upper()).id == one
        with pytest.raises(BadRequest, match="More than one"):
            store.find(one[:10])
        for unknown in ("zzz", "", "%", "  "):
            with pytest.raises(SessionNotFound):
                store.find(unknown)


def test_kv_tips_keep_the_newest_of_each_model(store: Store) -> None:
    """A conversation has one tip a fingerprint; the turn's stats learn what was written."""
    session = store.create_session()
    question = store.add_question(session.id, "q", title="q")
    answer = store.add_answer(question, "a", "complete", run=None, stats=TurnStats(ttft_s=1.0))
    for fingerprint, tip in (("f1", "t1"), ("f2", "t2"), ("f1", "t3")):
        store.record_kv(session.id, answer.id, fingerprint=fingerprint, tip=tip)
    assert store.tips() == ([], ["t2", "t3"])
    store.record_kv_bytes(answer.id, 9)
    assert store.messages(session.id)[1].stats == TurnStats(ttft_s=1.0, kv_bytes_written=9)


def test_kv_tips_belong_to_conversations_that_are_there(store: Store) -> None:
    """By conversation, those in the trash too; deleted ones have none."""
    kept, trashed, gone = (store.create_session() for _ in range(3))
    for session, fingerprint in ((kept, "f1"), (kept, "f2"), (trashed, "f1"), (gone, "f1")):
        store.record_kv(session.id, 1, fingerprint=fingerprint, tip=f"{session.id} {fingerprint}")
    store.set_trashed(trashed.id, trashed=True)
    store.purge(gone.id)
    assert store.kv_tips() == {
        kept.id: [("f1", f"{kept.id} f1"), ("f2", f"{kept.id} f2")],
        trashed.id: [("f1", f"{trashed.id} f1")],
    }


def test_purging_leaves_no_trace_of_the_text(store: Store) -> None:
    """After a purge the words are in no file of the data folder; the KV tips wait to be forgotten."""
    session = store.create_session(system="kumquat")
    question = store.add_question(session.id, "kumquat " * 2000, title="kumquat")
    store.add_answer(question, "kumquat", "complete", run=RUN, stats=TurnStats())
    store.record_kv(session.id, 1, fingerprint="f", tip="t")
    (store.path.parent / "chat.db.v1.bak").write_bytes(b"kumquat")
    store.purge(session.id)
    files = [path for path in store.path.parent.rglob("*") if path.is_file()]
    assert [path for path in files if b"kumquat" in path.read_bytes()] == []
    assert store.tips() == (["t"], [])
    store.forget_dead_tips()
    assert store.tips() == ([], [])
    with pytest.raises(SessionNotFound):
        store.purge(session.id)


def test_a_failing_transaction_changes_nothing(store: Store) -> None:
    """An error in the middle rolls everything back, and the store goes on working."""
    session = store.create_session()
    question = store.add_question(session.id, "q", title="q")
    with pytest.raises(StoreError):
        store.add_answer(question, "x", "complete", run=RUN, runs={12345: RUN})
    assert store.messages(session.id) == [question]
    store.add_question(session.id, "y", title="y")


def test_what_a_killed_process_stored_is_there(store: Store, tmp_path: Path) -> None:
    """A copy of the files, taken without closing, has every message."""
    session = store.create_session()
    store.add_question(session.id, "saved", title="saved")
    with closing(Store(crash_copy(store, tmp_path))) as reopened:
        assert [message.text for message in reopened.messages(session.id)] == ["saved"]


def test_two_processes_share_a_store(store: Store) -> None:
    """What one connection stores, another one sees and adds to."""
    session = store.create_session()
    with closing(Store(store.path.parent)) as other:
        other.add_question(session.id, "from there", title="t")
        store.add_question(session.id, "from here", title="t")
        assert len(other.messages(session.id)) == 2


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    """Even under umask 0 every file is 0600 and every folder 0700; a file opened up is closed again."""
    old = os.umask(0)
    try:
        for _ in range(2):
            with closing(Store(tmp_path / "new" / "data")) as store:
                store.create_session()
                paths = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
                assert {path.name: others_may(path) for path in paths if others_may(path)} == {}
            store.path.chmod(0o666)
    finally:
        os.umask(old)


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"no database " * 500, "is not a database"), (b"", None), (b"SQLite", "not a")]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes, sentence: str | None) -> None:
    """Foreign content is a sentence with a way out and stays as it is; an empty file becomes a store."""
    (tmp_path / "chat.db").write_bytes(content)
    if sentence is None:
        Store(tmp_path).close()
        return
    with pytest.raises(StoreError, match=rf"{sentence}.*--data-dir"):
        Store(tmp_path)
    assert (tmp_path / "chat.db").read_bytes() == content


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A real database with other tables is left alone."""
    with closing(sqlite3.connect(tmp_path / "chat.db")) as foreign:
        foreign.execute("CREATE TABLE notes (x)")
    with pytest.raises(StoreError, match="belongs to another program"):
        Store(tmp_path)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    """A file where the folder should be names itself and a way out."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"file.*--data-dir"):
        Store(tmp_path / "file" / "data")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_a_sentence(tmp_path: Path) -> None:
    """Without the right to write, opening fails with a way out."""
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="--data-dir"):
        Store(tmp_path)


FILL_UP = """
import resource, sys
from pathlib import Path
from sessions.errors import StoreError
from sessions.store import Store
store = Store(Path(sys.argv[1]))
session = store.create_session()
print(session.id)
limit = store.path.with_name("chat.db-wal").stat().st_size + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    for n in range(1000):
        store.add_question(session.id, f"message {n} " * 50, title="t")
        print(n, flush=True)
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
@pytest.mark.parametrize("limit", [25_000, 100_000])
def test_a_full_disk_loses_nothing_that_was_confirmed(tmp_path: Path, limit: int) -> None:
    """When no more can be written, that is said, and every message reported as saved is there."""
    done = subprocess.run(
        [sys.executable, "-c", FILL_UP, str(tmp_path), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    session_id, *confirmed, sentence = done.stdout.splitlines()
    assert "chat.db" in sentence
    assert "--data-dir" in sentence or "free some space" in sentence
    with closing(Store(tmp_path)) as store:
        assert len(store.messages(session_id)) >= len(confirmed) > 1
        assert store.db.rows("PRAGMA integrity_check") == [{"integrity_check": "ok"}]


def test_durability_is_switched_on(store: Store) -> None:
    """The pragmas that promises depend on are in force."""
    names = ("journal_mode", "synchronous", "foreign_keys", "secure_delete", "trusted_schema", "page_size")
    values = [next(iter(store.db.rows(f"PRAGMA {name}")[0].values())) for name in names]
    assert values == ["wal", 2, 1, 1, 0, 2048]


def test_runs_belong_to_the_conversations_model(store: Store) -> None:
    """Another model has no runs yet; with the first one back, its own are there again."""
    session = store.create_session()
    question = store.add_question(session.id, "q", title="q")
    store.add_answer(question, "a", "complete", run=RUN, runs={question.id: RUN}, model=TINY)
    assert store.set_model(session.id, OTHER).model == OTHER
    assert [message.run for message in store.messages(session.id)] == [None, None]
    other = TokenRun((5,), 0, 1)
    store.add_runs(session.id, {question.id: other}, OTHER)
    assert [message.run for message in store.messages(session.id)] == [other, None]
    store.set_model(session.id, TINY)
    assert [message.run for message in store.messages(session.id)] == [RUN, RUN]
    assert store.models() == [TINY, OTHER]


def test_a_conversation_gets_its_model_with_its_first_tokens(store: Store) -> None:
    """What was tokenized without a model becomes that of the first one; a model that moved has a new path."""
    session = store.create_session()
    question = store.add_question(session.id, "q", title="q")
    store.add_runs(session.id, {question.id: RUN}, None)
    assert store.session(session.id).model is None
    moved = ModelRef(TINY.weights, "tiny", "/elsewhere/tiny.gguf", 9)
    store.add_answer(question, "a", "complete", run=RUN, model=TINY)
    store.add_answer(question, "b", "complete", run=RUN, model=moved)
    assert store.session(session.id).model == moved
    assert [message.run for message in store.messages(session.id)] == [RUN, RUN]


def test_messages_form_a_tree(store: Store) -> None:
    """A version stands beside the first; showing a branch goes to its newest message, and nothing is lost."""
    session = store.create_session(system="s")
    first = store.add_question(session.id, "first", title="t")
    answer = store.add_answer(first, "one", "complete", run=None)
    follow_up = store.add_question(session.id, "more", title="t")
    edited = store.add_question(session.id, "edited", title="t", version_of=first)
    second = store.add_answer(edited, "two", "complete", run=None)
    assert [message.text for message in store.messages(session.id)] == ["s", "edited", "two"]
    assert store.versions(session.id) == {
        first.id: Version(1, (first.id, edited.id)),
        edited.id: Version(2, (first.id, edited.id)),
    }
    store.show_branch(session.id, first.id)
    assert [message.id for message in store.messages(session.id)][1:] == [first.id, answer.id, follow_up.id]
    store.show_branch(session.id, second.id)
    assert [message.text for message in store.messages(session.id)] == ["s", "edited", "two"]
    assert len(store.tree(session.id)) == 6
    with pytest.raises(BadRequest):
        store.show_branch(store.create_session().id, first.id)


def test_a_long_conversation_is_deleted_as_a_whole(store: Store) -> None:
    """The chain of messages is no chain of deletions: SQLite would follow it a thousand deep."""
    session = store.create_session()
    with store.db.transaction() as db:
        for n in range(1, 2002):
            db.execute(
                "INSERT INTO messages (id, session_id, parent_id, role, status, created_at, text) "
                "VALUES (?, ?, ?, 'user', 'complete', 0, 'x')",
                [n, session.id, n - 1 or None],
            )
        db.execute("UPDATE sessions SET head_id = 2001 WHERE id = ?", [session.id])
    assert len(store.messages(session.id)) == 2001
    store.purge(session.id)
    assert store.messages(session.id) == []


def test_choices_of_a_conversation_are_kept(store: Store) -> None:
    """Sampling, reasoning, context, pin, archive and tags come back as they were set."""
    session = store.create_session()
    choice = SamplingChoice("precise", {"temperature": 0.1, "stop": ("a", "b")})
    store.set_sampling(session.id, choice)
    store.set_reasoning(session.id, "strip")
    store.set_context(session.id, 4096)
    store.set_pinned(session.id, pinned=True)
    store.set_archived(session.id, archived=True)
    store.set_task(session.id, "the task")
    kept = store.set_tags(session.id, ["b", "a", "a"])
    assert (kept.sampling, kept.reasoning, kept.n_ctx, kept.task) == (choice, "strip", 4096, "the task")
    assert (kept.tags, kept.pinned_at is None, kept.archived_at is None) == (("a", "b"), False, False)
    assert store.set_sampling(session.id, None).sampling is None


def test_drafts_are_kept(store: Store) -> None:
    """A draft stays until it is emptied or its conversation deleted."""
    session, other = store.create_session(), store.create_session()
    store.keep_draft(session.id, Draft("half a thou"))
    store.keep_draft(other.id, Draft("x"))
    store.keep_draft(session.id, Draft("half a thought"))
    store.keep_draft(other.id, Draft(""))
    assert store.drafts() == {session.id: "half a thought"}
    store.purge(session.id)
    assert store.drafts() == {}
