"""Commands on messages: other versions of them, going on, forking, taking back, the system prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chatapp import listing
from chatapp.plain.turns import answered, loaded, sampling, send
from chatapp.safe import clean_line
from chatapp.texts import tr
from sessions.errors import BadRequest

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl


async def revise(repl: Repl, text: str) -> None:
    """Ask for another version of a question, and have it answered."""
    session = repl.writable()
    questions = [message for message in repl.manager.messages(session.id) if message.role == "user"]
    chosen = [message for message in questions if not text or str(message.id) == text]
    if not chosen:
        raise BadRequest(tr("There is no such question: /show all shows the numbers of messages."))
    if not repl.asking.can_ask:
        raise BadRequest(
            tr("Nobody can be asked here: `chatapp run --session ID --edit MESSAGE` takes another version.")
        )
    changed = await repl.asking.line(tr("Question: "), chosen[-1].text)
    if changed is None or changed == chosen[-1].text:
        repl.voice.say(tr("The question stays as it is."))
        return
    await send(repl, changed, edits=chosen[-1].id)


async def again(repl: Repl, _: str) -> None:
    """Have the last question answered once more."""
    session = repl.writable()
    if await loaded(repl):
        await answered(repl, repl.manager.regenerate(session.id, sampling(repl)))


async def continue_(repl: Repl, _: str) -> None:
    """Let the last answer go on."""
    session = repl.writable()
    if await loaded(repl):
        messages = repl.manager.messages(session.id)
        n_told = len(messages[-1].text) if messages else 0
        await answered(repl, repl.manager.continue_answer(session.id, sampling(repl)), n_told=n_told)


async def fork(repl: Repl, text: str) -> None:
    """Go on in a copy of the conversation."""
    if text and not text.isdecimal():
        raise BadRequest(tr("/fork takes the number of the last message to take; /show all shows the numbers."))
    made = repl.manager.fork(repl.session().id, through=int(text) if text else None)
    repl.current = made.id
    said = tr("A fork of {title}: a conversation of its own from here on.")
    repl.voice.say(said.format(title=clean_line(made.title, 60)))


async def undo(repl: Repl, _: str) -> None:
    """Take back the last turn."""
    question = repl.manager.undo(repl.writable().id)
    repl.voice.say(tr("The last turn is taken back; the tree of branches still has it. Its question was:"))
    repl.voice.print(question)


async def tree(repl: Repl, text: str) -> None:
    """List the messages of all branches, or show the branch through one."""
    session = repl.session()
    if text:
        if not text.isdecimal():
            raise BadRequest(tr("/tree takes the number of a message; alone, it shows all of them."))
        repl.manager.show_branch(repl.writable().id, int(text))
        repl.voice.say(tr("The conversation goes on with this branch; /show shows its last turn."))
        return
    messages = repl.manager.tree(session.id)
    repl.voice.end_line()
    listing.print_tree(messages, {message.id for message in repl.manager.messages(session.id)}, as_json=False)
    if messages:
        repl.voice.hint(tr("A star marks what is shown now; /tree with a number shows another branch."))


async def system(repl: Repl, text: str) -> None:
    """Say which system prompt there is, or give the conversation another one."""
    session = repl.session() if repl.current is not None else None
    if not text:
        if session is None or session.system is None:
            repl.voice.say(tr("There is no system prompt."))
        else:
            repl.voice.say(tr("The system prompt:"))
            repl.voice.print(session.system)
        return
    prompt = repl.manager.prompts.resolve(text)
    if session is None:
        repl.current = repl.manager.new(system=prompt).id
        repl.voice.say(tr("A new conversation has the system prompt; your next message goes there."))
        return
    if session.system == prompt:
        repl.voice.say(tr("The conversation has this system prompt already."))
        return
    has_messages = any(message.role != "system" for message in repl.manager.messages(session.id))
    if not has_messages:
        repl.writable()
    changed = repl.manager.change_system(session.id, prompt)
    repl.current = changed.id
    if has_messages:
        repl.voice.say(tr("This is the fork with the new system prompt; the old conversation is in the list."))
        return
    if changed.id != session.id:
        repl.manager.delete_forever(session.id)  # it held another prompt and nothing else
    repl.voice.say(tr("The conversation has the system prompt."))
