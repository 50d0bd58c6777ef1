from collections.abc import Iterator

import pytest

from chatapp.tui import dialogs


@pytest.fixture(autouse=True)
def _unguarded_dialogs() -> Iterator[None]:
    """Tests answer dialogs the moment they are there."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dialogs, "GUARD_S", 0.001)
        yield
