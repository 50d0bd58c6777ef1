"""Questions that are answered together where cells are scarce, or where what they share comes from disk."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from models.engine import Entry, Event, Failed, Finished, Piece, Prepared, Prompt, Sampling, Stored
from models.errors import EngineError
from models.llama import Part
from models.local import LocalEngine
from tests.models.helpers import after, free, local_settings, one, segment_files
from tests.models.test_lanes import answer_alone
from tests.models.tiny_models import build

GREEDY = Sampling(temperature=0, max_tokens=8)
N_CTX = 512


class Tiny:
    """A tiny model that answers three at once, and what it said to each."""

    def __init__(self, root: Path, kind: str, *, n_ctx: int = N_CTX) -> None:
        settings = replace(local_settings(root), model_path=build(kind, root), n_ctx=n_ctx)
        self.heard: dict[int, list[Event]] = {}
        self.cancelled: set[int] = set()
        self.settings = settings
        self.engine = LocalEngine(
            replace(settings, n_parallel=3), lambda _event: None, is_cancelled=self.cancelled.__contains__
        )
        assert self.engine._lanes is not None
        self.lanes = self.engine._lanes
        self.branches = self.lanes._branches

    def join(self, key: int, prompt: Prompt, sampling: Sampling = GREEDY) -> None:
        """Ask, without waiting."""
        self.heard[key] = []
        self.engine.join(key, prompt, sampling, self.heard[key].append)

    def run(self) -> None:
        """Answer all."""
        while self.engine.is_busy:
            self.engine.step()
        self.drain()

    def drain(self) -> None:
        """Let what is kept come to the disk."""
        writer = self.engine._residency._writer
        assert writer is not None
        writer.drain()

    def run_until(self, is_reached: Callable[[], bool]) -> None:
        """Step by step, to a point on the way."""
        while not is_reached():
            assert self.engine.is_busy, "nothing is under way any more"
            self.engine.step()

    def text_of(self, n: int, word: str = "the rope ") -> str:
        """A text of about `n` tokens."""
        each = self.engine.count(word * 20) / 20
        return word * int(n / each)

    def finished(self, key: int) -> Finished:
        """How an answer ended."""
        return one(Finished, self.heard[key])


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Callable[..., Tiny]]:
    """Makes engines over one disk."""
    made: list[Tiny] = []

    def make(kind: str = "dense", *, n_ctx: int = N_CTX) -> Tiny:
        made.append(Tiny(tmp_path, kind, n_ctx=n_ctx))
        return made[-1]

    yield make
    for one_of_them in made:
        free(one_of_them.engine)


def ask(text: str, *, store_kv: bool = False) -> Prompt:
    """A question without a system prompt."""
    return Prompt((Entry("user", text),), store_kv=store_kv)


def test_what_is_shared_stays_while_room_is_made_for_a_restore(tiny: Callable[..., Tiny]) -> None:
    """Freeing cells for what is on disk does not free the branch that the question goes on from otherwise."""
    together = tiny()
    long = together.text_of(240)
    together.join(0, ask(long, store_kv=True))
    together.run()
    together.engine._residency.cut(0)
    together.engine.prepare(ask("x"), lambda _event: None)
    together.join(1, ask(long[: len(long) * 2 // 3]))
    together.run()
    together.join(2, ask(together.text_of(120, "in on ")), replace(GREEDY, max_tokens=60))
    together.run_until(lambda: any(isinstance(event, Prepared) for event in together.heard[2]))
    together.join(3, ask(long, store_kv=True))
    together.run()
    stats = together.finished(3).stats
    assert stats.resident_tokens is not None
    assert stats.resident_tokens > 120
    assert together.finished(2).reason == "length"


def test_a_file_that_finds_no_cells_is_no_damaged_one(tiny: Callable[..., Tiny]) -> None:
    """Where others have the cells, a sound file cannot be loaded: it stays, and serves when there is room."""
    together = tiny(n_ctx=1024)
    long = together.text_of(600)
    together.join(0, ask(long, store_kv=True))
    together.run()
    together.engine._residency.cut(0)
    together.lanes.give_back()
    files = segment_files(together.settings.cache_dir / "kv")
    together.join(1, ask(together.text_of(500, "in on ")), replace(GREEDY, max_tokens=60))
    together.run_until(lambda: any(isinstance(event, Prepared) for event in together.heard[1]))
    half = ask(long[: len(long) // 2] + "in", store_kv=True)
    together.join(2, half)
    together.run()
    assert together.finished(2).stats.restored_tokens == 0
    assert set(files) <= set(segment_files(together.settings.cache_dir / "kv"))
    together.lanes.give_back()
    together.engine._residency.cut(0)
    together.join(3, ask(long, store_kv=True))
    together.run()
    assert (together.finished(3).stats.restored_tokens or 0) > 500


def test_a_turn_is_closed_though_the_cells_are_full(tiny: Callable[..., Tiny]) -> None:
    """What is kept to share gives way, then the newest question; all of them end as they should."""
    together = tiny()
    together.join(0, ask("the rope", store_kv=True), replace(GREEDY, max_tokens=20))
    together.join(1, ask("in on"), replace(GREEDY, max_tokens=60))
    together.run_until(lambda: [len(lane.answer.ids) for lane in together.lanes._running.values()][:1] == [19])
    place = together.lanes._place()
    assert place is not None
    while together.branches.n_free > 3:
        part = Part(place, [5] * min(256, together.branches.n_free - 3))
        assert together.branches.evaluate([part]) == "done"
    together.run()
    for key in together.heard:
        assert [type(event) for event in together.heard[key][-2:]] == [Finished, Stored]
        assert together.finished(key).reason == "length"
    assert one(Stored, together.heard[0]).kv_bytes_written > 0


def test_a_turn_that_cannot_be_closed_fails_alone(tiny: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told so after its answer, and nobody else is."""
    together = tiny()
    together.join(0, ask("the rope", store_kv=True))
    together.join(1, ask("in on"), replace(GREEDY, max_tokens=30))
    monkeypatch.setattr(together.engine, "_close_turn", _refuse)
    together.run()
    assert one(Failed, together.heard[0]).message == "The disk is on fire."
    assert isinstance(together.heard[0][-1], Failed)
    assert (together.finished(0).reason, together.finished(1).reason) == ("length", "length")


