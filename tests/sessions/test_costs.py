from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from models.engine import Role, TokenRun, TurnStats
from sessions.conversation import Message
from sessions.costs import HEAVY_SHARE, Heavy, Rates, cost_of, rates_of


def message(message_id: int, role: Role, n_tokens: int, stats: TurnStats | None = None) -> Message:
    """Return a message of so many tokens."""
    run = TokenRun(tuple(range(n_tokens)), 0, n_tokens)
    return Message(message_id, "s", role, "text", "complete", run, stats, float(message_id))


def talk(*sizes: int, system: int | None = None) -> list[Message]:
    """Return turns whose questions and answers have so many tokens, in turn; ids count from 1."""
    messages = [] if system is None else [message(1, "system", system)]
    for n, size in enumerate(sizes):
        messages.append(message(len(messages) + 1, "assistant" if n % 2 else "user", size))
    return messages


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(1, 300) | st.none())
def test_parts_make_the_whole(sizes: list[int], system: int | None) -> None:
    """Messages, and roles, add up to the conversation: tokens, bytes and shares."""
    cost = cost_of(talk(*sizes[: len(sizes) // 2 * 2], system=system), kv_bytes_per_token=10, n_ctx=1000)
    for parts in (cost.messages, cost.roles):
        assert sum(part.n_tokens for part in parts) == cost.n_tokens
        assert sum(part.kv_bytes or 0 for part in parts) == cost.kv_bytes == 10 * cost.n_tokens
        assert not parts or abs(sum(part.share for part in parts) - 1) < 1e-9
    assert cost.context_share == cost.n_tokens / 1000
    assert sum(role.n_messages for role in cost.roles) == len(cost.messages)


def test_what_no_prompt_holds_costs_nothing() -> None:
    """A question that failed, and one that still waits, are not in the context."""
    failed = replace(message(1, "user", 100), status="failed")
    waiting = message(9, "user", 70)
    cost = cost_of([failed, *(replace(m, id=m.id + 1) for m in talk(10, 20)), waiting])
    assert (cost.n_tokens, [m.message_id for m in cost.messages]) == (30, [2, 3])


def test_unread_messages_are_estimated() -> None:
    """A message without tokens is counted by its text, and said to be."""
    unread = replace(message(2, "assistant", 0), run=None, text="x" * 300)
    cost = cost_of([message(1, "user", 10), unread])
    assert cost.is_estimate
    assert [m.is_estimate for m in cost.messages] == [False, True]
    assert cost.n_tokens > 100
    assert not cost_of(talk(10, 20)).is_estimate


def test_kv_comes_from_the_newest_answer_that_knows() -> None:
    """Without a loaded model the stats tell; a state beside the rows is added; else it is unknown."""
    answers = [message(2, "assistant", 5, TurnStats(kv_bytes_per_token=7)), message(4, "assistant", 5, TurnStats())]
    messages = [message(1, "user", 5), answers[0], message(3, "user", 5), answers[1]]
    assert cost_of(messages).kv_bytes == 20 * 7
    assert cost_of(messages, kv_bytes_per_token=2, kv_state_bytes=100).kv_bytes == 140
    assert cost_of(talk(5, 5)).kv_bytes is None
    assert cost_of(talk(5, 5), kv_bytes_per_token=0, kv_state_bytes=64).kv_bytes == 64


def test_an_old_message_that_holds_most_is_warned_of() -> None:
    """The turn of a pasted log is the one to leave out, be the log its question or its answer."""
    assert cost_of(talk(10, 900, 10, 10, 10, 10, system=20)).heavy == Heavy(3, 900 / 970, 2)
    assert cost_of(talk(900, 10, 10, 10, 10, 10, system=20)).heavy == Heavy(2, 900 / 970, 2)
    later = talk(10, 10, 10, 900, 10, 10, 10, 10)
    assert cost_of(later).heavy == Heavy(4, 900 / 970, 3)


def test_the_last_two_turns_are_not_old() -> None:
    """What is being talked about may be long."""
    assert cost_of(talk(10, 10, 900, 10, 10, 10)).heavy is None
    assert cost_of(talk(10, 10, 10, 10, 900, 10)).heavy is None
    assert cost_of(talk(900, 10)).heavy is None


def test_a_system_prompt_can_not_be_left_out() -> None:
    """It is named without a question; in a first turn every system prompt is most of it, and nothing is said."""
    assert cost_of(talk(10, 10, 10, 10, system=900)).heavy == Heavy(1, 900 / 940, None)
    assert cost_of(talk(10, 10, system=900)).heavy is None
    assert cost_of([]).heavy is None


def test_the_warning_begins_at_its_share() -> None:
    """At 40 % it is said, below it is not."""
    assert HEAVY_SHARE == 0.4
    at, below = (cost_of(talk(n, 0, 15, 15, 15, 15)).heavy for n in (40, 39))
    assert (at, below) == (Heavy(1, 0.4, 1), None)


def test_rates_are_medians_of_turns_that_tell() -> None:
    """Short prefills are mostly overhead: they count only where there is nothing else."""
    turns = [
        TurnStats(prefilled_tokens=100, prefill_s=1.0, restored_tokens=1000, restore_s=0.5),
        TurnStats(prefilled_tokens=200, prefill_s=1.0),
        TurnStats(prefilled_tokens=900, prefill_s=1.0),
        TurnStats(prefilled_tokens=4, prefill_s=1.0, restored_tokens=0, restore_s=0.0),
        TurnStats(),
    ]
    assert rates_of(turns) == Rates(200.0, 2000.0)
    assert rates_of(turns[3:]) == Rates(4.0, None)
    assert rates_of([]) == Rates(None, None)


def test_coming_back_takes_the_tokens_by_the_rates() -> None:
    """Both ways are told, where the rate is known."""
    cost = cost_of(talk(50, 50), rates=Rates(prefill=20.0))
    assert (cost.rebuild_s, cost.restore_s) == (5.0, None)
    assert cost_of(talk(50, 50), rates=Rates(restore=1000.0)).restore_s == 0.1


def test_attention_is_the_share_that_is_on_the_task() -> None:
    """By tokens of what was judged; the system prompt is always on it; without a judge it is unknown."""
    messages = talk(10, 30, 40, 20, system=20)
    scores = {2: 0.9, 3: 0.5, 4: 0.2, 5: 0.49}
    assert cost_of(messages, relevance=scores).on_task_share == (20 + 10 + 30) / 120
    assert cost_of(messages, relevance={2: 0.9, 4: 0.1}).on_task_share == 30 / 70
    assert cost_of(messages).on_task_share is None
    assert [m.relevance for m in cost_of(messages, relevance={2: 0.9}).messages] == [None, 0.9, None, None, None]


def test_the_last_turns_say_what_they_reused() -> None:
    """The newest five that were measured, oldest first; unknown parts stay unknown."""
    messages = []
    for n in range(1, 8):
        stats = TurnStats(prompt_tokens=100, resident_tokens=70, restored_tokens=10, prefilled_tokens=20)
        messages += [message(2 * n - 1, "user", 1), message(2 * n, "assistant", 1, stats if n < 7 else TurnStats())]
    found = cost_of(messages).last_turns
    assert [turn.message_id for turn in found] == [6, 8, 10, 12, 14]
    assert [turn.reuse_share for turn in found] == [0.8] * 4 + [None]


def test_the_largest_come_first() -> None:
    """Of messages of one size, the older one."""
    assert [m.message_id for m in cost_of(talk(5, 9, 9, 1)).largest(3)] == [2, 3, 1]
