import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from models.engine import (
    Event,
    Failed,
    Finished,
    Piece,
    Prepared,
    Prompt,
    Sampling,
    Stored,
    TokenRun,
)
from models.errors import EngineDied
from models.fake import KV_BYTES_PER_TOKEN, weights_of
from sessions.conversation import ModelRef, Session
from sessions.errors import BadRequest, SessionClosed, SessionNotFound, StoreError
from sessions.journal import Journal, recover
from sessions.manager import SessionManager
from sessions.store import Store
from tests.sessions.helpers import GREEDY, Clock, FakeDisk, FakeEngine, crash_copy, drain, make_manager


@pytest.fixture
def session(store: Store) -> Session:
    """An empty conversation."""
    return store.create_session()


def said(store: Store, session: Session) -> list[tuple[str, str, str]]:
    """Return role, text and status of every message."""
    return [(message.role, message.text, message.status) for message in store.messages(session.id)]


async def test_a_turn_is_stored_before_it_is_shown(store: Store, session: Session) -> None:
    """The question is there when the engine begins, the answer when `Finished` arrives, the tip at `Stored`."""
    manager = make_manager(store, FakeEngine(lambda _: "answer"))
    seen: dict[type[Event], list[tuple[str, str, str]]] = {}
    async for event in manager.send(session.id, "question", GREEDY):
        seen.setdefault(type(event), said(store, session))
        if isinstance(event, Stored):
            assert store.tips() == ([], [event.tip])
    asked = ("user", "question", "complete")
    assert seen[Prepared] == seen[Piece] == [asked]
    assert seen[Finished] == [asked, ("assistant", "answer", "complete")]


async def test_the_answer_has_its_tokens_and_stats(store: Store, session: Session) -> None:
    """Runs of question and answer, time to first token, KV bytes and model are stored with the turn."""
    manager = make_manager(store, FakeEngine(lambda _: "ok"), Clock(step=0.5))
    events = await drain(manager.send(session.id, "hi", GREEDY))
    finished = next(event for event in events if isinstance(event, Finished))
    asked, answered = store.messages(session.id)
    assert asked.run == TokenRun((256, 258, 104, 105, 260), 2, 4)
    assert answered.run == finished.run
    assert answered.stats
    assert answered.stats.ttft_s == finished.stats.ttft_s == 2.0  # the fourth look at the clock
    assert (answered.stats.waited_s, answered.stats.model_load_s) == (0.5, 0.5)
    assert answered.stats.kv_bytes_written == 9 * KV_BYTES_PER_TOKEN
    assert store.session(session.id).model == ModelRef(weights_of("fake"), "fake", "", 0)


async def test_the_prompt_is_made_of_stored_tokens(store: Store) -> None:
    """The second turn hands the engine the exact tokens of the first, system prompt included."""
    engine = FakeEngine()
    manager = make_manager(store, engine)
    session = manager.new(system="Be kind.")
    await drain(manager.send(session.id, "one", GREEDY))
    await drain(manager.send(session.id, "two", GREEDY))
    *history, question = engine.prompts[-1].entries
    assert [entry.role for entry in history] == ["system", "user", "assistant"]
    assert [entry.run for entry in history] == [message.run for message in store.messages(session.id)[:3]]
    assert (question.text, question.run) == ("two", None)


async def test_another_process_resumes_from_disk(store: Store, session: Session) -> None:
    """Opening restores the history; the next turn evaluates only the new message."""
    disk = FakeDisk()
    await drain(make_manager(store, FakeEngine(disk=disk)).send(session.id, "one", GREEDY))
    manager = make_manager(store, FakeEngine(disk=disk))
    opened = [event for event in await drain(manager.open(session.id)) if isinstance(event, Prepared)]
    assert [(event.restored > 0, event.prefilled) for event in opened] == [(True, 0)]
    events = await drain(manager.send(session.id, "two", GREEDY))
    prepared = next(event for event in events if isinstance(event, Prepared))
    assert (prepared.resident, prepared.prefilled) == (opened[0].restored, len("two") + 3)


