"""When the window collects garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from chatapp.tui import collecting


class Knot:
    """Garbage that only a collection finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _by_hand() -> Iterator[None]:
    gc.disable()
    gc.collect()
    yield
    gc.enable()


def test_a_quiet_moment_collects_what_outlived_the_small_collections() -> None:
    """Garbage that was still in use when the younger generations were collected is gone after a rest."""
    knot = Knot()
    old = weakref.ref(knot)
    gc.collect(0)
    gc.collect(1)
    del knot
    gc.collect(1)
    assert old() is not None
    collecting.rest()
    assert old() is None


def test_a_quiet_moment_after_a_quiet_moment_costs_nothing() -> None:
    """Nothing is collected where nothing can have outlived a small collection since the last one of everything."""
    knot = weakref.ref(Knot())
    collecting.rest()
    assert knot() is not None
