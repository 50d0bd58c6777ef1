from typing import Any

import pytest

from models.engine import Entry
from models.schema import grammar_of
from sessions.chat_request import entries_of, sampling_of
from sessions.errors import BadField


def given(**fields: Any) -> dict[str, Any]:
    """Read the sampling of a request with these fields."""
    return sampling_of(fields)


def refused(**fields: Any) -> str | None:
    """The field that a refusal names."""
    with pytest.raises(BadField) as caught:
        sampling_of(fields)
    assert str(caught.value).endswith(".")
    return caught.value.param


def said(*messages: tuple[str, Any]) -> list[tuple[str, str]]:
    """Roles and texts of the entries that messages become."""
    entries, _ = entries_of([{"role": role, "content": content} for role, content in messages])
    return [(entry.role, entry.text) for entry in entries]


def wrong(*messages: object) -> str | None:
    """The place that a refusal of messages names; its sentence names the message too."""
    with pytest.raises(BadField) as caught:
        entries_of(list(messages))
    place = caught.value.param
    assert place
    assert place == "messages" or place.split(".")[0] in str(caught.value)
    return place


def test_numbers_are_taken_where_they_make_sense() -> None:
    """Each goes into the field of the sampling it means; of two names for one thing the newer counts."""
    found = given(temperature=1, top_p=0.5, min_p=0, top_k=-1, seed=3, max_tokens=5, max_completion_tokens=7)
    assert found == {"temperature": 1.0, "top_p": 0.5, "min_p": 0.0, "top_k": 0, "seed": 3, "max_tokens": 7}
    assert isinstance(found["temperature"], float)
    assert given(repetition_penalty=1.1) == {"repeat_penalty": 1.1}


def test_what_is_null_or_means_unset_is_not_there() -> None:
    """Clients send null for what they do not set, and -1 for what has no limit."""
    assert given(temperature=None, seed=-1, max_tokens=-1, stop=None, response_format=None) == {}


def test_seeds_of_any_size_are_seeds() -> None:
    """OpenAI's have 64 bits, and any sign."""
    assert (given(seed=(1 << 40) + 5)["seed"], given(seed=-2)["seed"]) == (5, (1 << 32) - 2)


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
    assert given(**off, modalities=["text"], user="me", store=True, metadata={}, parallel_tool_calls=False) == {}
    assert given(tools=[{"type": "function"}], tool_choice="none") == {}


def test_schemas_become_grammars() -> None:
    """However they are asked for: OpenAI's way, or as llama-server's own fields."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"grammar": grammar_of(schema)}
    assert given(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}) == wanted
    assert given(response_format={"type": "json_object", "schema": schema}) == wanted
    assert given(json_schema=schema) == wanted
    assert given(response_format={"type": "json_object"}) == {"grammar": grammar_of({"type": "object"})}
    assert given(grammar='root ::= "a"') == {"grammar": 'root ::= "a"'}
    assert given(response_format={"type": "text"}) == {}


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
        ([{"role": "system", "content": "a" * 4_000_001}, USER], "messages[0].content"),
    ],
)
def test_messages_that_cannot_be_answered_are_named(messages: list[object], place: str) -> None:
    """The refusal says where, as a path into the body."""
    assert wrong(*messages) == place


def test_entries_have_no_tokens_yet() -> None:
    """What a client sends is text; nothing of it can pretend to be tokens."""
    sent = {"role": "user", "content": "a", "run": [[1], 0, 1]}
    assert entries_of([sent]) == ((Entry("user", "a"),), 0)


def test_what_cannot_be_stored_is_counted() -> None:
    """In all messages together, whoever's they are."""
    sent = [{"role": "system", "content": "a\0"}, {"role": "user", "content": [{"type": "text", "text": "\ud800b"}]}]
    assert entries_of(sent) == ((Entry("system", "a\ufffd"), Entry("user", "\ufffdb")), 2)
