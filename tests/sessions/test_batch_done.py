from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions import batch_done
from sessions.batch_done import DoneRows, Earlier


def filled(records: list[tuple[int, bool]]) -> DoneRows:
    """Return records of these keys; offsets are their positions."""
    done = DoneRows()
    for offset, (key, failed) in enumerate(records):
        done.add(f"{key:016x}", offset, failed=failed)
    done.close()
    return done


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans())), st.lists(st.integers(0, 6)))
def test_each_record_is_found_once(records: list[tuple[int, bool]], wanted: list[int]) -> None:
    """As a multiset that gives what was answered before what failed, and the earliest first."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batch_done, "_RUN", 3)
        done = filled(records)
    expected: dict[int, list[Earlier]] = {}
    for offset, (key, failed) in enumerate(records):
        expected.setdefault(key, []).append(Earlier(offset, failed))
    for found in expected.values():
        found.sort(key=lambda one: (one.failed, one.offset))
    for key in wanted:
        rest = expected.get(key, [])
        assert done.take(f"{key:016x}") == (rest.pop(0) if rest else None)
    left = sorted((one for rest in expected.values() for one in rest), key=lambda one: one.offset)
    assert list(done.left()) == left


def test_keys_are_whole_64_bit_numbers() -> None:
    """The largest, too."""
    done = filled([((1 << 64) - 1, False), (0, True)])
    assert done.take("f" * 16) == Earlier(0, failed=False)
    assert done.take("0" * 16) == Earlier(1, failed=True)
    assert len(done) == 2


def test_many_equal_rows_are_found_in_time() -> None:
    """Each once, without looking at the others again."""
    done = filled([(7, False)] * 50_000)
    found = Counter(earlier.offset for _ in range(50_000) if (earlier := done.take(f"{7:016x}")))
    assert len(found) == 50_000
    assert done.take(f"{7:016x}") is None