@pytest.mark.parametrize(
    ("sampling", "script", "status", "text"),
    [
        (Sampling(), {}, "complete", "one two"),
        (Sampling(stop=(" two",)), {}, "complete", "one"),
        (Sampling(max_tokens=2), {}, "cut", "on"),
        (Sampling(), {"n_ctx": 11}, "cut", "one t"),
        (Sampling(), {"fail_at": 3}, "interrupted", "one"),
        (Sampling(), {"crash_at": 4}, "interrupted", "one "),
        (Sampling(), {"fail_at": 0}, "failed", ""),
    ],
)
async def test_the_status_says_how_it_ended(
    store: Store, session: Session, sampling: Sampling, script: dict[str, int], status: str, text: str
) -> None:
    """Each way an answer can end has its status, and keeps what was said."""
    engine = FakeEngine(lambda _: "one two", **script)  # type: ignore[arg-type]
    await drain(make_manager(store, engine).send(session.id, "q", sampling))
    assert said(store, session) == [("user", "q", "complete"), ("assistant", text, status)]


async def test_a_partial_answer_keeps_its_exact_tokens(store: Store, session: Session) -> None:
    """An engine that dies in mid-answer leaves text and tokens that the next prompt goes on from."""
    engine = FakeEngine(crash_at=3)
    manager = make_manager(store, engine)
    await drain(manager.send(session.id, "q", GREEDY))
    assert store.messages(session.id)[1].run == TokenRun((259, *b"You", 260), 1, 4)
    engine.crash_at = None
    await drain(manager.send(session.id, "go on", GREEDY))
    assert [entry.text for entry in engine.prompts[-1].entries] == ["q", "You", "go on"]


async def test_a_failed_turn_stays_out_of_later_prompts(store: Store, session: Session) -> None:
    """The turn is still shown, but neither its question nor its empty answer is asked again."""
    engine = FakeEngine(fail_at=0)
    manager = make_manager(store, engine)
    await drain(manager.send(session.id, "bad", GREEDY))
    engine.fail_at = None
    await drain(manager.send(session.id, "good", GREEDY))
    assert [entry.text for entry in engine.prompts[-1].entries] == ["good"]
    assert said(store, session)[:2] == [("user", "bad", "complete"), ("assistant", "", "failed")]


async def test_a_question_that_is_too_long_poisons_nothing(store: Store, session: Session) -> None:
    """It stays visible as failed, without an answer; the conversation goes on without it."""
    engine = FakeEngine(lambda _: "ok", n_ctx=50)
    manager = make_manager(store, engine)
    (failed,) = [
        event for event in await drain(manager.send(session.id, "x" * 100, GREEDY)) if isinstance(event, Failed)
    ]
    assert failed.kind == "too_long"
    await drain(manager.send(session.id, "short", GREEDY))
    assert [(role, status) for role, _, status in said(store, session)] == [
        ("user", "failed"),
        ("user", "complete"),
        ("assistant", "complete"),
    ]
    assert [entry.text for entry in engine.prompts[-1].entries] == ["short"]


async def test_a_model_that_cannot_be_loaded_fails_the_turn(store: Store, session: Session) -> None:
    """The question is kept, the sentence is passed on."""
    events = await drain(make_manager(store, FakeEngine(load_error="No such model.")).send(session.id, "q", GREEDY))
    assert events == [Failed("model", "No such model.")]
    assert said(store, session) == [("user", "q", "complete"), ("assistant", "", "failed")]


class RaisingEngine(FakeEngine):
    """Breaks the contract: raises instead of answering `Failed`, or just ends."""

    error: Exception | None = None

    async def generate(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Event]:
        """End before the first token."""
        async for event in super().generate(prompt, sampling):
            if isinstance(event, Piece):
                break
            yield event
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [EngineDied("It died."), None])
async def test_an_engine_that_just_ends_is_a_failure(store: Store, session: Session, error: Exception | None) -> None:
    """Every turn has an end that the user sees."""
    engine = RaisingEngine()
    engine.error = error
    events = await drain(make_manager(store, engine).send(session.id, "q", GREEDY))
    assert isinstance(events[-1], Failed)
    assert said(store, session)[-1] == ("assistant", "", "failed")


