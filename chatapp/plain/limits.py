"""What can be done with a message that does not fit into the context: more context, a summary, fewer turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import TYPE_CHECKING

from chatapp.plain.asking import Way
from chatapp.plain.tasks import NOT_SENT
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_n
from models.engine import Event, Finished, Piece, Progress
from models.kvbudget import size
from models.reasoning import answer_of
from sessions.conversation import Draft
from sessions.history import prompt_messages
from sessions.room import Room, tokens_of

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

_TEXT_CELLS = 60


async def fits(repl: Repl, draft: Draft) -> bool:
    """True if a message can be sent; what nobody can count now is left to the engine."""
    session = repl.session() if repl.current else None
    info = repl.engine.info
    if session and info:
        is_other = session.model is not None and session.model.weights != info.weights
        if is_other or (session.n_ctx or 0) > info.n_ctx:
            return True  # another model, or a larger context, is loaded before the message is read
    n_tokens = await repl.manager.count(draft.text)
    room = None if n_tokens is None else repl.manager.room(repl.current, n_tokens)
    if n_tokens is None or room is None or not room.is_short:
        return True
    return await offer(repl, draft, n_tokens=n_tokens)


async def offer(repl: Repl, draft: Draft, *, n_tokens: int | None = None, sentence: str | None = None) -> bool:
    """Say that a message does not fit, and ask what is to be done; True if it can be sent now.

    `n_tokens` None: the engine found it too long, and has said so; `sentence` is why.
    """
    room = repl.manager.room(repl.current, 0)
    if room is None:
        return False
    if n_tokens is None:
        # What the engine says is true, however few tokens are counted here.
        n_tokens = max(await repl.manager.count(draft.text) or 0, room.n_ctx - room.n_kept + 1)
    found = repl.manager.room(repl.current, n_tokens) or room
    said = sentence or _sentence(found)
    if not repl.asking.can_ask:
        if sentence is None:
            repl.fail(said)
        return False
    while True:
        can_summarize = bool(repl.current and found.n_kept) and repl.manager.can_summarize(repl.current or "")
        match await repl.asking.choose(said, list(_ways(found, can_summarize=can_summarize))):
            case "larger":
                repl.manager.enlarge(repl.begun().id, n_tokens)
                return True
            case "summary":
                if await _go_on_with_summary(repl, draft):
                    return False
            case "remove":
                if await _go_on_without_turns(repl, found):
                    return True
            case _:
                repl.voice.say(tr(NOT_SENT))
                return False


async def aside(repl: Repl, events: AsyncGenerator[Event, None]) -> str | None:
    """Return what the model answers to a question of the program's own; None, and told, if that is nothing."""
    answers: list[Finished] = []
    repl.voice.begin_waiting()

    def take(event: Event) -> None:
        match event:
            case Progress():
                repl.voice.progress(event)
            case Piece():
                repl.voice.progress(Progress("decode", 0, 0))
            case Finished():
                answers.append(event)

    failed = await repl.following.events(events, take, Finished)
    if failed:
        repl.fail(failed.message)
        return None
    text = answer_of(answers[0].text).strip() if answers and answers[0].reason != "cancelled" else ""
    if not text:
        repl.voice.say(tr("The model wrote nothing."))
    return text or None


async def _go_on_with_summary(repl: Repl, draft: Draft) -> bool:
    """Send the message behind a summary, in a new conversation; False if there is none, or it is not wanted."""
    from chatapp.plain.turns import ask

    session = repl.session()
    summary = await aside(repl, repl.manager.summarize(session.id))
    if summary is None:
        return False
    repl.voice.print(summary)
    ways = [
        Way("send", tr("Send this summary with the message, in a new conversation.")),
        Way("back", tr("Back: something else is to be done.")),
    ]
    if await repl.asking.choose(tr("Is that what the new conversation is to begin with?"), ways) != "send":
        return False
    opening = repl.manager.continuation(session.id, summary)
    repl.current = None
    await ask(repl, Draft(opening + draft.text))
    return True


async def _go_on_without_turns(repl: Repl, room: Room) -> bool:
    """Make a copy without some turns and let the message go there; False if none are chosen."""
    session = repl.session()
    messages = [m for m in prompt_messages(repl.manager.messages(session.id)) if m.role != "system"]
    turns = [
        (question, tokens_of(question) + tokens_of(answer))
        for question, answer in pairwise(messages)
        if question.role == "user"
    ]
    for number, (question, n_tokens) in enumerate(turns, 1):
        shown = tr_n("{n} token", "{n} tokens", n_tokens).format(n=f"{n_tokens:,}")
        repl.voice.say(f"{number}. {shown}: {clean_line(question.text, _TEXT_CELLS)}")
    n_over = room.n_needed - room.n_ctx
    repl.voice.say(tr("At least {n} tokens have to go.").format(n=f"{n_over:,}"))
    typed = await repl.asking.line(tr("Numbers of the turns to leave out: ")) or ""
    numbers = {int(word) for word in typed.replace(",", " ").split() if word.isdecimal()}
    without = [question.id for number, (question, _) in enumerate(turns, 1) if number in numbers]
    if not without:
        return False
    repl.current = repl.manager.fork(session.id, without=without).id
    repl.voice.say(tr("This goes on in a copy of the conversation without these turns."))
    return True


def _ways(room: Room, *, can_summarize: bool) -> list[Way]:
    ways = []
    if room.n_ctx_max > room.n_ctx:
        larger = tr(
            "Larger context: {n} tokens, which takes {size} more memory. "
            "The model is loaded again, then the message is sent."
        )
        ways.append(Way("larger", larger.format(n=f"{room.n_ctx_max:,}", size=size(room.more_bytes))))
    if can_summarize:
        summary = tr("New conversation with a summary, which the model writes now and you see first.")
        ways.append(Way("summary", summary))
    if room.n_kept:
        ways.append(Way("remove", tr("Leave out turns: a copy of this conversation without those you choose.")))
    return [*ways, Way("cancel", tr("Cancel: the message is not sent."))]


def _sentence(room: Room) -> str:
    if not room.n_kept:
        text = tr(
            "The message and an answer need {n_needed} tokens, the context has {n_ctx}. "
            "Nothing was sent: a shorter message fits."
        )
    else:
        text = tr(
            "The conversation takes {n_kept} tokens; with your message and an answer it needs "
            "{n_needed}, the context has {n_ctx}. Nothing was sent."
        )
    return text.format(n_kept=f"{room.n_kept:,}", n_needed=f"{room.n_needed:,}", n_ctx=f"{room.n_ctx:,}")
