"""What one conversation costs, and why: tokens and KV by message, what was reused, what coming back takes; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType

from models.engine import Role, TurnStats
from sessions.conversation import Message
from sessions.history import prompt_messages
from sessions.room import tokens_of

HEAVY_SHARE = 0.4
"""From this share of the tokens on, one old message is warned of."""
RECENT_TURNS = 2
"""Turns whose messages are not old."""
ON_TASK = 0.5
"""Lowest relevance of a message that is on the task."""
RELEVANCE = MappingProxyType({"same": 1.0, "unsure": 0.5, "other": 0.0})
"""How relevant a message is, by what the judge of the task policy said of it."""
LAST_TURNS = 5
RATE_TOKENS = 32
"""Fewest tokens of a turn that says how fast a model is: for fewer, the fixed part is most of the time."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second, medians over turns; None where no turn tells."""

    prefill: float | None = None
    restore: float | None = None


@dataclass(frozen=True, slots=True)
class MessageCost:
    """One message of the prompt. `n_tokens` counts its glue, `is_estimate` where its model has not read it yet.

    `share` is of all tokens of the conversation; `relevance` (0 to 1) is a judge's, None where there is none.
    """

    message_id: int
    role: Role
    created_at: float
    n_tokens: int
    is_estimate: bool
    share: float
    kv_bytes: int | None
    relevance: float | None


@dataclass(frozen=True, slots=True)
class RoleCost:
    """All messages of a role together."""

    role: Role
    n_messages: int
    n_tokens: int
    share: float
    kv_bytes: int | None


@dataclass(frozen=True, slots=True)
class TurnReuse:
    """Where the prompt tokens of a turn came from, by its answer's id; None where the stats do not say."""

    message_id: int
    prompt_tokens: int | None
    resident_tokens: int | None
    restored_tokens: int | None
    prefilled_tokens: int | None
    miss_reason: str | None

    @property
    def reuse_share(self) -> float | None:
        """Share of the prompt tokens that were not evaluated."""
        if self.resident_tokens is None or self.restored_tokens is None or not self.prompt_tokens:
            return None
        return (self.resident_tokens + self.restored_tokens) / self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Heavy:
    """An old message that holds much of the conversation; a fork without `question_id` leaves its turn out.

    None for the system prompt, which is no turn.
    """

    message_id: int
    share: float
    question_id: int | None


@dataclass(frozen=True, slots=True)
class Cost:
    """What a conversation costs: memory (`kv_bytes`), time to come back (`rebuild_s`, `restore_s`), attention.

    `context_share` is what it takes of a context of `n_ctx` tokens. `on_task_share` is the share of the tokens that are
    on the task, of those that were judged; the system prompt always is. None is unknown.
    """

    n_tokens: int
    is_estimate: bool
    kv_bytes: int | None
    n_ctx: int | None
    context_share: float | None
    messages: tuple[MessageCost, ...]
    roles: tuple[RoleCost, ...]
    last_turns: tuple[TurnReuse, ...]
    rebuild_s: float | None
    restore_s: float | None
    heavy: Heavy | None
    on_task_share: float | None

    def largest(self, n: int) -> list[MessageCost]:
        """Return the messages that hold most, largest first."""
        return sorted(self.messages, key=lambda message: (-message.n_tokens, message.message_id))[:n]


def rates_of(turns: Iterable[TurnStats]) -> Rates:
    """Return how fast a model prefills and restores, by its turns.

    Turns of fewer than `RATE_TOKENS` count only where there are no others.
    """
    turns = list(turns)
    return Rates(
        _rate((turn.prefilled_tokens, turn.prefill_s) for turn in turns),
        _rate((turn.restored_tokens, turn.restore_s) for turn in turns),
    )