async def test_stop_keeps_what_was_said(store: Store, session: Session) -> None:
    """Stopping ends the running answer with status stopped; with nothing running it does nothing."""
    manager = make_manager(store, FakeEngine(hang_at=3))
    await manager.stop()
    async for event in manager.send(session.id, "q", GREEDY):
        if isinstance(event, Piece) and event.text == "u":
            assert manager.running == session.id
            await manager.stop()
        if isinstance(event, Finished):
            assert manager.running is None
            assert event.reason == "cancelled"
    assert said(store, session)[-1] == ("assistant", "You", "stopped")


async def test_a_caller_that_goes_away_stops_the_answer(store: Store, session: Session) -> None:
    """Closing the events keeps the partial answer as stopped and leaves the engine free."""
    engine = FakeEngine()
    manager = make_manager(store, engine)
    async with aclosing(manager.send(session.id, "q", GREEDY)) as events:
        async for event in events:
            if isinstance(event, Piece) and event.text == "o":
                break
    assert said(store, session)[-1] == ("assistant", "Yo", "stopped")
    assert manager.running is None
    await drain(manager.send(session.id, "again", GREEDY))
    assert [entry.text for entry in engine.prompts[-1].entries] == ["q", "Yo", "again"]


async def test_a_cancelled_task_stops_the_answer(store: Store, session: Session) -> None:
    """Cancelling the task that reads the events, even while the engine hangs, keeps the partial answer."""
    manager = make_manager(store, FakeEngine(hang_at=2))
    said_two = asyncio.Event()

    async def read() -> None:
        async for event in manager.send(session.id, "q", GREEDY):
            if isinstance(event, Piece) and event.text == "o":
                said_two.set()

    task = asyncio.create_task(read())
    await said_two.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert said(store, session)[-1] == ("assistant", "Yo", "stopped")


async def test_leaving_after_the_answer_still_keeps_the_tip(store: Store, session: Session) -> None:
    """A caller that goes away at `Finished` does not orphan the turn's KV."""
    manager = make_manager(store)
    async with aclosing(manager.send(session.id, "q", GREEDY)) as events:
        async for event in events:
            if isinstance(event, Finished):
                break
    assert len(store.tips()[1]) == 1
    assert said(store, session)[-1][2] == "complete"


@pytest.mark.parametrize("text", ["", "  \n\t", "\u2003"])
async def test_an_empty_question_is_refused(store: Store, session: Session, text: str) -> None:
    """Nothing is stored and the engine is not bothered."""
    engine = FakeEngine()
    with pytest.raises(BadRequest, match="empty"):
        await drain(make_manager(store, engine).send(session.id, text, GREEDY))
    assert (said(store, session), engine.prompts) == ([], [])


async def test_unstorable_characters_are_replaced(store: Store, session: Session) -> None:
    """Lone surrogates and NULs become U+FFFD, pairs become their character."""
    await drain(make_manager(store).send(session.id, "a\ud800\0 \ud83d\ude00", GREEDY))
    assert said(store, session)[0][1] == "a\ufffd\ufffd \U0001f600"


async def test_closed_conversations_take_no_message(store: Store, session: Session) -> None:
    """Done and trashed conversations refuse in a sentence that says how to go on; reopened they take it."""
    manager = make_manager(store)
    manager.mark_done(session.id)
    with pytest.raises(SessionClosed, match="reopen"):
        await drain(manager.send(session.id, "q", GREEDY))
    manager.reopen(session.id)
    manager.trash(session.id)
    with pytest.raises(SessionClosed, match="restore"):
        await drain(manager.send(session.id, "q", GREEDY))
    manager.restore(session.id)
    await drain(manager.send(session.id, "q", GREEDY))
    with pytest.raises(SessionNotFound):
        await drain(manager.send("nosuchsession", "q", GREEDY))


