"""What a draft would be asked as, if it were sent now: what an engine may read ahead; pure."""

from __future__ import annotations

from collections.abc import Sequence

from models.engine import Entry, ModelInfo, Prompt
from sessions.conversation import Message, Session
from sessions.history import open_question, prompt_messages, prompt_of
from sessions.hygiene import tidy


def prompt_ahead(session: Session | None, messages: Sequence[Message], draft: str, info: ModelInfo) -> Prompt | None:
    """Return the prompt that sending a draft would make, or None where that would change something first.

    `session` None is a conversation without a message. Something else has to be done where another model or a larger
    context is loaded first, and where a question stands open; nothing is sent to a conversation that is closed.
    """
    text, _ = tidy(draft)
    if not text.strip() or info.server is not None:
        return None
    if session is None:
        return Prompt((Entry("user", text),))
    is_other = session.model is not None and session.model.weights != info.weights
    is_closed = session.state == "done" or session.trashed_at is not None
    if is_other or is_closed or (session.n_ctx or 0) > info.n_ctx or open_question(messages) is not None:
        return None
    history = prompt_of(prompt_messages(messages), session.reasoning)
    return Prompt((*history.entries, Entry("user", text)), reasoning=session.reasoning)
