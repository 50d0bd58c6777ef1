import json
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import GrammarError
from models.grammar import check_grammar
from models.schema import MAX_DEPTH, _digits, grammar_of, read_schema
from tests.models.random_schemas import conforms, random_schema

NUMBERS = st.integers(0, 10**7)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
MEANT = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minLength"}
MEANT |= {"maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
KEYWORDS = st.sampled_from(
    sorted(MEANT | {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "format", "title"})
)


@given(NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=20))
def test_a_range_of_numbers_has_exactly_its_numbers(one: int, other: int, numbers: list[int]) -> None:
    """No number outside is written, each inside can be, and only in the usual way."""
    low, high = sorted((one, other))
    pattern = re.compile(_digits(low, high).replace('"', "").replace(" | ", "|").replace(" ", ""))
    for number in {*numbers, low, high, low - 1, high + 1, (low + high) // 2, low + 1, high - 1}:
        assert bool(pattern.fullmatch(str(number))) == (low <= number <= high)
    assert not pattern.fullmatch(f"0{high}")


def test_supported_schemas_have_a_grammar() -> None:
    """A thousand random schemas become grammars that pass the check, always the same one."""
    for seed in range(1000):
        schema = random_schema(random.Random(seed))
        grammar = grammar_of(schema)
        check_grammar(grammar)
        assert grammar == read_schema(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 60_000, "not JSON"),
        ("false", "allows no value"),
        ("[1]", "must be an object"),
        ('{"type": "strin"}', "'strin' is no type"),
        ('{"type": []}', "must not be empty"),
        ('{"type": "string", "pattern": "a"}', "'pattern' is not supported"),
        ('{"properties": {"a": {"uniqueItems": true}}}', "'uniqueItems' is not supported"),
        ('{"enum": []}', "not empty"),
        ('{"enum": ["a"], "type": "integer"}', "no value of enum"),
        ('{"enum": [1], "minimum": 0}', "enum does not go together with 'minimum'"),
        ('{"allOf": [{}, {}]}', "allOf"),
        ('{"$ref": "https://example.org/x"}', "must point into the schema"),
        ('{"$ref": "#/$defs/none"}', "points to nothing"),
        ('{"type": "integer", "minimum": 5, "maximum": 4}', "no whole number"),
        ('{"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5}', "no whole number"),
        ('{"type": "number", "minimum": 0.2, "maximum": 0.7}', "no number"),
        ('{"type": "integer", "minimum": 1e300}', "more than 16 digits"),
        ('{"type": "integer", "minimum": "1"}', "must be a number"),
        ('{"type": "array", "minItems": 2, "maxItems": 1}', "less than minItems"),
        ('{"type": "array", "prefixItems": [{}], "items": false, "minItems": 2}', "fewer items"),
        ('{"type": "array", "minItems": 100000}', "more than 2,000"),
        ('{"type": "string", "maxLength": -1}', "whole number from 0"),
        ('{"required": ["a"], "additionalProperties": false}', "'a' is required and not allowed"),
        ('{"required": "a"}', "list of names"),
        ('{"items": ' * (MAX_DEPTH + 2) + "{}" + "}" * (MAX_DEPTH + 2), "nests more than 64 deep"),
        (json.dumps({"enum": ['"' * 1000] * 25}), "larger than 64 KiB"),
        (" " * 70_000, "too large"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(schema: str, reason: str) -> None:
    """One sentence says which word of the schema it is."""
    with pytest.raises(GrammarError, match=re.escape(reason)) as caught:
        read_schema(schema)
    assert "\n" not in str(caught.value)


@given(st.dictionaries(KEYWORDS, JSON, max_size=4) | JSON)
def test_any_schema_is_a_grammar_or_refused(schema: object) -> None:
    """No other error can come out of a schema."""
    try:
        check_grammar(grammar_of(schema))
    except GrammarError:
        pass


def test_the_checker_finds_what_it_is_for() -> None:
    """A checker that accepts everything would prove nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"]}
    assert conforms({"a": 3}, schema, schema)
    wrong: object
    for wrong in ({"a": 4}, {"a": "3"}, {"a": True}, {}, []):
        assert not conforms(wrong, schema, schema)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no rule named root"),
        ('x ::= "root ::="', "no rule named root"),
        ('# root ::= "a"', "no rule named root"),
        ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "more than 100 deep"),
        ('root ::= "a"\0', "too large"),
        ("root ::= " + '"a" ' * 20_000, "too large"),
        ("root ::= r\n" + "r ::= x\n" * 2000, "more than 2,000 rules"),
    ],
)
def test_grammars_that_native_code_would_not_survive_are_refused(grammar: str, reason: str) -> None:
    """Before it sees them, in one sentence."""
    with pytest.raises(GrammarError, match=reason):
        check_grammar(grammar)


@pytest.mark.parametrize("grammar", ['root ::= "' + "(" * 200 + '"', "root ::= [" + "(" * 200 + "]", 'root ::= "a"'])
def test_parentheses_in_quotes_do_not_count(grammar: str) -> None:
    """They are text."""
    check_grammar(grammar)


def test_checking_takes_linear_time() -> None:
    """Brackets and quotes that are never closed are each looked at once."""
    for char in '[("':
        check_grammar("root ::= x\n" + char * (100 if char == "(" else 60_000))
