import pytest
from hypothesis import given
from hypothesis import strategies as st

from models import protocol
from models.engine import Entry, Event, Failed, Finished, Loaded, Piece, Prepared, Progress, Prompt, Sampling, Stored
from models.errors import ProtocolError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.one_of(*(st.from_type(kind) for kind in (Loaded, Progress, Prepared, Piece, Finished, Stored, Failed)))


@given(EVENTS)
def test_every_event_comes_back(event: Event) -> None:
    """Over the wire and back, an event is the same (compared by repr: NaN is not equal to itself)."""
    message = protocol.decode(protocol.encode({"id": 3, **protocol.event_to_json(event)}))
    assert repr(protocol.event_from_json(message)) == repr(event)


@given(st.from_type(Prompt))
def test_a_prompt_comes_back_without_the_texts_that_have_runs(prompt: Prompt) -> None:
    """Roles, runs and new texts arrive; the text of what was tokenized before is not sent."""
    message = protocol.decode(protocol.encode(protocol.prompt_to_json(prompt)))
    expected = Prompt(
        tuple(Entry(e.role, "" if e.run else e.text, e.run) for e in prompt.entries),
        store_kv=prompt.store_kv,
        reasoning=prompt.reasoning,
        may_reason=prompt.may_reason,
    )
    assert protocol.prompt_from_json(message) == expected


@given(st.from_type(Sampling))
def test_sampling_comes_back(sampling: Sampling) -> None:
    """Every setting arrives as it was given."""
    message = protocol.decode(protocol.encode(protocol.sampling_to_json(sampling)))
    assert repr(protocol.sampling_from_json(message)) == repr(sampling)


@given(st.text() | st.text("\ud800\n\r\0\u2028\x1b"))
def test_a_message_is_one_ascii_line(text: str) -> None:
    """Whatever the text, a message is ASCII and ends with the only newline in it."""
    line = protocol.encode({"text": text})
    assert line.isascii()
    assert line.index(b"\n") == len(line) - 1
    assert protocol.decode(line) == {"text": text}


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{", b"[1]", b"null", b"1", b"\xff\xfe{}", b"ggml_init: x\n", b"[" * 200_000]
)
def test_junk_is_a_protocol_error(line: bytes) -> None:
    """What is no JSON object is refused in one sentence, however deep it nests."""
    with pytest.raises(ProtocolError, match="not"):
        protocol.decode(line)


@given(st.binary())
def test_bytes_are_an_object_or_a_protocol_error(line: bytes) -> None:
    """No other error can come out of a line."""
    try:
        assert isinstance(protocol.decode(line), dict)
    except ProtocolError:
        pass


@given(
    st.dictionaries(
        st.sampled_from(["event", "info", "runs", "run", "stats", "token_ids", "text", "opening", "closing", "reason"]),
        JSON | st.sampled_from(["loaded", "progress", "prepared", "piece", "finished", "stored", "failed"]),
    )
)
def test_a_wrong_shape_is_an_event_or_a_protocol_error(message: dict[str, object]) -> None:
    """No other error can come out of an object."""
    try:
        protocol.event_from_json(message)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"event": "unknown"},
        {"event": ["piece"]},
        {"event": "piece", "text": "a"},
        {"event": "piece", "text": "a", "token_ids": [], "more": 1},
        {"event": "finished", "reason": "end", "text": "", "run": [[1], 0], "stats": {}},
        {"event": "loaded", "info": {"name": "x"}},
    ],
)
def test_missing_or_unknown_fields_are_a_protocol_error(message: dict[str, object]) -> None:
    """An event has exactly its fields."""
    with pytest.raises(ProtocolError, match="not understood"):
        protocol.event_from_json(message)