async def test_a_system_prompt_is_set_once_and_first(store: Store, session: Session) -> None:
    """Neither a second one nor one behind messages is taken."""
    manager = make_manager(store)
    assert manager.set_system(session.id, "first").system == "first"
    with pytest.raises(BadRequest, match="already has"):
        manager.set_system(session.id, "second")
    other = manager.new()
    await drain(manager.send(other.id, "q", GREEDY))
    with pytest.raises(BadRequest, match="before the first"):
        manager.set_system(other.id, "late")
    with pytest.raises(BadRequest, match="empty"):
        manager.new(system=" ")


def test_renaming_takes_one_line(store: Store, session: Session) -> None:
    """A title is folded to a line; an empty one is refused."""
    manager = make_manager(store)
    assert manager.rename(session.id, " My\n title").title == "My"
    assert manager.session(session.id).title == manager.sessions()[0].session.title
    with pytest.raises(BadRequest):
        manager.rename(session.id, "")


async def test_sends_wait_in_line(store: Store) -> None:
    """Two conversations asked at once are answered one after the other."""
    manager = make_manager(store, FakeEngine(lambda text: text))
    one, other = manager.new(), manager.new()
    await asyncio.gather(drain(manager.send(one.id, "one", GREEDY)), drain(manager.send(other.id, "two", GREEDY)))
    assert [said(store, session)[1][1] for session in (one, other)] == ["one", "two"]


async def test_what_an_open_stored_is_forgotten_too(store: Store, session: Session) -> None:
    """A history that opening put on disk leaves with the conversation, though no turn was had since."""
    await drain(make_manager(store, FakeEngine()).send(session.id, "question", GREEDY))
    disk = FakeDisk()
    manager = SessionManager(store, FakeEngine(disk=disk), forget_kv=lambda dead, _alive: disk.forget(dead))
    assert not any(isinstance(event, Stored) for event in await drain(manager.open(session.id)))
    assert len(disk) == 1
    manager.delete_forever(session.id)
    assert len(disk) == 0


async def test_a_send_ends_an_open(store: Store, session: Session) -> None:
    """A history that is being made resident gives way to a question at once."""
    text = "x" * 5000
    engine = FakeEngine(lambda _: text, disk=FakeDisk())
    await drain(make_manager(store, engine).send(session.id, "q", GREEDY))
    manager = make_manager(store, FakeEngine(lambda _: "ok", disk=FakeDisk()))
    opened: list[Event] = []
    has_begun = asyncio.Event()

    async def open_it() -> None:
        async for event in manager.open(session.id):
            opened.append(event)
            has_begun.set()

    task = asyncio.create_task(open_it())
    await has_begun.wait()
    await drain(manager.send(manager.new().id, "now", GREEDY))
    await task
    assert not [event for event in opened if isinstance(event, Prepared)]


async def test_opening_what_takes_no_message_does_nothing(store: Store, session: Session) -> None:
    """Empty and done conversations are not worth the engine's time."""
    engine = FakeEngine()
    manager = make_manager(store, engine)
    assert await drain(manager.open(session.id)) == []
    await drain(manager.send(session.id, "q", GREEDY))
    manager.mark_done(session.id)
    n_prompts = len(engine.prompts)
    assert await drain(manager.open(session.id)) == []
    assert len(engine.prompts) == n_prompts


async def test_an_open_is_over_when_its_history_is_resident(store: Store, session: Session) -> None:
    """A message does not wait for the disk, and who leaves the open then stops nobody else."""
    await drain(make_manager(store, FakeEngine()).send(session.id, "q", GREEDY))
    engine = FakeEngine()
    engine.store_gate = asyncio.Event()
    manager = make_manager(store, engine)
    is_resident = asyncio.Event()

    async def open_it() -> None:
        async for event in manager.open(session.id):
            if isinstance(event, Prepared):
                is_resident.set()

    opening = asyncio.create_task(open_it())
    await asyncio.wait_for(is_resident.wait(), 30)
    reasons = []
    async with asyncio.timeout(30):
        async for event in manager.send(session.id, "now", GREEDY):
            if isinstance(event, Prepared):
                assert not opening.done()
                opening.cancel()
                await asyncio.wait([opening])
            if isinstance(event, Finished):
                reasons.append(event.reason)
                engine.store_gate.set()
    assert reasons == ["end"]


