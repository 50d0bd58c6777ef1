"""Messages and their answers: what is asked before one is sent, and the answer, told as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from chatapp.console import lost_notice, replaced_notice
from chatapp.plain import limits, tasks, words
from chatapp.plain.follow import CANCELLED
from chatapp.plain.models import offer_if_needed
from chatapp.safe import clean_line, scrub
from chatapp.texts import tr, tr_later
from models.engine import Event, Failed, Finished, Loaded, Piece, Prepared, Progress, Sampling, Stored
from models.errors import PromptTooLong
from models.presets import recommended
from models.reasoning import Kind, Splitter
from sessions.attachments import joined
from sessions.conversation import Draft
from sessions.manager import UNFINISHED
from sessions.policy import Verdict
from sessions.turn import STATUS_OF, checked

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

_ENDS = {
    "length": tr_later("The answer was cut: it has as many tokens as it may."),
    "context": tr_later("The answer was cut: the context is full."),
}
_STOPPED = tr_later("Stopped; the text so far is kept.")
_PARTS: dict[Kind, str] = {"reasoning": tr_later("reasoning"), "answer": tr_later("answer")}


async def send(repl: Repl, text: str, *, edits: int | None = None) -> None:
    """Send a message with what is attached, unless it is not wanted here or does not fit. Raises `SessionError`."""
    text, n_replaced = scrub(text)
    if n_replaced:
        repl.voice.say(replaced_notice(n_replaced))
    draft = joined([*repl.parts, text])
    checked(draft.text)
    if repl.current is not None:
        repl.manager.writable(repl.writable().id)
    judged = await tasks.judged(repl, draft, edits=edits)
    if judged is None or not await loaded(repl):
        return
    if edits is not None or await limits.fits(repl, draft):
        await ask(repl, draft, judged.verdict, edits=edits)


async def ask(repl: Repl, draft: Draft, verdict: Verdict | None = None, *, edits: int | None = None) -> None:
    """Have a message answered, in a new conversation if there is none."""
    session_id = repl.begun().id
    repl.writable()
    events = repl.manager.send(
        session_id, draft.text, sampling(repl), edits=edits, verdict=verdict, attachments=draft.attachments
    )
    failed = await answered(repl, events)
    if failed is None:
        repl.parts.clear()
    elif failed.kind == PromptTooLong.kind and edits is None:
        if await limits.offer(repl, draft, sentence=failed.message):
            await ask(repl, draft, verdict)
    elif await offer_if_needed(repl, failed):
        await ask(repl, draft, verdict, edits=edits)


async def answered(repl: Repl, events: AsyncGenerator[Event, None], *, n_told: int = 0) -> Failed | None:
    """Tell the answer of a turn, but for what was told of it earlier; return the failure, which is told, too."""
    telling = _Telling(repl, n_told)
    repl.voice.begin_waiting()
    failed = await repl.following.events(events, telling.take, Finished)
    telling.end()
    if failed:
        again = [tr("The next message starts the engine again.")] if failed.kind == "died" else []
        repl.fail(" ".join([failed.message, *again]))
    return failed


async def loaded(repl: Repl) -> bool:
    """See to it that a model is there; False, and told, if there is none."""
    if repl.engine.info is not None:
        return True
    repl.voice.begin_waiting()
    failed = await repl.following.events(repl.manager.load(repl.current), repl.voice.loading, can_stop=False)
    if failed is None:
        return True
    if failed.kind == CANCELLED:
        repl.fail(tr("Stopped; nothing was sent."))
        return False
    repl.fail(failed.message)
    return await offer_if_needed(repl, failed)


async def resume(repl: Repl) -> None:
    """Make the conversation resident that messages go to, and say how it came back."""
    session = repl.session()
    repl.voice.begin_waiting()

    def take(event: Event) -> None:
        match event:
            case Progress():
                repl.voice.progress(event)
            case Prepared():
                repl.voice.say(words.came_back(event))

    failed = await repl.following.events(repl.manager.open(session.id), take, Prepared)
    if failed and failed.kind != CANCELLED:
        repl.voice.say(failed.message)
        if await offer_if_needed(repl, failed):
            await resume(repl)


def sampling(repl: Repl) -> Sampling:
    """How the next answer is sampled: by the conversation's own choice, over what is usual for the model."""
    info = repl.engine.info
    usual = recommended(info, repl.settings.presets) if info else Sampling()
    own = repl.session().sampling
    return own.over(usual) if own else usual


class _Telling:
    """The answer of one turn on its way to the streams."""

    def __init__(self, repl: Repl, n_told: int) -> None:
        self._repl = repl
        self._n_told = n_told
        self._splitter = Splitter()
        self._kind: Kind | None = None
        self._finished: Finished | None = None

    def take(self, event: Event) -> None:
        """Tell what is worth it."""
        voice = self._repl.voice
        match event:
            case Progress():
                voice.progress(event)
            case Loaded(info=info):
                voice.hint(tr("{model} is loaded.").format(model=clean_line(info.name, 60)))
            case Prepared():
                if event.lost_characters:
                    voice.say(lost_notice(event.lost_characters))
                if event.restored:
                    voice.hint(words.came_back(event))
            case Piece(text=text):
                told, self._n_told = text[: self._n_told], max(0, self._n_told - len(text))
                self._splitter.feed(told)
                self._tell(self._splitter.feed(text[len(told) :]))
            case Finished():
                self._finished = event
                self._tell(self._splitter.finish())
            case Stored(note=note) if note:
                self._repl.notes.append(f"{note}.")

    def _tell(self, pieces: list[tuple[Kind, str]]) -> None:
        voice, thoughts = self._repl.voice, self._repl.settings.thoughts
        for kind, text in pieces:
            if not text:
                continue
            if kind != self._kind and kind == "reasoning" and thoughts == "mark":
                voice.hint(f"[{tr(_PARTS[kind])} …]")
            elif thoughts == "show" and kind != self._kind and (kind == "reasoning" or self._kind is not None):
                voice.begin_part(tr(_PARTS[kind]))
            self._kind = kind
            if kind == "answer":
                voice.tell(text)
            elif thoughts == "show":
                voice.tell_aside(text)

    def end(self) -> None:
        """Say how the answer ended."""
        repl = self._repl
        if self._finished is None:
            self._tell(self._splitter.finish())
        repl.voice.end_line()
        if self._finished is None:
            return
        reason, stats = self._finished.reason, self._finished.stats
        repl.last_stats = stats
        if STATUS_OF[reason] in UNFINISHED:
            stopped = tr(_ENDS.get(reason, _STOPPED))
            way_on = [tr("/continue lets it go on.")] if repl.asking.can_ask else []
            repl.voice.say(" ".join([stopped, *way_on]))
        if repl.shows_stats:
            repl.voice.say(words.turn_line(stats))
