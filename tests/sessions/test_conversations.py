import pytest

from models.engine import TokenRun
from models.presets import SamplingChoice
from sessions.conversation import Message, ModelRef
from sessions.conversations import Conversations
from sessions.errors import BadRequest, SessionClosed
from sessions.store import Store

RUN = TokenRun((1, 2, 3), 1, 2)
MODEL = ModelRef("aa", "tiny", "", 1)


@pytest.fixture
def conversations(store: Store) -> Conversations:
    """The verbs over an empty store."""
    return Conversations(store)


def talk(store: Store, *turns: str, system: str | None = None) -> list[Message]:
    """Store a conversation whose messages are all tokenized; return its messages."""
    session = store.create_session(system=system)
    for turn in turns:
        question = store.add_question(session.id, turn, title=turn)
        runs = {message.id: RUN for message in store.messages(session.id) if message.run is None}
        store.add_answer(question, turn.upper(), "complete", run=RUN, runs=runs, model=MODEL)
    return store.messages(session.id)


def texts(messages: list[Message]) -> list[str]:
    """Return what the messages say."""
    return [message.text for message in messages]


def test_a_fork_has_text_tokens_and_choices(store: Store, conversations: Conversations) -> None:
    """A fork begins as a copy, goes its own way, and its origin stays."""
    messages = talk(store, "one", "two", system="s")
    key = messages[0].session_id
    conversations.tag(key, add=["work"])
    conversations.choose_sampling(key, "precise")
    fork = conversations.fork(key)
    assert (fork.forked_from, fork.title, fork.model, fork.tags) == (key, "one (2)", MODEL, ("work",))
    assert fork.sampling == SamplingChoice("precise")
    copied = conversations.messages(fork.id)
    assert [(m.text, m.run) for m in copied] == [(m.text, m.run) for m in messages]
    store.add_question(fork.id, "three", title="")
    assert texts(conversations.messages(key)) == ["s", "one", "ONE", "two", "TWO"]


def test_a_fork_ends_where_it_is_told(store: Store, conversations: Conversations) -> None:
    """Through a message, with the system prompt only; a message of another branch is refused."""
    messages = talk(store, "one", "two", system="s")
    key = messages[0].session_id
    assert texts(conversations.messages(conversations.fork(key, through=messages[2].id).id)) == ["s", "one", "ONE"]
    assert texts(conversations.messages(conversations.fork(key, system_only=True).id)) == ["s"]
    with pytest.raises(BadRequest, match="no message"):
        conversations.fork(key, through=99_999)


def test_turns_can_be_left_out(store: Store, conversations: Conversations) -> None:
    """A turn goes with its answer; what now stands in another place is tokenized again, the rest keeps its tokens."""
    messages = talk(store, "one", "two", "three")
    key = messages[0].session_id
    middle = conversations.messages(conversations.fork(key, without=[messages[2].id]).id)
    assert texts(middle) == ["one", "ONE", "three", "THREE"]
    assert [m.run for m in middle] == [RUN, RUN, RUN, RUN]
    first = conversations.messages(conversations.fork(key, without=[messages[0].id]).id)
    assert texts(first) == ["two", "TWO", "three", "THREE"]
    assert [m.run for m in first] == [None, RUN, RUN, RUN]  # the first message opens the conversation


def test_a_failed_question_stands_before_nothing(store: Store, conversations: Conversations) -> None:
    """With the turn before it left out, what follows a question that is in no prompt opens the conversation."""
    messages = talk(store, "one")
    key = messages[0].session_id
    store.mark_failed(store.add_question(key, "too long", title="").id)
    question = store.add_question(key, "two", title="")
    store.add_answer(question, "TWO", "complete", run=RUN, runs={question.id: RUN}, model=MODEL)
    fork = conversations.messages(conversations.fork(key, without=[messages[0].id]).id)
    assert [(m.text, m.run) for m in fork] == [("too long", None), ("two", None), ("TWO", RUN)]


def test_the_last_turn_can_be_taken_back(store: Store, conversations: Conversations) -> None:
    """Its question comes back, the branch is kept; without a turn there is nothing to take back."""
    messages = talk(store, "one", "two", system="s")
    key = messages[0].session_id
    assert conversations.undo(key) == "two"
    assert conversations.undo(key) == "one"
    assert texts(conversations.messages(key)) == ["s"]
    with pytest.raises(BadRequest, match="no turn"):
        conversations.undo(key)
    conversations.show_branch(key, messages[-1].id)
    assert texts(conversations.messages(key)) == ["s", "one", "ONE", "two", "TWO"]


def test_a_closed_conversation_keeps_its_branch(store: Store, conversations: Conversations) -> None:
    """Done conversations are for reading."""
    messages = talk(store, "one")
    key = messages[0].session_id
    conversations.mark_done(key)
    for change in (lambda: conversations.undo(key), lambda: conversations.show_branch(key, messages[0].id)):
        with pytest.raises(SessionClosed):
            change()


def test_tags_are_short_words(store: Store, conversations: Conversations) -> None:
    """Case and a leading # do not matter; sentences, control characters and unknown tags are refused."""
    key = store.create_session().id
    assert conversations.tag(key, add=["#Work", "회의"]).tags == ("work", "회의")
    assert conversations.tag(key, remove=["WORK"]).tags == ("회의",)
    for bad in ("", "two words", "a\x1bb", "x" * 41, "\u202e"):
        with pytest.raises(BadRequest, match="one word"):
            conversations.tag(key, add=[bad])
    with pytest.raises(BadRequest, match="no tag"):
        conversations.tag(key, remove=["work"])


def test_an_unknown_preset_is_refused(store: Store, conversations: Conversations) -> None:
    """The known ones are named; None takes the choice back."""
    key = store.create_session().id
    with pytest.raises(BadRequest, match="precise, balanced, creative"):
        conversations.choose_sampling(key, "wild")
    assert conversations.choose_sampling(key, "creative").sampling == SamplingChoice("creative")
    assert conversations.choose_sampling(key, None).sampling is None


def test_a_task_line_is_one_line(store: Store, conversations: Conversations) -> None:
    """Titles and task lines are cut to their length."""
    key = store.create_session().id
    assert conversations.set_task(key, "first\nsecond").task == "first"
    assert len(conversations.rename(key, "x" * 10_000).title) == 80
    with pytest.raises(BadRequest):
        conversations.set_task(key, " \n ")


def test_another_thread_has_a_connection_of_its_own(store: Store, conversations: Conversations) -> None:
    """`beside` opens the same conversations; what is expired there is gone here, and closing it leaves this open."""
    key = talk(store, "one")[0].session_id
    beside = conversations.beside()
    assert texts(beside.messages(key)) == ["one", "ONE"]
    conversations.trash(key)
    trashed_at = store.session(key).trashed_at or 0.0
    assert beside.expire(trashed_at) == []
    assert beside.expire(trashed_at + 31 * 86_400) == [key]
    beside.close()
    assert not store.has_session(key)
