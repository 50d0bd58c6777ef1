"""One task per conversation: what is asked before a message is sent that looks like another task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chatapp.plain.asking import Way
from chatapp.safe import clean_line
from chatapp.texts import tr, tr_later
from sessions.attachments import typed
from sessions.conversation import Draft
from sessions.policy import Verdict

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl

NOT_SENT = tr_later("The message was not sent.")
_TASK_CELLS = 200


@dataclass(frozen=True, slots=True)
class Judged:
    """A message that may be sent where messages go now; `verdict` None: nothing was judged."""

    verdict: Verdict | None = None


async def judged(repl: Repl, draft: Draft, *, edits: int | None = None) -> Judged | None:
    """Judge a message, and ask if need be where it is to go; None if nowhere."""
    if repl.current is None or repl.manager.judging.policy == "off":
        return Judged()
    own = typed(draft) or draft.text
    verdict = await repl.following.wait(repl.manager.check(repl.current, own, edits=edits))
    if verdict is None:
        repl.voice.say(tr(NOT_SENT))
        return None
    match repl.manager.judging.step(verdict):
        case "hint":
            repl.voice.hint(" ".join([verdict.reason, tr("/new begins a new conversation.")]))
        case "dialog":
            return await _asked(repl, verdict)
    return Judged(verdict)


async def _asked(repl: Repl, verdict: Verdict) -> Judged | None:
    session = repl.session()
    may_keep = repl.manager.may_keep(session.id)
    question = tr("This looks like another task. {reason} The task here: {task}").format(
        reason=verdict.reason, task=clean_line(session.task, _TASK_CELLS)
    )
    if not repl.asking.can_ask:
        way_out = tr("It was not sent, and nobody can be asked: /policy off or /new before it lets it go.")
        repl.fail(f"{question}\n{way_out}")
        return None
    match await repl.asking.choose(question, _ways(may_keep=may_keep, has_system=session.system is not None)):
        case "new":
            repl.current = None
            return Judged()
        case "fork":
            repl.current = repl.manager.fork(session.id, system_only=True).id
            return Judged()
        case "keep":
            return Judged(verdict)
        case "task":
            task = await repl.asking.line(tr("Task line: "), session.task)
            if task and task != session.task:
                repl.manager.set_task(session.id, task)
                return Judged(verdict)
    repl.voice.say(tr(NOT_SENT))
    return None


def _ways(*, may_keep: bool, has_system: bool) -> list[Way]:
    ways = [Way("new", tr("New conversation: the message is sent there, this one stays what it is about."))]
    if has_system:
        ways.append(Way("fork", tr("New conversation with this system prompt, and nothing else of it.")))
    if may_keep:
        ways.append(Way("keep", tr("Keep it here: the message is sent in this conversation.")))
    else:
        ways.append(Way("task", tr("Change the task line; then the message is sent here. The change is recorded.")))
    return [*ways, Way("cancel", tr("Cancel: the message is not sent."))]
