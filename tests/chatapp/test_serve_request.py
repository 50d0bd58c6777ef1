import json
from typing import Any

import pytest

from chatapp.serve.request import Asked, read_request
from models.engine import Entry
from sessions.errors import BadField


def read(**fields: Any) -> Asked:
    """Read a request with one message and these fields."""
    return read_request(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def test_messages_and_sampling_are_what_is_asked() -> None:
    """What another program wrote is read as a batch reads it; other fields are ignored."""
    asked = read(model="m", temperature=1, max_tokens=5, user="me", store=True, metadata={}, parallel_tool_calls=False)
    assert asked == Asked((Entry("user", "hi"),), "m", {"temperature": 1.0, "max_tokens": 5})


def test_what_is_null_is_not_there() -> None:
    """Clients send null for what they do not set."""
    assert read(model=None, temperature=None, stream=None, stream_options=None, reasoning_effort=None) == read()


@pytest.mark.parametrize(("name", "value"), [("stream", "yes"), ("model", 5), ("top_p", 2), ("n", 2)])
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    """The refusal says which field it is about."""
    with pytest.raises(BadField) as caught:
        read(**{name: value})
    assert (caught.value.param, str(caught.value)[-1]) == (name, ".")


def test_reasoning_can_be_left_out_in_the_usual_ways() -> None:
    """The field of OpenAI's, and the one of servers with chat templates."""
    assert (read().may_reason, read(reasoning_effort="low").may_reason) == (True, True)
    assert not read(reasoning_effort="none").may_reason
    assert not read(chat_template_kwargs={"enable_thinking": False}).may_reason


def test_streams_and_their_usage() -> None:
    """Options of a stream may be anything that clients think of."""
    asked = read(stream=True, stream_options={"include_usage": True, "other": 1})
    assert (asked.streams, asked.wants_usage) == (True, True)
    assert (read(stream_options=[]).wants_usage, read().streams) == (False, False)
