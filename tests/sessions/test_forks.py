import pytest

from sessions.conversation import Session
from sessions.conversations import Conversations
from sessions.forks import numbered
from sessions.store import Store


def asked(store: Store, title: str) -> Session:
    """A conversation with a question."""
    session = store.create_session(system="s")
    store.add_question(session.id, title, title=title)
    return store.session(session.id)


def test_forks_are_numbered(store: Store) -> None:
    """Each has the next free number, forks of forks too; the origin keeps its title."""
    conversations = Conversations(store)
    origin = asked(store, "Pears")
    second = conversations.fork(origin.id)
    third = conversations.fork(second.id)
    fourth = conversations.fork(origin.id)
    assert [one.title for one in (second, third, fourth)] == ["Pears (2)", "Pears (3)", "Pears (4)"]
    store.rename(second.id, "Apples")
    assert conversations.fork(fourth.id).title == "Pears (2)"
    assert store.session(origin.id).title == "Pears"


def test_a_number_that_the_user_wrote_stays(store: Store) -> None:
    """Only that of a fork is a fork's number."""
    assert Conversations(store).fork(asked(store, "Chapter (7)").id).title == "Chapter (7) (2)"


def test_long_titles_are_cut_before_the_number(store: Store) -> None:
    """They stay within the limit of titles, and apart."""
    conversations = Conversations(store)
    origin = asked(store, "x" * 80)
    titles = [conversations.fork(origin.id).title for _ in range(10)]
    assert titles[0] == "x" * 76 + " (2)"
    assert titles[9] == "x" * 75 + " (11)"
    assert len(set(titles)) == 10


def test_a_fork_without_a_question_is_called_by_its_first(store: Store) -> None:
    """It has the system prompt and nothing of the old task."""
    fork = Conversations(store).fork(asked(store, "Pears").id, system_only=True)
    assert (fork.title, fork.task, fork.system) == ("", "", "s")


@pytest.mark.parametrize(("title", "number"), [("a (2)", " (2)"), ("a", ""), ("a(2)", ""), ("a (b)", ""), ("", "")])
def test_the_number_of_a_title(title: str, number: str) -> None:
    """It is what a fork was given, at the end."""
    assert numbered(title) == number
