from contextlib import closing
from dataclasses import replace
from pathlib import Path

from models.engine import ModelInfo, Sampling, TokenRun
from models.fake import FakeEngine
from sessions.conversation import Message
from sessions.manager import SessionManager
from sessions.room import room, tokens_of
from sessions.store import Store
from tests.sessions.helpers import drain

GIB = 1 << 30


def message(n_tokens: int, text: str = "x") -> Message:
    """Return a message of so many tokens; without any for 0."""
    run = TokenRun((1,) * n_tokens, 0, n_tokens) if n_tokens else None
    return Message(1, "s", "user", text, "complete", run, None, 0.0)


async def info(n_ctx_train: int = 8192) -> ModelInfo:
    """Return a model of which only a few numbers matter."""
    engine = FakeEngine()
    await drain(engine.load())
    assert engine.info
    return replace(engine.info, n_ctx=1024, n_ctx_train=n_ctx_train, kv_bytes_per_token=1024)


async def test_what_fits_is_not_short() -> None:
    """History, draft, glue and an answer's room are counted, and no larger context is offered without need."""
    found = room(await info(), [message(300), message(200)], 100, GIB)
    assert (found.n_kept, found.n_needed, found.is_short) == (500, 500 + 100 + 32 + 128, False)
    assert (found.n_ctx_max, found.more_bytes) == (1024, 0)


async def test_the_next_larger_context_is_offered() -> None:
    """As large as is needed, at most what the model was trained for."""
    found = room(await info(), [message(3000)], 100, GIB)
    assert (found.is_short, found.n_ctx_max, found.more_bytes) == (True, 4096, 3 * 1024 * 1024)
    assert room(await info(n_ctx_train=5000), [message(4200)], 0, GIB).n_ctx_max == 5000
    assert room(await info(n_ctx_train=5000), [message(6000)], 0, GIB).n_ctx_max == 1024


async def test_a_context_that_memory_does_not_hold_is_not_offered() -> None:
    """What it takes beyond today's is compared with the memory that is left."""
    short = room(await info(), [message(3000)], 100, 3 << 20)
    assert (short.is_short, short.n_ctx_max, short.more_bytes) == (True, 1024, 0)


def test_text_without_tokens_is_estimated_high() -> None:
    """A history of another model counts about three bytes a token."""
    assert tokens_of(message(0, "a" * 300)) == 108
    assert tokens_of(message(7, "a" * 300)) == 7


async def test_an_edit_has_the_room_of_what_comes_before_it(tmp_path: Path) -> None:
    """The branch that it makes ends where the edited question stood."""
    with closing(Store(tmp_path)) as store:
        manager = SessionManager(store, FakeEngine())
        key = manager.new().id
        for text in ("first " * 40, "second " * 40):
            await drain(manager.send(key, text, Sampling()))
        first, answer, second, _ = manager.messages(key)

        kept = {
            edits: found.n_kept for edits in (None, first.id, second.id) if (found := manager.room(key, 5, edits=edits))
        }

        assert kept[first.id] == 0
        assert kept[second.id] == tokens_of(first) + tokens_of(answer)
        assert kept[None] > kept[second.id]