async def test_kv_of_a_conversation_deleted_while_it_is_opened_is_deleted(store: Store, session: Session) -> None:
    """What opening puts on disk behind the deletion goes as soon as it is there."""
    await drain(make_manager(store, FakeEngine()).send(session.id, "q", GREEDY))
    engine = FakeEngine()
    engine.store_gate = asyncio.Event()
    forgotten: list[tuple[list[str], list[str]]] = []
    manager = SessionManager(store, engine, forget_kv=lambda dead, alive: forgotten.append((dead, alive)))
    async for event in manager.open(session.id):
        if isinstance(event, Prepared):
            manager.delete_forever(session.id)
            engine.store_gate.set()
    assert [len(dead) for dead, _alive in forgotten] == [1, 1]
    assert store.tips() == ([], [])


async def test_stop_ends_an_open(store: Store, session: Session) -> None:
    """Stopping while a history is made resident ends that."""
    await drain(make_manager(store, FakeEngine(lambda _: "x" * 3000)).send(session.id, "q", GREEDY))
    manager = make_manager(store)
    events = []
    async for event in manager.open(session.id):
        events.append(event)
        await manager.stop()
    assert isinstance(events[-1], Failed)
    assert events[-1].kind == "cancelled"


async def test_a_conversation_has_one_writer(store: Store, session: Session) -> None:
    """What another process is answering cannot be asked here, and its question is not taken for abandoned."""
    store.add_question(session.id, "theirs", title="theirs")
    with Journal(store.journal_dir, session.id, monotonic=Clock()):
        with pytest.raises(BadRequest, match="another window"):
            await drain(make_manager(store).send(session.id, "mine", GREEDY))
        with pytest.raises(BadRequest, match="another window"):
            make_manager(store).delete_forever(session.id)
    assert said(store, session) == [("user", "theirs", "complete")]


async def test_a_question_killed_in_prefill_gets_an_empty_answer(store: Store, session: Session) -> None:
    """The roles of the next prompt alternate although the first answer never began."""
    store.add_question(session.id, "killed", title="killed")
    engine = FakeEngine()
    await drain(make_manager(store, engine).send(session.id, "next", GREEDY))
    assert [entry.text for entry in engine.prompts[-1].entries] == ["killed", "", "next"]
    assert said(store, session)[1] == ("assistant", "", "interrupted")


async def test_killed_at_any_token_nothing_confirmed_is_lost(store: Store, session: Session, tmp_path: Path) -> None:
    """Killed before token k, for every k, the store has the question and all but the last 0.25 s of the answer."""
    manager = make_manager(store, FakeEngine(lambda _: "word " * 40), Clock(step=0.01))
    shown, k = "", 0
    async for event in manager.send(session.id, "question", GREEDY):
        if isinstance(event, Piece):
            shown += event.text
        k += 1
        with closing(Store(crash_copy(store, tmp_path / str(k)))) as crashed:
            recover(crashed)
            asked, *answers = crashed.messages(session.id)
            assert asked.text == "question"
            found = answers[0].text if answers else ""
            assert shown.startswith(found)
            assert len(shown) - len(found) <= 25
            if answers:
                assert answers[0].run
                assert bytes(answers[0].run.body).decode() == found
            if isinstance(event, Finished):
                assert (found, answers[0].status) == (event.text, "complete")
    assert k > 200


