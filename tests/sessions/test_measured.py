import tracemalloc

import pytest

from models.engine import TokenRun, TurnStats
from sessions import measured
from sessions.conversation import ModelRef
from sessions.conversations import Conversations
from sessions.measured import Scope, newest_stats, turn_rows, turns
from sessions.statistics import FIELDS, summarize
from sessions.store import Store

RUN = TokenRun((1, 2, 3), 1, 2)
TINY = ModelRef("aa", "Tiny", "", 1)
LARGE = ModelRef("bb", "Large", "", 2)


def answer(
    store: Store, session_id: str, stats: TurnStats | None, model: ModelRef | None = TINY, run: TokenRun | None = RUN
) -> int:
    """Store a turn; return its answer's id."""
    question = store.add_question(session_id, "q", title="q")
    return store.add_answer(question, "a", "complete", run=run, stats=stats, model=model).id


def test_a_turn_has_all_its_stats(store: Store) -> None:
    """Every field comes back as it was stored; answers without stats are no turns."""
    key = store.create_session().id
    stats = TurnStats(ttft_s=0.5, prompt_tokens=7, miss_reason="nothing stored", restore_decision="prefill", seed=11)
    message_id = answer(store, key, stats)
    answer(store, key, None)
    [turn] = turns(store.db)
    found = store.message(message_id)
    assert found is not None
    assert (turn.session_id, turn.message_id, turn.model, turn.stats) == (key, message_id, "Tiny", stats)
    assert turn.at == found.created_at
    [row] = turn_rows(store.db)
    assert {name: row[name] for name in FIELDS} == {name: getattr(stats, name) for name in FIELDS}


def test_a_forks_copies_are_not_counted_again(store: Store) -> None:
    """What was answered once is one turn; what a fork says itself is its own."""
    key = store.create_session().id
    answer(store, key, TurnStats(output_tokens=1))
    fork = Conversations(store).fork(key)
    answer(store, fork.id, TurnStats(output_tokens=2))
    again = Conversations(store).fork(fork.id)
    assert [m.stats.output_tokens for m in store.messages(again.id) if m.stats] == [1, 2]
    assert [(t.session_id, t.stats.output_tokens) for t in turns(store.db)] == [(key, 1), (fork.id, 2)]
    assert [stats.output_tokens for stats in newest_stats(store.db, "aa")] == [2, 1]


def test_a_turn_belongs_to_the_model_that_answered(store: Store) -> None:
    """Another model that goes on with the conversation reads old answers, and is not taken for their author."""
    key = store.create_session().id
    first = answer(store, key, TurnStats(output_tokens=1))
    store.set_model(key, LARGE)
    store.add_runs(key, {first: RUN}, LARGE)
    answer(store, key, TurnStats(output_tokens=2), LARGE)
    assert [(turn.model, turn.stats.output_tokens) for turn in turns(store.db)] == [("Tiny", 1), ("Large", 2)]
    assert [stats.output_tokens for stats in newest_stats(store.db, "bb")] == [2]


def test_an_answer_without_tokens_is_of_the_conversations_model(store: Store) -> None:
    """Where no tokens were kept, or no model at all, as much is told as is known."""
    key, other = store.create_session().id, store.create_session().id
    answer(store, key, TurnStats(output_tokens=1), run=None)
    answer(store, other, TurnStats(output_tokens=2), None)
    assert [turn.model for turn in turns(store.db)] == ["Tiny", None]


def test_a_scope_leaves_turns_out(store: Store) -> None:
    """By time, by the beginning of the model's name, and by the trash unless it is asked for."""
    keys = [store.create_session().id for _ in range(3)]
    for key, model in zip(keys, (TINY, LARGE, TINY), strict=True):
        answer(store, key, TurnStats(), model)
    store.set_trashed(keys[2], trashed=True)

    def found(scope: Scope) -> list[str]:
        return [turn.session_id for turn in turns(store.db, scope)]

    assert found(Scope()) == keys[:2]
    assert found(Scope(with_trash=True)) == keys
    assert found(Scope(model="tin")) == keys[:1]
    second = next(turn for turn in turns(store.db) if turn.session_id == keys[1])
    assert found(Scope(since=second.at)) == keys[1:2]
    assert found(Scope(since=second.at + 0.5)) == []


def test_pages_join_without_gaps(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn comes once, wherever a page ends."""
    monkeypatch.setattr(measured, "PAGE_ROWS", 3)
    key = store.create_session().id
    ids = [answer(store, key, TurnStats(output_tokens=n)) for n in range(7)]
    assert [turn.message_id for turn in turns(store.db)] == ids
    assert [turn.message_id for turn in turns(store.db, Scope(model="other"))] == []


def test_the_newest_stats_are_limited(store: Store) -> None:
    """The newest come first, and no more than asked for."""
    key = store.create_session().id
    for n in range(4):
        answer(store, key, TurnStats(output_tokens=n))
    assert [stats.output_tokens for stats in newest_stats(store.db, "aa", limit=2)] == [3, 2]
    assert newest_stats(store.db, "zz") == []


def test_memory_does_not_grow_with_the_turns(store: Store) -> None:
    """Twenty thousand turns are counted in little more than their two numbers each."""
    key = store.create_session().id
    with store.db.transaction() as db:
        for n in range(1, 20_001):
            db.execute(
                "INSERT INTO messages (id, session_id, role, status, created_at, text) VALUES (?, ?, ?, ?, ?, ?)",
                [n, key, "assistant", "complete", float(n), "a"],
            )
            db.execute("INSERT INTO answer_stats VALUES (?, ?)", [n, '{"ttft_s":0.5,"tpot_s":0.1}'])
    tracemalloc.start()
    try:
        total = summarize(turn_rows(store.db)).total
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total.n_turns == 20_000
    assert peak_bytes < 12_000_000  # all rows at once take over 20 MB
