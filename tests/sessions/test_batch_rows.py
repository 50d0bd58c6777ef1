import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.engine import Entry
from models.schema import grammar_of
from sessions.batch_rows import MAX_LINE_BYTES, Reading, Row
from sessions.hygiene import tidy


def read(value: object, place: int = 0, reading: Reading = Reading()) -> Row:  # noqa: B008 - frozen
    """Return the row of a JSON value."""
    return reading.row(place + 1, place, json.dumps(value).encode())


def openai(**body: Any) -> dict[str, Any]:
    """Return a line of OpenAI's batch API."""
    messages = [{"role": "user", "content": "q"}]
    return {
        "custom_id": "r",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": messages, **body},
    }


def test_a_prompt_is_a_question() -> None:
    """Its id comes along."""
    row = read({"id": 7, "prompt": "why?"})
    assert (row.id, row.form, row.entries, row.error) == (7, "row", (Entry("user", "why?"),), None)


def test_messages_are_a_conversation() -> None:
    """System first, then user and assistant in turn; parts of text are one text."""
    messages = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
    ]
    expected = (Entry("system", "s"), Entry("user", "a"), Entry("assistant", "b"), Entry("user", "cd"))
    assert read({"id": 1, "messages": messages}).entries == expected


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("x", "no messages"),
        ([7], "messages[0] is not an object"),
        ([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}], "messages[1] is a system message"),
        ([{"role": "user", "content": " "}], "content of messages[0] is empty"),
    ],
)
def test_messages_that_cannot_be_asked_are_errors(messages: object, reason: str) -> None:
    """One sentence says which message it is; what they may be is the same as for any request (test_chat_request)."""
    assert reason in str(read({"id": 1, "messages": messages}).error)


def test_an_openai_line_brings_its_sampling() -> None:
    """Names of the API become ours; the model it names is not looked at."""
    schema = {"type": "integer"}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    row = read(openai(temperature=0, top_p=0.5, max_completion_tokens=9, stop="x", seed=3, response_format=wanted))
    assert (row.form, row.id, row.entries, row.error) == ("openai", "r", (Entry("user", "q"),), None)
    grammar = grammar_of(schema)
    assert row.given == {
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 9,
        "stop": ("x",),
        "seed": 3,
        "grammar": grammar,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({**openai(), "url": "/v1/embeddings"}, "not a POST to /v1/chat/completions"),
        ({**openai(), "method": "GET"}, "not a POST"),
        ({"custom_id": "r"}, "no body"),
        ({**openai(), "custom_id": ["r"]}, "id is neither"),
        (openai(tools=[{}]), "tools is not supported"),
        (openai(stream=True), "asks for a stream"),
        (openai(max_tokens=0), "max_tokens is not a whole number from 1"),
        (openai(messages=[]), "no messages"),
        (openai(response_format={"type": "json_schema", "json_schema": {"schema": {"pattern": "x"}}}), "'pattern'"),
    ],
)
def test_what_an_openai_line_cannot_have_is_named(line: object, reason: str) -> None:
    """Its error is answered in its form."""
    row = read(line)
    assert reason in str(row.error)
    assert row.form == "openai"


def test_a_stream_that_is_off_is_fine() -> None:
    """Clients write defaults out."""
    row = read(openai(stream=False, n=1))
    assert (row.error, row.given) == (None, {})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"nonsense", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"id": 5}', "no prompt"),
        (b'{"id": 6, "prompt": 7}', "no prompt"),
        (b'{"id": 6, "prompt": "x", "messages": []}', "both"),
        (b'{"id": [1], "prompt": "x"}', "id is neither"),
        (b'{"id": 8, "prompt": "  "}', "prompt is empty"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"id": NaN, "prompt": "x"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"x" * (MAX_LINE_BYTES + 1), "longer than 64 MiB"),
        (b'{"id": 3, "prompt": "c", "json_schema": {"pattern": "x"}}', "'pattern' is not supported"),
    ],
)
def test_bad_lines_say_why(line: bytes, reason: str) -> None:
    """A row that cannot be read or asked is one with an error, and keeps its line."""
    row = Reading().row(4, 3, line)
    assert reason in str(row.error)
    assert (row.line, row.place) == (4, 3)


@given(st.binary(max_size=100))
def test_any_line_can_be_read(line: bytes) -> None:
    """No line makes the reader fail."""
    Reading().row(1, 0, line)


@given(
    st.text(min_size=1).filter(lambda text: text.strip() and tidy(text)[0].strip()),
    st.one_of(st.none(), st.integers(), st.text()),
)
def test_rows_are_read_as_written(prompt: str, row_id: int | str | None) -> None:
    """Every valid row gives its id and its prompt, by the rule for text that comes in."""
    row = read({"id": row_id, "prompt": prompt})
    assert (row.id, row.entries, row.n_replaced) == (row_id, (Entry("user", tidy(prompt)[0]),), prompt.count("\0"))


def test_unstorable_characters_of_a_row_are_counted() -> None:
    """Escapes bring what no file in UTF-8 can."""
    row = Reading().row(1, 0, rb'{"prompt": "\ufeffa\r\nb\u0000\ud800\ud83d\ude00"}')
    assert (row.entries[0].text, row.n_replaced) == ("a\nb\ufffd\ufffd😀", 2)


def test_a_line_of_text_is_a_prompt() -> None:
    """Whatever stands in it."""
    row = Reading(is_text=True).row(2, 1, b'{"id": 1}')
    assert (row.id, row.entries) == (None, (Entry("user", '{"id": 1}'),))


def test_the_key_is_that_of_id_and_content() -> None:
    """It follows neither the row's place nor how its JSON is spelt; another content or another salt is another row."""
    row = read({"id": 1, "prompt": "x"})
    assert row.key == read({"prompt": "x", "id": 1}, place=5).key
    others = [read({"id": 2, "prompt": "x"}), read({"id": 1, "prompt": "y"}), read({"id": "1", "prompt": "x"})]
    others.append(read({"id": 1, "prompt": "x"}, reading=Reading(salt=b"system prompt")))
    assert len({row.key, *(other.key for other in others)}) == 5


def test_without_an_id_the_place_counts() -> None:
    """Equal prompts at two places are two rows."""
    assert read({"prompt": "x"}, place=1).key != read({"prompt": "x"}, place=2).key


def test_a_conversation_has_its_own_system_prompt() -> None:
    """Rows that go on with it can bring none."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}]
    assert "has its own" in str(read({"messages": messages}, reading=Reading(goes_on=True)).error)
