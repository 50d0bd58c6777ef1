"""One task per session: whether a draft belongs to its session's task, and what follows from that.

Pure: the scores come from `models/similarity.py`. Weights and borders are fitted by `python -m benchmarks.judge --fit`
and measured on conversations that they were not fitted to, see docs/task-policy.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from models.reasoning import answer_of
from models.similarity import Scores
from sessions.conversation import Message

TaskPolicy = Literal["off", "ask", "strict"]
"""Never looks; asks before a draft of another task is sent; does that, and keeps it only under another task line."""
VerdictKind = Literal["same", "other", "unsure"]
Step = Literal["send", "hint", "dialog"]

FITTED = 2
"""Version of the weights below and of those in `models/standalone.py` and `models/aboutanswer.py`, a set."""
_BIAS = 0.639
_TO_TASK = -5.068
_TO_QUESTION = -4.861
_TO_ANSWER = -6.880
# A dialog that is wrong costs more than a switch that goes unnoticed: "other" begins well above even odds.
OTHER_FROM = 0.6
"""Log-odds from which a draft is of another task."""
SAME_BELOW = -0.5
"""Log-odds below which it is of the same one; what lies between is "unsure"."""
_NEAR = 0.3
"""The cosine from which two texts are about the same things, for the reason only."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a session is about: its task line, the last user message and the last answer; each may be empty."""

    task: str
    question: str = ""
    answer: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a draft belongs to the task. `score` is the probability (0..1) that it does not; `reason` one sentence.

    A score of None means that nothing was computed.
    """

    kind: VerdictKind
    score: float | None
    reason: str


def facts_of(task: str, messages: Sequence[Message]) -> Facts:
    """Return the facts of a session, from its task line and its messages, oldest first.

    Reasoning is not part of an answer, and messages that failed do not count.
    """
    counting = [message for message in reversed(messages) if message.status != "failed"]
    answers = (answer_of(message.text) for message in counting if message.role == "assistant")
    question = next((message.text for message in counting if message.role == "user"), "")
    return Facts(task, question, next(filter(str.strip, answers), ""))


def needs_scores(facts: Facts, draft: str) -> bool:
    """False where the verdict is known without looking: an empty draft, and the first message of a session."""
    return bool(draft.strip()) and any(text.strip() for text in (facts.question, facts.answer))


def judge(facts: Facts, draft: str, scores: Scores | None) -> Verdict:
    """Decide whether a draft belongs to its session's task; scores of None mean that it could not be read."""
    if not needs_scores(facts, draft):
        return Verdict("same", None, "There is no earlier turn that it could differ from.")
    if scores is None:
        return Verdict("unsure", None, "It is written in a script that the judge cannot read.")
    log_odds = _log_odds(scores)
    kind: VerdictKind = "other" if log_odds >= OTHER_FROM else "same" if log_odds < SAME_BELOW else "unsure"
    is_near = max(scores.to_task, scores.to_question, scores.to_answer) >= _NEAR
    is_request = kind == "same" and scores.about_answer > 0
    reason = "It asks for something about the last answer." if is_request else _REASONS[kind, is_near]
    return Verdict(kind, 1 / (1 + math.exp(-log_odds)), reason)


def step(policy: TaskPolicy, verdict: Verdict) -> Step:
    """What a front end does with a verdict before it sends: nothing, a quiet hint, or a dialog."""
    if policy == "off" or verdict.kind == "same" or verdict.score is None:
        return "send"
    return "dialog" if verdict.kind == "other" else "hint"


def recorded(verdict: Verdict) -> tuple[str, float, int] | None:
    """Return a verdict as it is kept with a message; None when nothing was computed."""
    return None if verdict.score is None else (verdict.kind, round(verdict.score, 3), FITTED)


def _log_odds(scores: Scores) -> float:
    return (
        _BIAS
        + scores.standalone
        + _TO_TASK * scores.to_task
        + _TO_QUESTION * scores.to_question
        + _TO_ANSWER * scores.to_answer
        # It can only excuse a draft: not to be about the answer is no sign of another task.
        - max(0.0, scores.about_answer)
    )


_REASONS: dict[tuple[VerdictKind, bool], str] = {
    ("other", False): "It reads like a request of its own, and has little in common with this task.",
    ("other", True): "It touches the same subject, but reads like a request of its own.",
    ("unsure", False): "It could be a new task: it has little in common with the last turn.",
    ("unsure", True): "It could be a new task about the same subject.",
    ("same", False): "It reads like a reply to the last turn.",
    ("same", True): "It is about what the last turn was about.",
}
