from pathlib import Path

import pytest

from chatapp.objects import STATS_KEYS
from tests.chatapp.test_cli import Shell


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def test_an_answer_is_explained(chatapp: Shell) -> None:
    """The last one, or the named one, in sentences; JSON has them with the stats."""
    first = chatapp.json("run", "one")
    key = first["session"]
    chatapp("run", "--session", key, "two and more")
    messages = chatapp.json("sessions", "show", key)["messages"]
    found = chatapp.json("sessions", "why", key)
    assert list(found) == ["session", "message", "sentences", "advice", "stats"]
    assert (found["session"], found["message"]) == (key, messages[-1]["id"])
    assert tuple(found["stats"]) == STATS_KEYS
    text = chatapp("sessions", "why", key)
    assert text.splitlines()[: len(found["sentences"])] == found["sentences"]
    assert text.startswith("The first text came after ")
    for message in messages[:2]:  # the question's number means its answer
        one = chatapp.json("sessions", "why", key, str(message["id"]))
        assert (one["message"], one["stats"]) == (messages[1]["id"], messages[1]["stats"])


def test_nothing_to_explain(chatapp: Shell) -> None:
    """A message that is no answer here, and a number that is none, are errors with a way out."""
    key = chatapp.json("run", "one")["session"]
    assert "sessions show" in chatapp("sessions", "why", key, "99", code=1)
    assert "MESSAGE" in chatapp("sessions", "why", key, "last", code=2)
