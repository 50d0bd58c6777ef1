import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import TokenRun
from sessions.conversation import Message, ModelRef, Session
from sessions.conversations import Conversations
from sessions.errors import BadRequest
from sessions.journal import Journal, Partial, parse, recover
from sessions.store import Store
from tests.sessions.helpers import Clock

ROOT = Path(__file__).parents[2]
RUN = TokenRun((9, 1, 8), 1, 2)
MODEL = ModelRef("aa", "tiny", "/tiny.gguf", 5)


@pytest.fixture
def session(store: Store) -> Session:
    """An empty conversation."""
    return store.create_session()


@pytest.fixture
def question(store: Store, session: Session) -> Message:
    """Its question, which waits for an answer."""
    return store.add_question(session.id, "why?", title="why?")


def write(store: Store, question: Message, *pieces: str, clock: Clock | None = None) -> None:
    """Journal an answer and leave it, as a process does that is killed."""
    with Journal(store.journal_dir, question.session_id, monotonic=clock or Clock(step=1)) as journal:
        journal.begin(Partial(question.session_id, question.id, {question.id: RUN}, (7,), (8,), MODEL))
        for piece in pieces:
            journal.add(piece, tuple(piece.encode()))


def test_an_abandoned_answer_is_recovered(store: Store, question: Message) -> None:
    """It becomes a message with status interrupted and its exact tokens, and the question gets its own."""
    write(store, question, "be", "cause")
    (answer,) = recover(store)
    assert (answer.text, answer.status) == ("because", "interrupted")
    assert answer.run == TokenRun((7, *b"because", 8), 1, 8)
    asked, answered = store.messages(question.session_id)
    assert (asked.run, answered) == (RUN, answer)
    assert store.session(question.session_id).model == MODEL
    assert list(store.journal_dir.glob("*.jsonl")) == []


def test_recovering_twice_changes_nothing(store: Store, question: Message) -> None:
    """Killed after the answer was stored but before the journal was deleted, the answer is not doubled."""
    write(store, question, "because")
    path = next(store.journal_dir.glob("*.jsonl"))
    content = path.read_bytes()
    recover(store)
    path.write_bytes(content)
    assert recover(store) == []
    assert len(store.messages(question.session_id)) == 2


def test_a_living_writer_is_left_alone(store: Store, question: Message) -> None:
    """A locked journal is not touched, and nobody else can write to its conversation."""
    with Journal(store.journal_dir, question.session_id, monotonic=Clock(step=1)) as journal:
        journal.begin(Partial(question.session_id, question.id, {}, (), ()))
        journal.add("be", (1, 2))
        assert recover(store) == []
        with pytest.raises(BadRequest, match="another window"):
            Journal(store.journal_dir, question.session_id, monotonic=Clock())
        assert journal.path.exists()
    assert [message.text for message in recover(store)] == ["be"]


def test_a_deleted_conversation_stays_deleted(store: Store, question: Message) -> None:
    """The journal of a conversation that is gone is dropped."""
    write(store, question, "because")
    store.purge(question.session_id)
    assert recover(store) == []
    assert list(store.journal_dir.glob("*.jsonl")) == []


def test_it_writes_at_most_four_times_a_second(store: Store, question: Message) -> None:
    """Pieces in between are collected; what is pending when it closes is written too."""
    write(store, question, *"abcdefghij", clock=Clock(step=0.05))
    lines = next(store.journal_dir.glob("*.jsonl")).read_text().splitlines()
    deltas = [json.loads(line)["text"] for line in lines[1:]]
    assert "".join(deltas) == "abcdefghij"
    assert len(deltas) <= 4


def test_a_journal_without_a_header_is_dropped(store: Store, question: Message) -> None:
    """Killed while the header was written, there is nothing to recover; the question stays."""
    (store.journal_dir / f"{question.session_id}.jsonl").write_bytes(b'{"version":1,"sess')
    assert recover(store) == []
    assert store.messages(question.session_id) == [question]


@pytest.mark.parametrize(
    "line", [b'{"text":"x"}', b'{"text":"x","ids":[-1]}', b'{"text":"x","ids":["a"]}', b"[]", b"\xff", b"7"]
)
def test_reading_ends_at_a_damaged_line(store: Store, question: Message, line: bytes) -> None:
    """What stands before a line that is no delta is kept, what follows is not."""
    write(store, question, "good")
    content = next(store.journal_dir.glob("*.jsonl")).read_bytes()
    partial = parse(content + line + b'\n{"text":"bad","ids":[1]}\n')
    assert partial
    assert (partial.text, partial.ids) == ("good", tuple(b"good"))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4), st.data())
def test_a_torn_journal_gives_a_prefix(pieces: list[str], data: st.DataObject) -> None:
    """Cut anywhere behind the header, the text is a beginning of what was said, with its tokens."""
    header = {"session": "s", "question": 1, "runs": [], "opening": [], "closing": []}
    deltas = [{"text": piece, "ids": list(piece.encode())} for piece in pieces]
    lines = [json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in (header, *deltas)]
    content = b"".join(lines)
    cut = data.draw(st.integers(len(lines[0]), len(content)))
    partial = parse(content[:cut])
    assert partial
    assert "".join(pieces).startswith(partial.text)
    assert bytes(partial.ids).decode() == partial.text


@given(st.binary(max_size=200))
def test_any_bytes_can_be_parsed(content: bytes) -> None:
    """No content makes the reader fail."""
    parse(content)


HOLD = """
import sys, time
from pathlib import Path
from sessions.journal import Journal
journal = Journal(Path(sys.argv[1]), sys.argv[2], monotonic=time.monotonic)
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_dies_with_its_process(store: Store, session: Session) -> None:
    """While another process lives its conversation is taken; killed, it is free at once."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.journal_dir), session.id],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(BadRequest):
            Journal(store.journal_dir, session.id, monotonic=Clock())
        holder.kill()
        holder.wait()
        Journal(store.journal_dir, session.id, monotonic=Clock()).close()


def test_a_full_disk_ends_only_the_journalling(
    store: Store, question: Message, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer goes on when its journal cannot be written; its own transaction decides whether it is saved."""

    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with Journal(store.journal_dir, question.session_id, monotonic=Clock(step=1)) as journal:
        journal.begin(Partial(question.session_id, question.id, {}, (), ()))
        monkeypatch.setattr("sessions.journal.os.write", refuse)
        journal.add("text", (1,))
        journal.add("more", (2,))


def test_others_can_read_along(store: Store, question: Message) -> None:
    """While an answer is written, its text so far is there for everybody; before and after there is none."""
    conversations = Conversations(store)
    assert conversations.answer_elsewhere(question.session_id) is None
    with Journal(store.journal_dir, question.session_id, monotonic=Clock(step=1)) as journal:
        journal.begin(Partial(question.session_id, question.id, {}, (), ()))
        journal.add("so far", (1, 2))
        found = conversations.answer_elsewhere(question.session_id)
        assert found is not None
        assert (found.question_id, found.text) == (question.id, "so far")
        journal.discard()
    assert conversations.answer_elsewhere(question.session_id) is None


def test_what_others_write_is_noticed(store: Store) -> None:
    """The version changes with what another connection writes, and not with the own writes."""
    conversations = Conversations(store)
    before = conversations.version
    store.create_session()
    assert conversations.version == before
    with closing(Store(store.path.parent)) as other:
        other.create_session()
    assert conversations.version != before
