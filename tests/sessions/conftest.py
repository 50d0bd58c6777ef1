from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sessions.store import Store
from tests.sessions.helpers import Clock


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store whose clock moves a second with each read."""
    with closing(Store(tmp_path / "data", clock=Clock(step=1.0))) as opened:
        yield opened
