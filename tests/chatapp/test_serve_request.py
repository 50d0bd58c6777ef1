import json
from typing import Any

import pytest

from chatapp.serve.errors import BadField
from chatapp.serve.messages import entries_of
from chatapp.serve.request import Asked, read_request
from models.engine import Entry
from models.schema import grammar_of


def read(**fields: Any) -> Asked:
    """Read a request with one message and these fields."""
    return read_request(json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode())


def refused(**fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadField) as caught:
        read(**fields)
    error = caught.value.body()["error"]
    assert error["message"].endswith(".")
    param = error["param"]
    return param if param is None else str(param)


def said(*messages: tuple[str, Any]) -> list[tuple[str, str]]:
    """Roles and texts of the entries that messages become."""
    entries = entries_of([{"role": role, "content": content} for role, content in messages])
    return [(entry.role, entry.text) for entry in entries]


def wrong(*messages: object) -> str | None:
    """The place that a refusal of messages names."""
    with pytest.raises(BadField) as caught:
        entries_of(list(messages))
    return str(caught.value.body()["error"]["param"])


def test_numbers_are_taken_where_they_make_sense() -> None:
    """Each goes into the field of the sampling it means; of two names for one thing the newer counts."""
    asked = read(temperature=1, top_p=0.5, min_p=0, top_k=-1, seed=3, max_tokens=5, max_completion_tokens=7)
    assert asked.given == {"temperature": 1.0, "top_p": 0.5, "min_p": 0.0, "top_k": 0, "seed": 3, "max_tokens": 7}
    assert isinstance(asked.given["temperature"], float)
    assert read(repetition_penalty=1.1).given == {"repeat_penalty": 1.1}


def test_what_is_null_or_means_unset_is_not_there() -> None:
    """Clients send null for what they do not set, and -1 for what has no limit."""
    assert read(temperature=None, seed=-1, max_tokens=-1, stop=None, stream=None, stream_options=None) == read()


def test_seeds_of_any_size_are_seeds() -> None:
    """OpenAI's have 64 bits, and any sign."""
    assert (read(seed=(1 << 40) + 5).given["seed"], read(seed=-2).given["seed"]) == (5, (1 << 32) - 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("temperature", 10**400),
        ("top_p", 1.01),
        ("top_k", 1.5),
        ("min_p", [0]),
        ("seed", 1 << 70),
        ("max_tokens", 0),
        ("max_tokens", 1.0),
        ("stop", 5),
        ("stop", ["a", 1]),
        ("stop", ["a"] * 17),
        ("stop", "x" * 1001),
        ("stream", "yes"),
        ("model", 5),
    ],
)
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    """The refusal says which field it is about."""
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("logprobs", True),
        ("top_logprobs", 2),
        ("n", 2),
        ("n", 0),
        ("logit_bias", {"5": 1}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "x"}),
        ("guided_regex", "a+"),
        ("structured_outputs", {"regex": "a"}),
        ("web_search_options", {}),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str, value: object) -> None:
    """Leaving it out silently would be another answer than was asked for."""
    assert refused(**{name: value}) == name


def test_what_says_that_it_is_off_is_fine() -> None:
    """Many clients send all fields there are; and what is not known is ignored."""
    off = {"tools": [], "tool_choice": "none", "logprobs": False, "n": 1, "logit_bias": {}, "presence_penalty": 0}
    assert read(**off, modalities=["text"], user="me", store=True, metadata={}, parallel_tool_calls=False) == read()
    assert read(tools=[{"type": "function"}], tool_choice="none") == read()


def test_schemas_become_grammars() -> None:
    """However they are asked for: OpenAI's way, or as llama-server's own fields."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"grammar": grammar_of(schema)}
    assert read(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}).given == wanted
    assert read(response_format={"type": "json_object", "schema": schema}).given == wanted
    assert read(json_schema=schema).given == wanted
    assert read(response_format={"type": "json_object"}).given == {"grammar": grammar_of({"type": "object"})}
    assert read(grammar='root ::= "a"').given == {"grammar": 'root ::= "a"'}
    assert read(response_format={"type": "text"}) == read()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"json_schema": {"type": "string", "pattern": "a"}}, "json_schema"),
        ({"grammar": 5}, "grammar"),
        ({"grammar": "root ::= [a]", "response_format": {"type": "json_object"}}, "grammar"),
    ],
)
def test_formats_that_cannot_be_kept_are_refused(fields: dict[str, Any], name: str) -> None:
    """The refusal names the field, and of two that contradict each other the second."""
    assert refused(**fields) == name


def test_a_schema_that_nests_deep_is_refused() -> None:
    """It is as hostile as a body that does."""
    schema: dict[str, Any] = {"type": "array"}
    for _ in range(400):
        schema = {"type": "array", "items": schema}
    assert refused(json_schema=schema) == "json_schema"


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


def test_messages_become_entries() -> None:
    """A developer is the system, parts of text are one text, and line ends are as everywhere."""
    parts = [{"type": "text", "text": "a\r\n"}, {"type": "text", "text": "b"}]
    assert said(("developer", "Be brief."), ("user", parts), ("assistant", "c"), ("user", "d")) == [
        ("system", "Be brief."),
        ("user", "a\nb"),
        ("assistant", "c"),
        ("user", "d"),
    ]


def test_neighbours_of_one_role_become_one_message() -> None:
    """Templates want the roles to take turns, and clients do not keep to that."""
    messages = [("system", "a"), ("system", "b"), ("user", "c"), ("user", "d")]
    assert said(*messages) == [("system", "a\n\nb"), ("user", "c\n\nd")]


def test_empty_answers_and_system_prompts_are_fine() -> None:
    """An answer may have been nothing but reasoning, and many clients send a system prompt in any case."""
    messages = [("system", ""), ("user", "a"), ("assistant", None), ("user", "b")]
    assert said(*messages) == [("user", "a"), ("assistant", ""), ("user", "b")]


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], "messages"),
        ([5], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": " "}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "tool", "content": "a"}], "messages[0].role"),
        ([{"role": ["user"], "content": "a"}], "messages[0].role"),
        ([{"role": "assistant", "content": "a"}, USER], "messages[0].role"),
        ([USER, {"role": "system", "content": "a"}, USER], "messages[1].role"),
        ([USER, {"role": "assistant", "content": "a"}], "messages"),
        ([{"role": "system", "content": "a"}], "messages"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [{}]}, USER], "messages[1].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text"}]}], "messages[0].content[1]"),
        ([{"role": "user", "content": "a" * 4_000_001}], "messages[0].content"),
    ],
)
def test_messages_that_cannot_be_answered_are_named(messages: list[object], place: str) -> None:
    """The refusal says where, as a path into the body."""
    assert wrong(*messages) == place


def test_entries_have_no_tokens_yet() -> None:
    """What a client sends is text; nothing of it can pretend to be tokens."""
    sent = {"role": "user", "content": "a", "run": [[1], 0, 1]}
    assert entries_of([sent]) == (Entry("user", "a"),)
