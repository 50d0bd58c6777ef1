from itertools import pairwise

import pytest

from models.engine import Prepared
from models.fake import FakeEngine
from models.glue import Glue
from models.tokenruns import tokenize_entries
from sessions.conversation import Message, ModelRef
from sessions.conversations import Conversations
from sessions.errors import BadRequest, SessionClosed
from sessions.history import prompt_messages, prompt_of
from sessions.store import Store
from tests.sessions.helpers import GREEDY, drain, make_manager

MODEL = ModelRef("aa", "tiny", "", 1)
WITH_DEFAULT = Glue(
    bos_token="",
    first_user="[system]default[/][user]",
    answer_user="[user]",
    user_close="[/]",
    assistant="[assistant]",
    past_assistant="[assistant]",
    assistant_close="[/]",
    user_user="[user]",
    first_system="[system]",
    system_close="[/]",
    system_user="[user]",
)
MERGED = Glue(
    bos_token="",
    first_user="<user>",
    answer_user="<user>",
    user_close="</>",
    assistant="<model>",
    past_assistant="<model>",
    assistant_close="</>",
    user_user="<user>",
    system_refusal="it has none",
)


def tokenize(text: str, special: bool) -> list[int]:
    """Return one id for each character."""
    return [ord(char) + 1000 * special for char in text]


def read(store: Store, session_id: str, glue: Glue) -> list[Message]:
    """Tokenize what has no tokens yet, as an engine does with the next prompt; return the prompt's messages."""
    messages = prompt_messages(store.messages(session_id))
    runs = tokenize_entries(prompt_of(messages, "keep").entries, glue, tokenize, None)
    new = {message.id: run for message, run in zip(messages, runs, strict=True) if message.run is None}
    store.add_runs(session_id, new, MODEL)
    return prompt_messages(store.messages(session_id))


def talk(store: Store, glue: Glue, *questions: str, system: str | None = None) -> str:
    """Store a conversation that was tokenized turn by turn; a question that begins with ! could not be answered."""
    key = store.create_session(system=system).id
    for question in questions:
        asked = store.add_question(key, question, title=question)
        if question.startswith("!"):
            store.add_answer(asked, "", "failed", run=None)
            messages = [*prompt_messages(store.messages(key)), asked]
            runs = tokenize_entries(prompt_of(messages, "keep").entries, glue, tokenize, None)
            store.add_runs(key, {asked.id: runs[-1]}, MODEL)
        else:
            store.add_answer(asked, question.upper(), "complete", run=None)
            read(store, key, glue)
    return key


@pytest.mark.parametrize("glue", [WITH_DEFAULT, MERGED])
@pytest.mark.parametrize("system", [None, "old"])
@pytest.mark.parametrize(
    "questions", [("one",), ("one", "two"), ("!bad", "one", "two"), ("one", "!bad", "two"), ("!bad",)]
)
def test_the_fork_has_the_tokens_of_its_own_prompt(
    store: Store, glue: Glue, system: str | None, questions: tuple[str, ...]
) -> None:
    """Whatever is kept and whatever is tokenized anew: together they are what the new prompt is tokenized to."""
    key = talk(store, glue, *questions, system=system)
    fork = Conversations(store).change_system(key, "new")
    messages = read(store, fork.id, glue)
    fresh = [Message(m.id, m.session_id, m.role, m.text, m.status, None, None, 0.0) for m in messages]
    expected = tokenize_entries(prompt_of(fresh, "keep").entries, glue, tokenize, None)
    assert tuple(message.run for message in messages) == expected
    for message in store.messages(fork.id):  # also of those that another branch may ask again
        before = [m for m in store.messages(fork.id) if m.id < message.id]
        if message.role == "user" and message.run:
            asked = [*prompt_messages(before), Message(0, fork.id, "user", message.text, "complete", None, None, 0.0)]
            assert tokenize_entries(prompt_of(asked, "keep").entries, glue, tokenize, None)[-1] == message.run


def test_bodies_keep_their_tokens(store: Store) -> None:
    """With a system prompt before, only the new one has to be read; without, the first question too."""
    key = talk(store, WITH_DEFAULT, "one", "two", system="old")
    fork = Conversations(store).change_system(key, "new")
    assert [m.run is None for m in store.messages(fork.id)] == [True, False, False, False, False]
    key = talk(store, WITH_DEFAULT, "one", "two")
    fork = Conversations(store).change_system(key, "new")
    assert [m.run is None for m in store.messages(fork.id)] == [True, True, False, False, False]


def test_the_origin_stays_as_it_is(store: Store) -> None:
    """Messages, tokens and prompt of the first conversation are those it had; the fork says where it is from."""
    key = talk(store, WITH_DEFAULT, "one", system="old")
    before, session = store.messages(key), store.session(key)
    fork = Conversations(store).change_system(key, "new\r\n")
    assert (store.messages(key), store.session(key)) == (before, session)
    assert (fork.forked_from, fork.system, fork.title) == (key, "new\n", "one (2)")
    copied = store.messages(fork.id)
    assert [m.text for m in copied] == ["new\n", "one", "ONE"]
    assert all(after.parent_id == parent.id for parent, after in pairwise(copied))


def test_no_fork_without_need(store: Store) -> None:
    """An empty conversation gets the prompt itself, and the same prompt changes nothing."""
    conversations = Conversations(store)
    key = conversations.new().id
    assert conversations.change_system(key, "new").id == key
    assert conversations.change_system(key, "new").id == key
    assert conversations.change_system(key, "other").id != key
    with pytest.raises(BadRequest, match="empty"):
        conversations.change_system(key, " ")
    closed = conversations.mark_done(conversations.new().id)
    with pytest.raises(SessionClosed):
        conversations.change_system(closed.id, "new")


async def test_the_next_turn_goes_on_from_there(store: Store) -> None:
    """An engine takes the fork: everything but the prompt and the new question keeps its tokens."""
    engine = FakeEngine()
    manager = make_manager(store, engine)
    key = manager.new(system="old").id
    for text in ("one", "two"):
        await drain(manager.send(key, text, GREEDY))
    fork = manager.change_system(key, "new")
    events = await drain(manager.send(fork.id, "three", GREEDY))
    prompt = engine.prompts[-1].entries
    assert [entry.run is None for entry in prompt] == [True, False, False, False, False, True]
    assert [entry.text for entry in prompt][::5] == ["new", "three"]
    assert any(isinstance(event, Prepared) for event in events)
    assert all(message.run for message in manager.messages(fork.id))
