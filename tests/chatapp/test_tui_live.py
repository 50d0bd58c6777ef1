from __future__ import annotations

from chatapp.tui.live import LiveAnswer
from models.engine import Piece


def test_an_answer_that_goes_on_shows_its_beginning_at_once() -> None:
    """The old text is there before any piece, and the pieces that repeat it add nothing, wherever they are cut."""
    live = LiveAnswer("s", "question", 0)
    live.begin_with("once upon", None)
    assert live.answer == "once upon"
    live.take(Piece("once", (1,)), 1.0)
    assert live.answer == "once upon"
    live.take(Piece(" upon a time", (2, 3)), 1.1)
    assert live.answer == "once upon a time"


def test_reasoning_that_goes_on_is_still_reasoning() -> None:
    """An answer that was stopped inside its reasoning goes on there; its tokens are counted from its start."""
    live = LiveAnswer("s", "question", 0)
    live.begin_with("<think>\nhm", 2)
    assert live.thought is not None
    assert (live.thought.text.strip(), live.thought.n_tokens, live.thought.is_open) == ("hm", 2, True)
    live.take(Piece("<think>\nhm, so", (1, 2, 3)), 1.0)
    live.take(Piece("\n</think>\n\nyes", (4, 5)), 2.0)
    assert live.thought.text.strip() == "hm, so"
    assert not live.thought.is_open
    assert live.answer.strip() == "yes"
