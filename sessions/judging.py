"""Asks the judge of the task policy about a draft before it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence

from models.errors import ModelError
from models.similarity import Scores
from sessions.conversation import Message, Session
from sessions.policy import Step, TaskPolicy, Verdict, facts_of, judge, needs_scores, step

Score = Callable[[str, str, str, str], Awaitable[Scores | None]]
"""Compares a draft with a task line, the last message and the last answer, as `models.encoder.Encoder.scores` does."""


class Judging:
    """The policy, and what scores drafts for it; without a scorer nothing is judged."""

    def __init__(self, policy: TaskPolicy, score: Score | None) -> None:
        self.policy: TaskPolicy = policy if score else "off"
        self._score = score

    async def verdict(self, session: Session, messages: Sequence[Message], draft: str) -> Verdict:
        """Judge a draft behind these messages. What the scorer cannot do is the reason of a verdict without a score."""
        if self._score is None or self.policy == "off":
            return Verdict("same", None, "Nothing is judged.")
        facts = facts_of(session.task, messages)
        if not needs_scores(facts, draft):
            return judge(facts, draft, None)
        try:
            scores = await self._score(draft, facts.task, facts.question, facts.answer)
        except ModelError as error:
            return Verdict("unsure", None, str(error))
        return judge(facts, draft, scores)

    async def warm_up(self) -> None:
        """Let the scorer start ahead of the first draft; what it cannot do is told with that."""
        if self._score and self.policy != "off":
            with contextlib.suppress(ModelError):
                await self._score("", "", "", "")

    def step(self, verdict: Verdict) -> Step:
        """What is to be done before the draft is sent."""
        return step(self.policy, verdict)
