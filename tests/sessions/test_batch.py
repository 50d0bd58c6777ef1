import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import Sampling
from models.fake import FakeDisk, FakeEngine
from models.schema import grammar_of
from sessions.batch import Answered, Row, answer_rows, parse
from sessions.errors import BadRequest
from sessions.hygiene import tidy
from tests.sessions.helpers import Clock


async def answered(content: bytes, engine: FakeEngine | None = None, *, system: str | None = None) -> list[Answered]:
    """Return the answers to a file's lines."""
    rows = answer_rows(
        engine or FakeEngine(str.upper),
        content.splitlines(keepends=True),
        Sampling(),
        system=system,
        monotonic=Clock(step=0.01),
    )
    return [row async for row in rows]


async def test_each_row_is_answered_in_order() -> None:
    """Ids come back unchanged, double or missing ones too, with text, tokens and stats."""
    rows = await answered(b'{"id": 1, "prompt": "a"}\n{"id": "1", "prompt": "b"}\n{"id": 1, "prompt": "c"}\n')
    assert [(row.id, row.text, row.token_ids, row.status) for row in rows] == [
        (1, "A", (65,), "complete"),
        ("1", "B", (66,), "complete"),
        (1, "C", (67,), "complete"),
    ]
    assert rows[0].stats
    assert rows[0].stats.ttft_s == pytest.approx(0.01)
    assert rows[0].stats.kv_bytes_written == 0


async def test_bad_rows_are_errors_with_their_line() -> None:
    """A row that cannot be read or asked says why; the others are answered."""
    lines = [
        b"nonsense",
        b"[1]",
        b'{"id": 5}',
        b'{"id": 6, "prompt": 7}',
        b'{"id": [1], "prompt": "x"}',
        b'{"id": 8, "prompt": "  "}',
        b"\xff\xfe",
        b'{"id": NaN, "prompt": "x"}',
        b'{"id": 9, "prompt": "' + b"x" * 100 + b'"}',
        b'{"id": 10, "prompt": "fine"}',
    ]
    rows = await answered(b"\n".join(lines), FakeEngine(str.upper, n_ctx=50))
    assert [(row.line, row.id, row.status) for row in rows] == [
        (1, None, "failed"),
        (2, None, "failed"),
        (3, 5, "failed"),
        (4, 6, "failed"),
        (5, None, "failed"),
        (6, 8, "failed"),
        (7, None, "failed"),
        (8, None, "failed"),
        (9, 9, "failed"),
        (10, 10, "complete"),
    ]
    assert all(row.error for row in rows[:-1])
    assert rows[-1].error is None


async def test_windows_files_are_fine() -> None:
    """A byte order mark, CR LF and blank lines change nothing but the line number."""
    rows = await answered(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}')
    assert [(row.line, row.text) for row in rows] == [(1, "A"), (4, "B")]


async def test_the_system_prompt_is_evaluated_once() -> None:
    """From the second row on only the row itself is prefilled, and nothing is stored."""
    disk = FakeDisk()
    engine = FakeEngine(str.upper, disk=disk)
    rows = await answered(b'{"prompt": "abc"}\n{"prompt": "xyz"}\n', engine, system="s" * 100)
    assert [row.stats and row.stats.prefilled_tokens for row in rows] == [103 + 6, 5]
    assert engine.prompts[1].entries[0].run
    assert len(disk) == 0


async def test_a_row_that_breaks_off_keeps_its_text() -> None:
    """The engine's sentence is the error, what was said stays."""
    (row,) = await answered(b'{"prompt": "abc"}', FakeEngine(str.upper, fail_at=2))
    assert (row.text, row.token_ids, row.status, row.stats) == ("AB", (65, 66), "failed", None)
    assert row.error


async def test_an_empty_system_prompt_is_refused() -> None:
    """It is the caller's mistake, not each row's."""
    with pytest.raises(BadRequest):
        await answered(b'{"prompt": "abc"}', system=" ")


@given(st.binary(max_size=100))
def test_any_line_can_be_parsed(line: bytes) -> None:
    """No line makes the reader fail."""
    parse(line)


@given(
    st.text(min_size=1).filter(lambda text: text.strip() and tidy(text)[0].strip()),
    st.one_of(st.none(), st.integers(), st.text()),
)
def test_rows_are_read_as_written(prompt: str, row_id: int | str | None) -> None:
    """Every valid row gives its id and its prompt, by the rule for text that comes in."""
    line = json.dumps({"id": row_id, "prompt": prompt}).encode()
    assert parse(line) == (row_id, Row(tidy(prompt)[0], None, prompt.count("\0")))


def test_unstorable_characters_of_a_row_are_counted() -> None:
    """Escapes bring what no file in UTF-8 can."""
    line = rb'{"prompt": "\ufeffa\r\nb\u0000\ud800\ud83d\ude00"}'
    assert parse(line) == (None, Row("a\nb\ufffd\ufffd😀", None, 2))


async def test_a_row_may_have_a_schema_of_its_own() -> None:
    """It comes before that of all rows; one that cannot be used is the row's error."""
    engine = FakeEngine(str.upper)
    lines = [
        b'{"id": 1, "prompt": "a", "json_schema": {"type": "integer"}}',
        b'{"id": 2, "prompt": "b"}',
        b'{"id": 3, "prompt": "c", "json_schema": {"pattern": "x"}}',
    ]
    rows = answer_rows(engine, lines, Sampling(grammar="all"), system=None, monotonic=Clock(step=0.01))
    statuses = [(row.id, row.status, row.error) async for row in rows]
    assert [status for _, status, _ in statuses] == ["complete", "complete", "failed"]
    assert "'pattern' is not supported" in str(statuses[2][2])
    assert [sampling.grammar for sampling in engine.samplings] == [grammar_of({"type": "integer"}), "all"]


def test_deep_nesting_is_an_error() -> None:
    """A line that would exhaust the parser is refused."""
    assert isinstance(parse(b"[" * 100_000)[1], BadRequest)
