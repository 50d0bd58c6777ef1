"""What the tests of conversations share."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from models.engine import Event, Sampling
from models.fake import FakeDisk, FakeEngine
from sessions.manager import SessionManager
from sessions.store import Store

GREEDY = Sampling(temperature=0)


@dataclass
class Clock:
    """A clock that moves `step` seconds each time it is read."""

    now: float = 1_000_000.0
    step: float = 0.0

    def __call__(self) -> float:
        """Return the time and move on."""
        self.now += self.step
        return self.now


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    """Return all events."""
    return [event async for event in events]


def make_manager(store: Store, engine: FakeEngine | None = None, clock: Clock | None = None) -> SessionManager:
    """Return a manager over a fake engine."""
    return SessionManager(store, engine or FakeEngine(), monotonic=clock or Clock(step=0.01))


def crash_copy(store: Store, folder: Path) -> Path:
    """Return a copy of the store's files as they would be found if its process were killed now."""
    target = folder / "crashed"
    (target / "journal").mkdir(parents=True)
    for path in [*store.path.parent.glob("chat.db*"), *store.journal_dir.glob("*.jsonl")]:
        if not path.name.endswith("-shm"):  # shared memory is rebuilt
            (target / path.relative_to(store.path.parent)).write_bytes(path.read_bytes())
    return target


__all__ = ["GREEDY", "Clock", "FakeDisk", "FakeEngine", "crash_copy", "drain", "make_manager"]
