"""Commands on figures and on how answers are made: statistics, cost, sampling, reasoning, the task policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, get_args

from chatapp.config import Policy, Thoughts
from chatapp.plain import words
from chatapp.texts import tr
from chatapp.verbs import OWN
from models.presets import PRESETS
from sessions.conversation import ReasoningPolicy
from sessions.errors import BadRequest

if TYPE_CHECKING:
    from chatapp.plain.repl import Repl
    from models.engine import TurnStats
    from sessions.statistics import Key

T = TypeVar("T")


async def stats(repl: Repl, text: str) -> None:
    """Say what the last answer cost, after each answer if wanted, or the figures of all."""
    match text:
        case "on" | "off":
            repl.shows_stats = text == "on"
            repl.voice.say(
                tr("What an answer cost is said after each.") if repl.shows_stats else tr("No more of that.")
            )
        case "all":
            from chatapp.statlist import statistics_text

            by: tuple[Key, ...] = ("model",)
            repl.voice.print("".join(statistics_text(repl.manager.statistics(by), by)))
        case "":
            found = repl.last_stats or _stored_stats(repl)
            repl.voice.print(words.turn_line(found) if found else tr("There is no answer yet."))
        case _:
            raise BadRequest(tr("/stats takes on, off or all; alone, it tells of the last answer."))


async def cost(repl: Repl, _: str) -> None:
    """Show what the conversation costs."""
    from chatapp.costlist import cost_text

    session, info = repl.session(), repl.engine.info
    is_own = info is not None and session.model is not None and info.weights == session.model.weights
    messages = repl.manager.messages(session.id)
    found = repl.manager.cost(
        session.id,
        n_ctx=session.n_ctx or (info.n_ctx if info and is_own else None),
        kv_bytes_per_token=info.kv_bytes_per_token if info and is_own else None,
    )
    repl.voice.print("".join(cost_text(session, found, {message.id: message for message in messages})))


async def sampling(repl: Repl, text: str) -> None:
    """Choose how the answers of the conversation are sampled."""
    value = _one_of("sampling", text, (*PRESETS, OWN))
    preset = None if value == OWN else value
    repl.manager.choose_sampling(repl.begun().id, preset)
    if preset:
        repl.voice.say(tr("The next answers are sampled by '{preset}'.").format(preset=preset))
    else:
        repl.voice.say(tr("The next answers are sampled as the model recommends."))


async def reasoning(repl: Repl, text: str) -> None:
    """Choose whether later prompts contain the reasoning of answers."""
    choices: tuple[ReasoningPolicy, ...] = ("keep", "strip")
    policy = _one_of("reasoning", text, choices)
    repl.manager.set_reasoning(repl.begun().id, policy)
    if policy == "keep":
        repl.voice.say(tr("Later prompts keep the reasoning of the answers to come."))
    else:
        repl.voice.say(tr("Later prompts leave out the reasoning of the answers to come."))


async def thoughts(repl: Repl, text: str) -> None:
    """Choose how the reasoning of answers is told."""
    choices: tuple[Thoughts, ...] = get_args(Thoughts)
    repl.settings = replace(repl.settings, thoughts=_one_of("thoughts", text, choices))
    said = {
        "mark": tr("Reasoning is one line that says it is there."),
        "show": tr("Reasoning is told before the answer."),
        "hide": tr("Reasoning is not told."),
    }
    repl.voice.say(said[repl.settings.thoughts])


async def policy(repl: Repl, text: str) -> None:
    """Say or choose, until the program ends, what is done about messages of another task."""
    judging = repl.manager.judging
    if text:
        choices: tuple[Policy, ...] = get_args(Policy)
        judging.policy = _one_of("policy", text, choices)
    said = {
        "off": tr("Messages are sent without a look at the task."),
        "ask": tr("Before a message of another task is sent, you are asked."),
        "strict": tr("A message of another task is sent only behind a changed task line."),
    }
    repl.voice.say(said[judging.policy])


def _stored_stats(repl: Repl) -> TurnStats | None:
    messages = repl.manager.messages(repl.current) if repl.current else []
    return next((message.stats for message in reversed(messages) if message.stats), None)


def _one_of(name: str, text: str, values: tuple[T, ...]) -> T:
    for value in values:
        if value == text:
            return value
    raise BadRequest(tr("/{name} takes one of {values}.").format(name=name, values=", ".join(map(str, values))))
