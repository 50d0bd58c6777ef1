"""Commands on whole conversations: the list, opening, searching, what is written on them, the trash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatapp.listing import role_name, status_name, when
from chatapp.plain.asking import Way
from chatapp.plain.limits import aside
from chatapp.plain.repl import N_REMEMBERED
from chatapp.plain.turns import resume
from chatapp.plain.welcome import welcome
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_n
from models.reasoning import answer_of
from sessions.conversation import Message, Session, SessionSummary
from sessions.errors import BadRequest
from sessions.overview import Wanted
from sessions.titles import read_title

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

N_LISTED = 20
_MOST_LISTED = 1_000
_TITLE_CELLS = 80
_VIEWS = {"archive": Wanted(is_archived=True), "trash": Wanted(is_trashed=True)}


async def greet(repl: Repl) -> None:
    """Say where the user is, and bring back what was there."""
    questions, _ = repl.manager.asked(repl.current, limit=N_REMEMBERED)
    repl.bridge.reader.remember([draft.text for draft in reversed(questions)])
    repl.voice.say(tr("chatapp, plain mode. /help lists the commands; Ctrl+D leaves."))
    for sentence in welcome(repl.settings, repl.manager):
        repl.voice.say(sentence)
    if repl.current is not None:
        await _opened(repl)
        return
    repl.following.ahead(repl.manager.load(), repl.voice.loading)


async def new(repl: Repl, _: str) -> None:
    """Let the next message begin a conversation."""
    repl.current = None
    repl.voice.say(tr("The next message begins a new conversation."))


async def list_(repl: Repl, text: str) -> None:
    """List conversations with numbers, or search."""
    if text and not (text.isdecimal() or text in _VIEWS or text.startswith("#")):
        await search(repl, text)
        return
    wanted = _VIEWS.get(text, Wanted(tag=text[1:].lower() or None) if text.startswith("#") else Wanted())
    limit = min(int(text), _MOST_LISTED) if text.isdecimal() else N_LISTED
    found = repl.manager.sessions(wanted, limit=limit + 1)
    repl.listed = [summary.session.id for summary in found[:limit]]
    for number, summary in enumerate(found[:limit], 1):
        repl.voice.print(f"{number}. {_row(summary)}")
    if not found:
        repl.voice.say(tr("There is no such conversation.") if text else tr("There is no conversation yet."))
    elif len(found) > limit:
        repl.voice.hint(tr("There are more: /list {n} shows {n}.").format(n=2 * limit))


async def open_(repl: Repl, text: str) -> None:
    """Go on with a conversation."""
    repl.current = repl.named(text).id
    await _opened(repl)


async def show(repl: Repl, text: str) -> None:
    """Show the last turns, or all."""
    if text and text != "all" and not (text.isdecimal() and int(text)):
        raise BadRequest(tr("/show takes a number of turns, or all."))
    session = repl.session()
    messages = repl.manager.messages(session.id)
    starts = [at for at, message in enumerate(messages) if message.role == "user"]
    n_turns = int(text or 1) if text != "all" else len(starts)
    at = 0 if n_turns >= len(starts) and text == "all" else starts[-n_turns:][0] if starts else 0
    _print_messages(repl, messages[at:])
    if not messages:
        repl.voice.say(tr("There is no message yet."))


async def search(repl: Repl, text: str) -> None:
    """List the messages and titles that match."""
    page = repl.manager.search(text)
    while page.n_unindexed and repl.manager.catch_up():
        page = repl.manager.search(text)
    repl.listed = [hit.session.id for hit in page.hits]
    for number, hit in enumerate(page.hits, 1):
        snippet = f" {role_name(hit.role)}: {clean_line(hit.snippet, 160)}" if hit.role is not None else ""
        repl.voice.print(f"{number}. {_title(hit.session)}, {when(hit.created_at)}.{snippet}")
    if not page.hits:
        repl.voice.say(tr("Nothing was found."))


async def rename(repl: Repl, text: str) -> None:
    """Give the conversation a title: the one that is typed, or one that the model suggests."""
    session = repl.session()
    if not text:
        repl.voice.say(tr("The title: {title}").format(title=_title(session)))
        answer = await aside(repl, repl.manager.suggest_title(session.id)) if repl.asking.can_ask else None
        suggested = clean_line(read_title(answer), _TITLE_CELLS) if answer else ""
        ways = [
            Way("take", tr("Take the title that the model suggests: {title}").format(title=suggested)),
            Way("keep", tr("Keep the old one.")),
        ]
        if not suggested or await repl.asking.choose(tr("Another title?"), ways) != "take":
            return
        text = suggested
    repl.voice.say(tr("The title: {title}").format(title=_title(repl.manager.rename(session.id, text))))


async def task(repl: Repl, text: str) -> None:
    """Give the conversation another task line, or say which it has."""
    session = repl.session()
    if text:
        session = repl.manager.set_task(session.id, text)
    repl.voice.say(tr("The task: {task}").format(task=clean_line(session.task, 300)))


async def tag(repl: Repl, text: str) -> None:
    """Add tags; a minus before one takes it away."""
    given = text.split()
    add = [word for word in given if not word.startswith("-")]
    remove = [word[1:] for word in given if word.startswith("-")]
    session = repl.manager.tag(repl.session().id, add=add, remove=remove)
    names = " ".join(f"#{clean_line(name, 40)}" for name in session.tags)
    repl.voice.say(tr("Tags: {names}").format(names=names) if names else tr("This conversation has no tag now."))


async def done(repl: Repl, _: str) -> None:
    """Close or reopen the conversation."""
    session = repl.session()
    if session.state == "done":
        repl.manager.reopen(session.id)
        repl.voice.say(tr("The conversation is open again."))
    else:
        repl.manager.mark_done(session.id)
        repl.voice.say(tr("The conversation is done; /done opens it again."))


async def pin(repl: Repl, _: str) -> None:
    """Keep the conversation at the top of the list, or not."""
    session = repl.session()
    is_pinned = session.pinned_at is not None
    (repl.manager.unpin if is_pinned else repl.manager.pin)(session.id)
    repl.voice.say(tr("No longer pinned.") if is_pinned else tr("Pinned: it stands at the top of the list."))


async def archive(repl: Repl, _: str) -> None:
    """Take the conversation out of the list, or put it back."""
    session = repl.session()
    is_archived = session.archived_at is not None
    (repl.manager.unarchive if is_archived else repl.manager.archive)(session.id)
    repl.voice.say(tr("Back on the list.") if is_archived else tr("In the archive; /archive puts it back on the list."))


async def trash(repl: Repl, text: str) -> None:
    """Move a conversation to the trash."""
    session = repl.named(text) if text else repl.session()
    repl.manager.trash(session.id)
    repl.trashed = session.id
    if session.id == repl.current:
        repl.current = None
    repl.voice.say(tr("In the trash: {title}").format(title=_title(session)))
    repl.voice.say(tr("/restore takes it back."))


async def restore(repl: Repl, text: str) -> None:
    """Take a conversation out of the trash."""
    if not (text or repl.trashed):
        raise BadRequest(tr("/restore takes a number of `/list trash`, or an id."))
    session = repl.named(text or repl.trashed or "")
    if session.trashed_at is None:
        raise BadRequest(tr("This conversation is not in the trash."))
    repl.manager.restore(session.id)
    repl.voice.say(tr("Back from the trash: {title}").format(title=_title(session)))


async def delete(repl: Repl, text: str) -> None:
    """Delete a conversation of the trash for good, after a question."""
    session = repl.named(text)
    if session.trashed_at is None:
        raise BadRequest(tr("Only what is in the trash is deleted for good: /trash moves a conversation there."))
    if not repl.asking.can_ask:
        told = tr("Nobody can be asked here: `chatapp sessions delete {id} --forever` does it.")
        raise BadRequest(told.format(id=session.id))
    delete = tr("Delete “{title}” for good: its text, its search words and its KV. No way back.")
    ways = [
        Way("keep", tr("Keep it. Nothing is deleted.")),
        Way("delete", delete.format(title=_title(session))),
    ]
    question = tr("Delete “{title}” for good? It cannot be taken back.").format(title=_title(session))
    if await repl.asking.choose(question, ways) != "delete":
        repl.voice.say(tr("Nothing was deleted."))
        return
    repl.manager.delete_forever(session.id)
    repl.current = None if repl.current == session.id else repl.current
    repl.voice.say(tr("Deleted for good: {title}").format(title=_title(session)))


async def _opened(repl: Repl) -> None:
    session = repl.session()
    n_messages = sum(message.role != "system" for message in repl.manager.messages(session.id))
    opened = tr("Opened: {title}, {messages}. /show shows the last turn.")
    repl.voice.say(opened.format(title=_title(session), messages=_messages(n_messages)))
    if session.task and session.task != session.title:
        repl.voice.say(tr("The task: {task}").format(task=clean_line(session.task, 200)))
    if session.trashed_at is not None:
        repl.voice.say(tr("It is in the trash: /restore takes it back."))
    elif session.state == "done":
        repl.voice.say(tr("It is done and takes no message: /done opens it again."))
    elif reason := repl.holding.why(session.id):
        repl.voice.say(reason)
    elif repl.asking.can_ask:  # a pipe has its next message ready, which does the same
        await resume(repl)


def _print_messages(repl: Repl, messages: Sequence[Message]) -> None:
    for message in messages:
        status = f", {name}" if (name := status_name(message.status)) else ""
        text = answer_of(message.text) if message.role == "assistant" else message.text
        head = tr("{role}, message {id}").format(role=role_name(message.role), id=message.id)
        repl.voice.print(f"{head}{status}:\n{text.rstrip()}\n\n")


def _row(summary: SessionSummary) -> str:
    session = summary.session
    marks = [f"{_title(session)}, {_messages(summary.n_messages)}, {when(session.updated_at)}"]
    marks += [tr("done")] if session.state == "done" else []
    marks += [tr("pinned")] if session.pinned_at is not None else []
    marks += [f"#{clean_line(name, 40)}" for name in session.tags]
    return ", ".join([*marks, tr("id {id}").format(id=session.id)])


def _messages(n: int) -> str:
    return tr_n("{n} message", "{n} messages", n).format(n=f"{n:,}")


def _title(session: Session) -> str:
    return clean_line(session.title, _TITLE_CELLS) or tr("(empty)")