def _refuse(*_args: object, **_named: object) -> None:
    raise EngineError("The disk is on fire.")


def test_cells_that_are_shared_are_counted_once(tiny: Callable[..., Tiny]) -> None:
    """Also when one of those who share them has become the resident prefix."""
    together = tiny()
    system = Entry("system", together.text_of(200))
    for key, word in enumerate(("rope", "fish", "in")):
        prompt = Prompt((system, Entry("user", word)), store_kv=key == 0)
        together.join(key, prompt, replace(GREEDY, max_tokens=4 + 16 * key))
    together.run_until(lambda: any(isinstance(event, Finished) for event in together.heard[0]))
    assert together.branches.n_free > N_CTX - 300


def test_a_window_that_has_gone_is_not_shared(tiny: Callable[..., Tiny]) -> None:
    """Of what comes from disk only the window at its end is there: who shares less begins anew."""
    writing = tiny("sliding window")
    long = writing.text_of(300)
    writing.join(0, ask(long, store_kv=True))
    writing.run()
    following = after(ask(long, store_kv=True), writing.heard[0], "more")
    together = tiny("sliding window")
    together.join(0, following)
    together.run()
    assert (together.finished(0).stats.restored_tokens or 0) > 250
    shorter = long[: len(long) // 2] + "in on"
    for key in (1, 2):
        together.lanes.give_back()
        together.join(key, ask(shorter, store_kv=key == 2))
        together.run()
    alone = LocalEngine(together.settings, lambda _event: None)
    expected = answer_alone(alone, ask(shorter), GREEDY).run.body
    free(alone)
    assert [together.finished(key).run.body for key in (1, 2)] == [expected, expected]


def test_closing_ends_what_is_under_way(tmp_path: Path) -> None:
    """Answers that were begun are told and kept as those that are cancelled are; who waits hears of it too."""
    together = Tiny(tmp_path, "dense")
    for key in range(4):
        together.join(key, ask("the rope " * (key + 1), store_kv=key == 0), replace(GREEDY, max_tokens=100))
    together.run_until(lambda: any(isinstance(event, Piece) for event in together.heard[0]))
    free(together.engine)
    assert [together.finished(key).reason for key in range(4)] == ["cancelled"] * 4
    assert together.finished(0).text
    assert one(Stored, together.heard[0]).kv_bytes_written > 0


def test_a_conversation_alone_stays_in_front(tiny: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells are not moved behind each turn: nothing lies before them."""
    together = tiny(n_ctx=1024)
    context = together.engine._context
    monkeypatch.setattr(context, "compact", _refuse)
    prompt = ask(together.text_of(300), store_kv=True)
    for key in range(3):
        together.join(key, prompt)
        together.run()
        prompt = after(prompt, together.heard[key], "more")
        assert context.cells_end <= len(context.tokens) + 2


def test_cells_of_others_are_moved_away(tiny: Callable[..., Tiny]) -> None:
    """A conversation behind the cells of one that has gone comes to the front."""
    together = tiny(n_ctx=2048)
    together.join(0, ask(together.text_of(600)), replace(GREEDY, max_tokens=4))
    together.join(1, ask("in on", store_kv=True), replace(GREEDY, max_tokens=40))
    together.run_until(lambda: any(isinstance(event, Finished) for event in together.heard[0]))
    together.lanes._drop_idle()
    together.run()
    context = together.engine._context
    assert context.cells_end == len(context.tokens)


def test_a_step_that_fails_before_anybody_is_under_way(
    tiny: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends the question that it was for, and the next one is answered."""
    together = tiny()
    monkeypatch.setattr(together.lanes, "_source", _refuse)
    together.join(0, ask("the rope"))
    together.join(1, ask("in on"))
    together.engine.step()
    monkeypatch.undo()
    together.run()
    assert one(Failed, together.heard[0]).message == "The disk is on fire."
    assert together.finished(1).reason == "length"