def cost_of(
    messages: Sequence[Message],
    *,
    n_ctx: int | None = None,
    kv_bytes_per_token: int | None = None,
    kv_state_bytes: int = 0,
    rates: Rates = Rates(),
    relevance: Mapping[int, float] | None = None,
) -> Cost:
    """Return what the messages of a branch cost, oldest first; those that no later prompt holds are not counted.

    Without `kv_bytes_per_token`, that of the newest answer that knows it is taken. `relevance` is by message id.
    """
    scores = relevance or {}
    counted = prompt_messages(messages)
    tokens = {message.id: tokens_of(message) for message in counted}
    n_tokens = sum(tokens.values())
    per_token = kv_bytes_per_token if kv_bytes_per_token is not None else _known_kv(messages)
    costs = tuple(
        MessageCost(
            message.id,
            message.role,
            message.created_at,
            tokens[message.id],
            message.run is None,
            _share(tokens[message.id], n_tokens),
            None if per_token is None else tokens[message.id] * per_token,
            scores.get(message.id),
        )
        for message in counted
    )
    return Cost(
        n_tokens=n_tokens,
        is_estimate=any(cost.is_estimate for cost in costs),
        kv_bytes=None if per_token is None else n_tokens * per_token + kv_state_bytes,
        n_ctx=n_ctx,
        context_share=n_tokens / n_ctx if n_ctx else None,
        messages=costs,
        roles=_roles(costs, n_tokens),
        last_turns=_last_turns(messages),
        rebuild_s=n_tokens / rates.prefill if rates.prefill else None,
        restore_s=n_tokens / rates.restore if rates.restore else None,
        heavy=_heavy(counted, costs),
        on_task_share=_on_task(costs),
    )


def _roles(costs: Sequence[MessageCost], n_tokens: int) -> tuple[RoleCost, ...]:
    roles: tuple[Role, ...] = ("system", "user", "assistant")
    found = []
    for role in roles:
        own = [cost for cost in costs if cost.role == role]
        if own:
            total = sum(cost.n_tokens for cost in own)
            kv = [cost.kv_bytes for cost in own if cost.kv_bytes is not None]
            found.append(RoleCost(role, len(own), total, _share(total, n_tokens), sum(kv) if kv else None))
    return tuple(found)


def _heavy(counted: Sequence[Message], costs: Sequence[MessageCost]) -> Heavy | None:
    """The old message that holds most, if that is much; a question and its answer follow each other."""
    questions = [message.id for message in counted if message.role == "user"]
    old: Collection[int] = {m.id for m in counted if m.role == "system"}
    if len(questions) > RECENT_TURNS:
        first_recent = questions[-RECENT_TURNS]
        old = {*old, *(message.id for message in counted if message.id < first_recent)}
    elif len(questions) < RECENT_TURNS:
        return None  # two turns, and a system prompt longer than both, are how any conversation begins
    worst = max((cost for cost in costs if cost.message_id in old), key=lambda cost: cost.n_tokens, default=None)
    if worst is None or worst.share < HEAVY_SHARE:
        return None
    asked = [question for question in questions if question <= worst.message_id]
    return Heavy(worst.message_id, worst.share, asked[-1] if asked and worst.role != "system" else None)


def _last_turns(messages: Sequence[Message]) -> tuple[TurnReuse, ...]:
    known = [(message.id, message.stats) for message in messages if message.stats]
    return tuple(
        TurnReuse(
            message_id,
            stats.prompt_tokens,
            stats.resident_tokens,
            stats.restored_tokens,
            stats.prefilled_tokens,
            stats.miss_reason,
        )
        for message_id, stats in known[-LAST_TURNS:]
    )


def _on_task(costs: Sequence[MessageCost]) -> float | None:
    judged = [cost for cost in costs if cost.relevance is not None]
    if not judged:
        return None
    counted = [*judged, *(cost for cost in costs if cost.role == "system" and cost.relevance is None)]
    on_task = [cost for cost in counted if cost.role == "system" or (cost.relevance or 0) >= ON_TASK]
    return _share(sum(cost.n_tokens for cost in on_task), sum(cost.n_tokens for cost in counted))


def _known_kv(messages: Sequence[Message]) -> int | None:
    return next(
        (m.stats.kv_bytes_per_token for m in reversed(messages) if m.stats and m.stats.kv_bytes_per_token is not None),
        None,
    )


def _rate(measured: Iterable[tuple[int | None, float | None]]) -> float | None:
    known = [(n, seconds) for n, seconds in measured if n and seconds]
    known = [turn for turn in known if turn[0] >= RATE_TOKENS] or known
    return median(n / seconds for n, seconds in known) if known else None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