async def test_an_answer_that_cannot_be_saved_is_reported_and_recovered(
    store: Store, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the last transaction fails the user hears it, and the journal brings the text back."""
    engine = FakeEngine(lambda _: "precious")
    manager = make_manager(store, engine)

    def refuse(*_: object, **__: object) -> None:
        raise StoreError("The disk is full.")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add_answer", refuse)
        with pytest.raises(StoreError, match="full"):
            await drain(manager.send(session.id, "q", GREEDY))
    await drain(manager.send(session.id, "again", GREEDY))
    assert said(store, session)[1] == ("assistant", "precious", "interrupted")


async def test_deleting_forever_forgets_its_kv(store: Store) -> None:
    """The dead tips go, those of other conversations are named as alive; a failure is made up for later."""
    calls: list[tuple[list[str], list[str]]] = []

    def forget(dead: list[str], alive: list[str]) -> None:
        calls.append((dead, alive))
        if len(calls) == 1:
            raise OSError(13, "refused")

    manager = make_manager(store)
    manager._forget_kv = forget
    one, two, kept = (manager.new() for _ in range(3))
    for n, session in enumerate((one, two, kept)):
        await drain(manager.send(session.id, f"question {n}", GREEDY))
    (_, tips) = store.tips()
    with pytest.raises(OSError, match="refused"):
        manager.delete_forever(one.id)
    manager.delete_forever(two.id)
    (dead, alive) = calls[-1]
    assert (sorted(dead + alive), len(dead)) == (tips, 2)
    assert store.tips() == ([], alive)
    assert list(store.journal_dir.iterdir()) == []


def size(path: str) -> int:
    """Return a file's length in bytes."""
    return Path(path).stat().st_size


@pytest.mark.parametrize(("n_question", "n_answer"), [(16, 128), (16, 1), (40_000, 64), (100, 8_000), (3_000, 3_000)])
async def test_a_turn_writes_few_database_bytes(store: Store, n_question: int, n_answer: int) -> None:
    """Log and journal of a turn are at most 3 x (text + 4 bytes a token) + 32 KiB, in a long conversation too."""
    engine = FakeEngine(lambda text: "word " * (n_answer // 5) if text.startswith("q") else "short", n_ctx=1 << 20)
    manager = make_manager(store, engine, Clock(step=0.02))
    session = manager.new(system="s" * 300)
    for n in range(8):
        await drain(manager.send(session.id, f"earlier {n}", GREEDY))
    before, n_journal = size(f"{store.path}-wal"), 0
    async for event in manager.send(session.id, "q" * n_question, GREEDY):
        if isinstance(event, Piece):
            n_journal = size(f"{store.journal_dir}/{session.id}.jsonl")
    written = size(f"{store.path}-wal") - before + n_journal
    asked, answered = store.messages(session.id)[-2:]
    n_payload = sum(len(m.text.encode()) + 4 * len(m.run.ids) for m in (asked, answered) if m.run)
    assert written <= 3 * n_payload + 32 * 1024


async def test_the_next_message_does_not_wait_for_the_disk(store: Store, session: Session) -> None:
    """A turn whose KV is still being written is over for the next one; its key is recorded when it comes."""
    engine = FakeEngine()
    engine.store_gate = asyncio.Event()
    manager = make_manager(store, engine)
    finished = asyncio.Event()

    async def first_turn() -> None:
        async for event in manager.send(session.id, "one", GREEDY):
            if isinstance(event, Finished):
                finished.set()

    first = asyncio.create_task(first_turn())
    await asyncio.wait_for(finished.wait(), 30)
    second = manager.send(session.id, "two", GREEDY)
    async for event in second:
        if isinstance(event, Finished):
            break
    assert not first.done()
    assert store.tips() == ([], [])
    assert [text for role, text, _ in said(store, session) if role == "user"] == ["one", "two"]
    engine.store_gate.set()
    await asyncio.wait_for(first, 30)
    assert len(store.tips()[1]) == 1
    await second.aclose()


async def test_kv_of_a_conversation_deleted_meanwhile_is_deleted(store: Store, session: Session) -> None:
    """Deleting for good between the answer and its KV leaves neither tip nor segment."""
    engine = FakeEngine()
    engine.store_gate = asyncio.Event()
    forgotten: list[tuple[list[str], list[str]]] = []
    manager = SessionManager(store, engine, forget_kv=lambda dead, alive: forgotten.append((dead, alive)))
    tip = None

    def delete() -> None:
        manager.delete_forever(session.id)
        assert engine.store_gate
        engine.store_gate.set()

    async for event in manager.send(session.id, "one", GREEDY):
        if isinstance(event, Finished):
            asyncio.get_running_loop().call_soon(delete)
        if isinstance(event, Stored):
            tip = event.tip
    assert forgotten == [([], []), ([tip], [])]
    assert store.tips() == ([], [])
