from contextlib import closing
from pathlib import Path

import pytest

from models.catalog import starter_model
from sessions.store import Store
from tests.chatapp.test_cli import Shell

STARTER = starter_model()


@pytest.fixture
def chatapp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command line over empty folders."""
    return Shell(tmp_path, monkeypatch)


def texts(chatapp: Shell, key: str) -> list[str]:
    """What the shown branch of a conversation says."""
    return [message["text"] for message in chatapp.json("sessions", "show", key)["messages"]]


def test_an_answer_is_given_once_more(chatapp: Shell) -> None:
    """The question is not asked twice, and both answers are kept."""
    key = chatapp.json("run", "hello")["session"]
    again = chatapp.json("run", "--session", key, "--regenerate")
    assert again["session"] == key
    assert len(texts(chatapp, key)) == 2
    assert len(chatapp.json("sessions", "tree", key)) > 0


def test_a_cut_answer_goes_on(chatapp: Shell) -> None:
    """The whole answer is printed, and it is the one that an uncut answer would have been."""
    whole = chatapp("run", "hello", "--ephemeral")
    key = chatapp.json("run", "hello", "--max-tokens", "9")["session"]
    assert chatapp("run", "--session", key, "--continue") == whole
    assert texts(chatapp, key) == ["hello", whole]
    assert "could go on" in chatapp("run", "--session", key, "--continue", code=1)


def test_a_question_is_edited(chatapp: Shell) -> None:
    """The new version is shown, the old one stays."""
    key = chatapp.json("run", "one")["session"]
    question = chatapp.json("sessions", "show", key)["messages"][0]["id"]
    chatapp("run", "two", "--session", key, "--edit", str(question))
    assert texts(chatapp, key)[0] == "two"
    chatapp("sessions", "branch", key, str(question))
    assert texts(chatapp, key)[0] == "one"
    assert "no such message" in chatapp("run", "x", "--session", key, "--edit", "99999", code=1)


def test_an_edit_that_no_context_holds_changes_nothing(chatapp: Shell) -> None:
    """It is refused before the shown branch is another one, with what can be done instead."""
    key = chatapp.json("run", "one")["session"]
    chatapp("run", "two", "--session", key)
    messages = chatapp.json("sessions", "show", key)["messages"]
    tree = chatapp.json("sessions", "tree", key)

    said = chatapp("run", "x" * 2000, "--session", key, "--edit", str(messages[2]["id"]), "--ctx", "1024", code=1)

    assert "nothing was changed" in said
    assert f"sessions fork {key} --without MESSAGE" in said
    assert chatapp.json("sessions", "show", key)["messages"] == messages
    assert chatapp.json("sessions", "tree", key) == tree


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--regenerate"], "--session"),
        (["x", "--edit", "1"], "--session"),
        (["--session", "a", "--regenerate", "--continue"], "do not go together"),
        (["x", "--session", "a", "--regenerate"], "take no question"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(chatapp: Shell, arguments: list[str], word: str) -> None:
    """Exit code 2 and the reason, before anything is loaded."""
    assert word in chatapp("run", *arguments, code=2)


def test_another_task_is_not_asked_in_a_conversation(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 1 and the way out, nothing stored; allowed, it is asked; the same task is always asked."""
    monkeypatch.setenv("CHATAPP_POLICY", "ask")
    key = chatapp.json("run", "Write a haiku about the autumn moon over a quiet lake.")["session"]
    off_task = "How do I configure nginx as a reverse proxy for two upstream servers with TLS?"
    said = chatapp("run", off_task, "--session", key, code=1)
    assert "another task" in said
    assert "--allow-off-task" in said
    assert len(texts(chatapp, key)) == 2
    chatapp("run", "Now make the second line shorter.", "--session", key)
    chatapp("run", off_task, "--session", key, "--allow-off-task")
    assert len(texts(chatapp, key)) == 6
    monkeypatch.setenv("CHATAPP_POLICY", "off")
    chatapp("run", off_task, "--session", key)
    assert len(texts(chatapp, key)) == 8


def test_a_strict_policy_wants_another_task_line(chatapp: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowed or not, a question of another task is refused until the task line is changed; that is recorded."""
    monkeypatch.setenv("CHATAPP_POLICY", "strict")
    key = chatapp.json("run", "Write a haiku about the autumn moon over a quiet lake.")["session"]
    off_task = "How do I configure nginx as a reverse proxy for two upstream servers with TLS?"
    asked = ("run", off_task, "--session", key, "--allow-off-task")
    assert "sessions task" in chatapp(*asked, code=1)
    chatapp("sessions", "task", key, "Poems and servers")
    chatapp(*asked)
    assert len(texts(chatapp, key)) == 4
    with closing(Store(chatapp.data_dir)) as store:
        assert [before for _, before in store.task_changes(key)] == [
            "Write a haiku about the autumn moon over a quiet lake."
        ]
        assert [kind for kind, _ in store.verdicts(key).values()] == ["other"]


@pytest.mark.skipif(STARTER is None, reason="the starter model is not installed")
def test_a_conversation_changes_its_model(chatapp: Shell, tmp_path: Path) -> None:
    """By path or name, without loading it; what is no model is refused, and nothing changes."""
    assert STARTER is not None
    key = chatapp.json("run", "hello")["session"]
    assert chatapp("sessions", "model", key) == "fake\n"
    (tmp_path / "no.gguf").write_bytes(b"GGUF")
    assert chatapp("sessions", "model", key, str(tmp_path / "no.gguf"), code=1)
    assert chatapp("sessions", "model", key, "no such model", code=1)
    assert chatapp.json("sessions", "model", key)["name"] == "fake"
    chatapp("sessions", "model", key, str(STARTER))
    assert chatapp("sessions", "model", key) != "fake\n"
    assert "belongs to the model" in chatapp("run", "more", "--session", key, code=1)
