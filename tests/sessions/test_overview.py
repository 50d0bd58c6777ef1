import pytest

from sessions.conversation import SessionSummary
from sessions.overview import Wanted
from sessions.store import Store


def ids(summaries: list[SessionSummary]) -> list[str]:
    """Return the ids of rows."""
    return [row.session.id for row in summaries]


@pytest.fixture
def keys(store: Store) -> list[str]:
    """Eight conversations, oldest first: 1 and 4 are pinned, 2 is archived, 3 in the trash, 5 done, 6 and 1 tagged."""
    made = [store.create_session().id for _ in range(8)]
    for number in (4, 1):
        store.set_pinned(made[number], pinned=True)
    store.set_archived(made[2], archived=True)
    store.set_trashed(made[3], trashed=True)
    store.set_state(made[5], "done")
    for number in (6, 1):
        store.set_tags(made[number], ["work"])
    return made


def test_pinned_ones_come_first_then_the_last_used(store: Store, keys: list[str]) -> None:
    """Neither the archive nor the trash is among them."""
    assert ids(store.summaries()) == [keys[n] for n in (4, 1, 7, 6, 5, 0)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(is_trashed=True), [3]),
        (Wanted(is_archived=True), [2]),
        (Wanted(is_pinned=True), [4, 1]),
        (Wanted(tag="work"), [1, 6]),
        (Wanted(tag="nothing"), []),
        (Wanted(state="done"), [5]),
        (Wanted(state="open", tag="work", is_pinned=True), [1]),
    ],
)
def test_what_is_wanted_is_listed(store: Store, keys: list[str], wanted: Wanted, expected: list[int]) -> None:
    """Each filter alone and together."""
    assert ids(store.summaries(wanted)) == [keys[n] for n in expected]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_have_everything_once(store: Store, keys: list[str], limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their size, across the end of the pinned ones, and while a message moves another one to the top."""
    monkeypatch.setattr("sessions.overview._AT_ONCE", 2)
    seen: list[SessionSummary] = []
    while page := store.summaries(limit=limit, after=seen[-1] if seen else None):
        assert len(page) <= limit
        seen += page
        store.add_question(keys[7], "moves to the top", title="t")
    assert ids(seen) == [keys[n] for n in (4, 1, 7, 6, 5, 0)]


def test_pages_of_one_moment_have_everything_once(store: Store) -> None:
    """Where the time is the same, the id decides."""
    made = [store.create_session().id for _ in range(5)]
    with store.db.transaction() as db:
        db.execute("UPDATE sessions SET updated_at = 1")
    seen: list[SessionSummary] = []
    while page := store.summaries(limit=2, after=seen[-1] if seen else None):
        seen += page
    assert sorted(ids(seen)) == made
