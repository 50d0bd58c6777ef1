from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from models.engine import Role
from sessions.conversation import Message, MessageStatus
from sessions.history import open_question, prompt_messages, prompt_of, title_of


def message(role: Role, status: MessageStatus = "complete", text: str = "") -> Message:
    """Return a message of which only role, status and text matter."""
    return Message(1, "s", role, text, status, None, None, 0.0)


SYSTEM, ASKED, ANSWERED = message("system"), message("user"), message("assistant")


def test_whole_turns_count() -> None:
    """System prompt and finished turns stay as they are."""
    history = [SYSTEM, ASKED, ANSWERED, ASKED, message("assistant", "interrupted")]
    assert prompt_messages(history) == history
    assert [entry.role for entry in prompt_of(history, "keep").entries] == [one.role for one in history]


def test_failed_turns_are_left_out() -> None:
    """A question that failed, or whose answer did, never comes back, nor does one without an answer."""
    failed = [message("user", "failed"), ASKED, message("assistant", "failed"), ASKED]
    assert prompt_messages([SYSTEM, *failed]) == [SYSTEM]
    assert prompt_messages([*failed[:1], ASKED, ANSWERED]) == [ASKED, ANSWERED]


statuses = st.sampled_from(get_args(MessageStatus))


@given(st.lists(st.builds(message, st.sampled_from(["user", "assistant"]), statuses)))
def test_roles_always_alternate(history: list[Message]) -> None:
    """Whatever is stored, a prompt is question, answer, question, answer."""
    roles = [one.role for one in prompt_messages(history)]
    assert roles == ["user", "assistant"] * (len(roles) // 2)


def test_only_a_waiting_question_is_open() -> None:
    """The last message is open when it is a question the engine could still take."""
    assert open_question([ASKED]) is ASKED
    assert [open_question(history) for history in ([], [ANSWERED], [message("user", "failed")])] == [None] * 3


@given(st.text())
def test_a_title_is_one_short_line(text: str) -> None:
    """Any text gives at most 80 characters without line breaks or double spaces."""
    title = title_of(text)
    assert len(title) <= 80
    assert title.split() == title.split(" ") or title == ""


def test_a_title_is_the_first_line_that_says_something() -> None:
    """Empty lines are skipped, white space is folded."""
    assert title_of("\n  \n  Fix  the\tbug \nplease") == "Fix the bug"
