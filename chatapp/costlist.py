"""The cost view of a conversation, for people and as a JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from chatapp.listing import role_name, table
from chatapp.misstexts import reason_text
from chatapp.safe import clean_line
from chatapp.statlist import bytes_, count, seconds, share
from chatapp.texts import tr
from sessions.conversation import Message, Session
from sessions.costs import Cost

LARGEST = 5


def cost_object(session: Session, cost: Cost) -> dict[str, Any]:
    """Return the view with every key, null where unknown."""
    values = asdict(cost)
    for turn, reuse in zip(values["last_turns"], cost.last_turns, strict=True):
        turn["reuse_share"] = reuse.reuse_share
    return {"session": session.id, "model": session.model.name if session.model else None, **values}


def cost_text(session: Session, cost: Cost, messages: Mapping[int, Message]) -> Iterator[str]:
    """Yield the view as text: the whole, by role, the largest messages, the last turns, and what to do."""
    model = f", {clean_line(session.model.name, 60)}" if session.model else ""
    title = clean_line(session.title, 80) or tr("(empty)")
    yield f"{title}\n{session.id}{model}\n\n"
    yield table(_whole(cost))
    if cost.roles:
        yield "\n"
        yield table(_by_role(cost))
        yield "\n"
        yield table(_largest(cost, messages))
    if cost.last_turns:
        yield "\n"
        yield table(_last_turns(cost))
    if sentence := heavy_sentence(session, cost):
        yield f"\n{sentence}\n"


def heavy_sentence(session: Session, cost: Cost) -> str | None:
    """What to say of an old message that holds much of the conversation."""
    if cost.heavy is None:
        return None
    held = share(cost.heavy.share)
    if cost.heavy.question_id is None:
        text = tr("The system prompt holds {share} of the tokens: a shorter one makes each answer cheaper.")
        return text.format(share=held)
    fork = f"chatapp sessions fork {session.id} --without {cost.heavy.question_id}"
    text = tr("Message {id} holds {share} of the tokens: `{command}` goes on without its turn.")
    return text.format(id=cost.heavy.message_id, share=held, command=fork)


def _whole(cost: Cost) -> list[list[str]]:
    n_tokens = _about(cost.n_tokens, is_estimate=cost.is_estimate)
    if cost.n_ctx:
        of_context = tr("{n}, {share} of a context of {n_ctx}")
        n_tokens = of_context.format(n=n_tokens, share=share(cost.context_share), n_ctx=f"{cost.n_ctx:,}")
    back = tr("prefill {prefill}, restore {restore}")
    rows = [
        [tr("tokens"), n_tokens],
        ["KV", bytes_(cost.kv_bytes)],
        [tr("coming back"), back.format(prefill=seconds(cost.rebuild_s), restore=seconds(cost.restore_s))],
    ]
    if cost.on_task_share is not None:
        rows.append([tr("on the task"), share(cost.on_task_share)])
    return rows


def _by_role(cost: Cost) -> list[list[str]]:
    rows = [[tr("role"), *(f">{name}" for name in (tr("messages"), tr("tokens"), tr("share"), "KV"))]]
    for role in cost.roles:
        values = (f"{role.n_messages:,}", count(role.n_tokens), share(role.share), bytes_(role.kv_bytes))
        rows.append([role_name(role.role), *(f">{value}" for value in values)])
    return rows


def _largest(cost: Cost, messages: Mapping[int, Message]) -> list[list[str]]:
    numbers = [f">{name}" for name in (tr("tokens"), tr("share"), "KV")]
    rows = [[">" + tr("message"), tr("role"), *numbers, tr("text")]]
    for message in cost.largest(LARGEST):
        text = clean_line(messages[message.message_id].text, 48)
        rows.append(
            [
                f">{message.message_id}",
                role_name(message.role),
                f">{_about(message.n_tokens, is_estimate=message.is_estimate)}",
                f">{share(message.share)}",
                f">{bytes_(message.kv_bytes)}",
                f" {text}" if text.startswith(">") else text,  # a mark of the table's own
            ]
        )
    return rows


def _last_turns(cost: Cost) -> list[list[str]]:
    origins = (tr("resident"), tr("restored"), tr("prefilled"), tr("reused"))
    rows = [[*(f">{name}" for name in (tr("answer"), tr("prompt"), *origins)), tr("not from disk")]]
    for turn in cost.last_turns:
        parts = (turn.prompt_tokens, turn.resident_tokens, turn.restored_tokens, turn.prefilled_tokens)
        rows.append(
            [
                f">{turn.message_id}",
                *(f">{count(part)}" for part in parts),
                f">{share(turn.reuse_share)}",
                clean_line(reason_text(turn.miss_reason or ""), 60),
            ]
        )
    return rows


def _about(n_tokens: int, *, is_estimate: bool) -> str:
    return tr("about {n}").format(n=f"{n_tokens:,}") if is_estimate else f"{n_tokens:,}"
