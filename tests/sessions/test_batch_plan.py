import io
import json
import tracemalloc
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessions.batch_input import lines_of
from sessions.batch_plan import Plan
from sessions.batch_results import Results
from sessions.batch_rows import Reading, Row


def run(path: Path, lines: list[Any], *, stop: int | None = None, bad: str = "", **options: Any) -> list[Any]:
    """Answer the open rows of an input, `stop` of them at most; return their ids. Prompts in `bad` fail."""
    by_input = options.pop("by_input", True)
    limit = options.pop("limit", None)
    source = io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    asked: list[Any] = []
    with closing(Results(path)) as results:
        plan = Plan(results, **options)
        for row, _ in plan.open_rows(lines_of(source), Reading(), limit=limit):
            if len(asked) == stop:
                return asked
            text = row.entries[0].text
            record = {"id": row.id, "text": text, "error": "bad" if text in bad else None, "key": row.key}
            plan.wrote(row, results.append(json.dumps(record).encode()))
            asked.append(row.id)
        plan.arrange(by_input=by_input)
    return asked


def texts(path: Path) -> list[tuple[str, bool]]:
    """Return what the records answer, and whether that failed."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [(record["text"], record["error"] is not None) for record in records]


def row(row_id: object, prompt: str) -> dict[str, object]:
    """Return a row of the input."""
    return {"id": row_id, "prompt": prompt}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An output that is not there yet."""
    return tmp_path / "out.jsonl"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([None, 1, "a"]), st.sampled_from("xyz")), max_size=12),
    st.lists(st.integers(0, 5), max_size=4),
)
def test_stopped_anywhere_no_row_is_lost_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[Any, str]], stops: list[int]
) -> None:
    """Whatever ids are missing or double: in the end each row has one answer, in the input's order."""
    path = tmp_path_factory.mktemp("batch") / "out.jsonl"
    lines = [row(row_id, prompt) for row_id, prompt in rows]
    n_asked = sum(len(run(path, lines, stop=stop)) for stop in stops)
    n_asked += len(run(path, lines))
    assert n_asked == len(lines)
    assert [text for text, _ in texts(path)] == [prompt for _, prompt in rows]
    assert run(path, lines) == []


def test_a_changed_row_is_asked_and_the_old_answer_stays(path: Path) -> None:
    """At the end: it was paid for."""
    run(path, [row(1, "a"), row(2, "b"), row(3, "c")])
    assert run(path, [row(1, "a"), row(2, "B"), row(3, "c")]) == [2]
    assert [text for text, _ in texts(path)] == ["a", "B", "c", "b"]


def test_a_row_that_was_put_in_between_finds_its_place(path: Path) -> None:
    """Rows with an id are found wherever they stand."""
    run(path, [row(1, "a"), row(2, "b")])
    assert run(path, [row(0, "z"), row(1, "a"), row(9, "m"), row(2, "b")]) == [0, 9]
    assert [text for text, _ in texts(path)] == ["z", "a", "m", "b"]


def test_failed_rows_are_asked_again_where_that_is_wanted(path: Path) -> None:
    """Their new answers stand in their place, the failures are gone; otherwise they stay as they are."""
    lines = [row(1, "a"), row(2, "b"), row(3, "c")]
    run(path, lines, bad="ab")
    assert run(path, lines) == []
    assert run(path, lines, retries=True, bad="a") == [1, 2]
    assert texts(path) == [("a", True), ("b", False), ("c", False)]


def test_a_retry_that_is_stopped_keeps_what_it_has_not_asked(path: Path) -> None:
    """A failure goes when its row has an answer, not before."""
    lines = [row(1, "a"), row(2, "b")]
    run(path, lines, bad="ab")
    assert run(path, lines, retries=True, stop=1) == [1]
    assert run(path, lines) == []
    assert texts(path) == [("a", False), ("b", True)]


def test_a_failure_of_a_row_that_was_mended_goes(path: Path) -> None:
    """Nobody needs it any more."""
    run(path, [row(1, "a")], bad="a")
    assert run(path, [row(1, "A")]) == [1]
    assert texts(path) == [("A", False)]


def test_a_limit_looks_at_the_first_rows_only(path: Path) -> None:
    """Asked again it does nothing, and answers and failures behind it are no strangers."""
    lines = [row(n, str(n)) for n in range(4)]
    run(path, lines, bad="3")
    assert run(path, [*lines[:2], row(7, "7")], limit=2) == []
    assert texts(path) == [("0", False), ("1", False), ("2", False), ("3", True)]


def test_the_order_of_completion_can_stay(path: Path) -> None:
    """Only what has no place goes."""
    lines = [row(1, "a"), row(2, "b")]
    run(path, lines[1:])
    run(path, lines, by_input=False)
    assert [text for text, _ in texts(path)] == ["b", "a"]
    run(path, lines)
    assert [text for text, _ in texts(path)] == ["a", "b"]


def test_counts_are_those_of_earlier_runs(path: Path) -> None:
    """What was answered, what of it failed, and what belongs to no row."""
    run(path, [row(1, "a"), row(2, "b"), row(3, "c")], bad="b")
    with closing(Results(path)) as results:
        plan = Plan(results)
        source = io.BytesIO(b"".join(json.dumps(one).encode() + b"\n" for one in [row(1, "a"), row(2, "b")]))
        assert list(plan.open_rows(lines_of(source), Reading())) == []
        assert (plan.n_done, plan.n_failed, plan.n_rows) == (2, 1, 2)
        assert plan.arrange(by_input=True) == 1


def test_the_last_answer_of_a_run_is_told(path: Path) -> None:
    """Whoever keeps more than the answer sees whether that was kept too."""
    told: list[tuple[Row, dict[str, Any]]] = []
    lines = [row(1, "a"), row(2, "b")]
    run(path, lines)
    run(path, lines, missed=lambda *missed: told.append(missed))
    assert [(one.id, record["text"]) for one, record in told] == [(2, "b")]


def test_memory_does_not_grow_with_the_rows(path: Path) -> None:
    """Ten times as many rows, of a kilobyte each, take some bytes a row more."""
    peaks = []
    for n_rows in (300, 3_000):
        lines = (b'{"id": %d, "prompt": "%s"}\n' % (n, b"x" * 1_000) for n in range(n_rows))
        source = path.with_name(f"{n_rows}.jsonl")
        with source.open("wb") as file:
            file.writelines(lines)
        with source.open("rb") as file, closing(Results(path.with_name(f"{n_rows}.out"))) as results:
            tracemalloc.start()
            plan = Plan(results)
            for one, _ in plan.open_rows(lines_of(file), Reading()):
                plan.wrote(one, results.append(b'{"id": 1, "error": null, "key": "%s"}' % one.key.encode()))
            plan.arrange(by_input=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2_700 * 40
    assert Counter(path.with_name("3000.out").read_bytes())[ord("\n")] == 3_000
