"""JSON schema -> GBNF: a grammar whose every sentence is JSON that conforms to the schema.

Not every conforming JSON is a sentence of it: values are written as `json.dumps` does, properties in the order of the
schema, and others than those named only where none is named. What would not be kept is refused by name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from models.errors import GrammarError
from models.grammar import MAX_GRAMMAR_BYTES

MAX_REPEATS = 2000
"""The native reader's limit. An upper bound beyond it is lowered to it, a lower bound is refused."""
MAX_DEPTH = 64
_MAX_DIGITS = 16

_ANNOTATIONS = frozenset(
    ("$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default")
) | frozenset(("definitions", "deprecated", "description", "examples", "format", "readOnly", "title", "writeOnly"))
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "number": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    "boolean": frozenset(),
    "null": frozenset(),
}
_ALL_KEYWORDS = frozenset().union(*_KEYWORDS.values())
_PRIMITIVES = {
    "boolean": '"true" | "false"',
    "null": '"null"',
    "hex": "[0-9a-fA-F]",
    # Escapes of surrogates are left out: alone they are no character, and a pair can be written as itself.
    "escape": r'["\\/bfnrt] | "u" ( [0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex )',
    "char": r'[^"\\\x00-\x1F\x7F] | "\\" escape',
    "string": r'"\"" char* "\""',
    "integer": r'"-"? ( "0" | [1-9] [0-9]{0,15} )',
    "number": r'integer ( "." [0-9]{1,16} )? ( [eE] [-+]? [0-9]{1,2} )?',
    "object": r'"{" ( pair ( ", " pair )* )? "}"',
    "pair": r'string ": " value',
    "array": r'"[" ( value ( ", " value )* )? "]"',
    "value": "object | array | string | number | boolean | null",
}
_FORMATS = {
    "date": '[0-9]{4} "-" ( "0" [1-9] | "1" [0-2] ) "-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] )',
    "time": '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9] ":" [0-5] [0-9] ( "." [0-9]{1,6} )? "Z"',
    "uuid": 'hex{8} "-" hex{4} "-" hex{4} "-" hex{4} "-" hex{12}',
}
_FORMATS["date-time"] = f'{_FORMATS["date"]} "T" {_FORMATS["time"]}'


def read_schema(text: str) -> str:
    """Return the grammar of a JSON schema given as JSON text; raises `GrammarError`."""
    if len(text) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"The JSON schema is too large: {MAX_GRAMMAR_BYTES >> 10} KiB is the limit.")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError("The JSON schema is not JSON.") from error
    return grammar_of(schema)


def grammar_of(schema: object) -> str:
    """Return the grammar of a JSON schema; raises `GrammarError`, which names the first thing it cannot keep."""
    rules = _Rules(schema)
    try:
        root = rules.of(schema, 0)
    except RecursionError as error:
        raise _bad("it nests too deep") from error
    text = "\n".join(f"{name} ::= {body}" for name, body in {"root": root, **rules.bodies}.items()) + "\n"
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"The grammar of the JSON schema is larger than {MAX_GRAMMAR_BYTES >> 10} KiB.")
    return text


def _bad(reason: str) -> GrammarError:
    return GrammarError(f"The JSON schema cannot be used: {reason}.")


class _Rules:
    """The rules of one schema as they are found, by name."""

    def __init__(self, schema: object) -> None:
        self.bodies: dict[str, str] = {}
        self._schema = schema
        self._names: dict[str, str] = {}
        self._references: dict[str, str] = {}

    def of(self, schema: object, depth: int) -> str:
        """The body of the rule that a value of this schema follows."""
        if depth > MAX_DEPTH:
            raise _bad(f"it nests more than {MAX_DEPTH} deep")
        if schema is True:
            return self._primitive("value")
        if not isinstance(schema, dict):
            raise _bad("a schema must be an object or true" if schema is not False else "false allows no value")
        keywords = {name: value for name, value in schema.items() if name not in _ANNOTATIONS}
        for name in ("$ref", "anyOf", "oneOf", "allOf", "enum", "const"):
            if name in keywords:
                return self._combined(name, keywords, depth)
        unknown = sorted(keywords.keys() - _ALL_KEYWORDS - {"type"})
        if unknown:
            raise _bad(f"the keyword {unknown[0]!r} is not supported")
        kinds = _types(keywords)
        if kinds is None:
            return self._primitive("value")
        return _either([self._typed(kind, {**keywords, "format": schema.get("format")}, depth) for kind in kinds])

    def _combined(self, name: str, keywords: dict[str, Any], depth: int) -> str:
        others = sorted(keywords.keys() - {name, *(("type",) if name in ("enum", "const") else ())})
        if others:
            raise _bad(f"{name} does not go together with {others[0]!r} here")
        value = keywords[name]
        if name == "$ref":
            return self._referred(value, depth)
        if name == "const":
            return _literal(_dumped(value))
        if not isinstance(value, list) or not value:
            raise _bad(f"{name} must be a list that is not empty")
        if name == "enum":
            kinds = _types(keywords)
            fitting = [item for item in value if kinds is None or any(_is_a(item, kind) for kind in kinds)]
            if not fitting:
                raise _bad("no value of enum has the type")
            return _either([_literal(_dumped(item)) for item in fitting])
        if name == "allOf" and len(value) > 1:
            raise _bad("allOf of more than one schema is not supported")
        return _either([self.of(item, depth + 1) for item in value])

    def _referred(self, pointer: object, depth: int) -> str:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise _bad("$ref must point into the schema itself, such as #/$defs/name")
        if pointer not in self._references:
            target = self._schema
            for part in pointer.split("/")[1:]:
                key = unquote(part).replace("~1", "/").replace("~0", "~")
                if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
                    target = target[int(key)]
                elif isinstance(target, dict) and key in target:
                    target = target[key]
                else:
                    raise _bad(f"$ref points to nothing: {pointer[:80]!r}")
            # The name stands before the rule is known: the schema may refer to itself.
            self._references[pointer] = name = f"r{len(self._references)}"
            self.bodies[name] = ""
            self.bodies[name] = self.of(target, depth + 1)
        return self._references[pointer]

    # --- types ---

    def _typed(self, kind: str, keywords: dict[str, Any], depth: int) -> str:
        wanted = {name: value for name, value in keywords.items() if name in _KEYWORDS[kind]}
        if kind == "string" and not wanted and keywords["format"] in _FORMATS:
            self._primitive("hex")
            return rf'"\"" {_FORMATS[keywords["format"]]} "\""'
        if not wanted:
            return self._primitive(kind)
        make: Mapping[str, Callable[[], str]] = {
            "object": lambda: self._object(wanted, depth),
            "array": lambda: self._array(wanted, depth),
            "string": lambda: rf'"\"" {self._primitive("char")}{_repeats(wanted, "Length")} "\""',
            "integer": lambda: _integers(*_bounds(wanted)),
            "number": lambda: self._numbers(wanted),
        }
        return make[kind]()

    def _object(self, keywords: dict[str, Any], depth: int) -> str:
        properties = keywords.get("properties", {})
        required = keywords.get("required", [])
        others = keywords.get("additionalProperties", True)
        if not isinstance(properties, dict) or not _are_strings(required):
            raise _bad("properties must be an object, and required a list of names")
        properties = dict(properties)
        for name in required:
            if others is False and name not in properties:
                raise _bad(f"{name[:80]!r} is required and not allowed")
            properties.setdefault(name, others)
        if not properties:
            if others is False:
                return '"{}"'
            pair = self._named(f'{self._primitive("string")} ": " {self._named(self.of(others, depth + 1))}')
            return f'"{{" ( {pair} ( ", " {pair} )* )? "}}"'
        pairs = []
        for name, value in properties.items():
            rule = self._named(self.of(value, depth + 1))
            pairs.append((self._named(f"{_literal(_dumped(name) + ': ')} {rule}"), name in required))
        return f'"{{" {self._members(pairs)} "}}"'

    def _members(self, pairs: Sequence[tuple[str, bool]]) -> str:
        """Pairs in their order with commas between those that are there; each with whether it must be."""
        first = later = '""'  # what may stand before, and behind, the first pair written; built from the last one
        for pair, is_required in reversed(pairs):
            whole = f"{pair} {later}"
            if is_required:
                first, later = self._named(whole), self._named(f'", " {whole}')
            else:
                first, later = self._named(f"{whole} | {first}"), self._named(f'( ", " {pair} )? {later}')
        return first

    def _array(self, keywords: dict[str, Any], depth: int) -> str:
        heads = keywords.get("prefixItems", [])
        items = keywords.get("items", True)
        if not isinstance(heads, list):
            raise _bad("prefixItems must be a list")
        least, most = _counts(keywords, "Items")
        if items is False:
            most = min(len(heads), len(heads) if most is None else most)
        if most is not None and most < least:
            raise _bad("an array has fewer items than it must have")
        if heads and least < len(heads):
            # All of them, which conforms, is simpler to say than some of them.
            least = len(heads) if most is None else min(len(heads), most)
        fixed = [self._named(self.of(item, depth + 1)) for item in heads][:most]
        if most is not None and most <= len(fixed):
            return f'"[" {_separated(fixed)} "]"'
        item = self._named(self.of(items, depth + 1))
        n_least, n_most = least - len(fixed), None if most is None else most - len(fixed)
        if fixed:
            return f'"[" {_separated(fixed)} ( ", " {item} ){_braces(n_least, n_most)} "]"'
        more = f'{item} ( ", " {item} ){_braces(max(0, n_least - 1), None if n_most is None else n_most - 1)}'
        return f'"[" {more} "]"' if n_least else f'"[" ( {more} )? "]"'

    def _numbers(self, keywords: dict[str, Any]) -> str:
        """Numbers between two bounds: whole ones, and those strictly between two whole ones."""
        least, most = _bounds(keywords)
        parts = [_integers(least, most)] if least <= most else []
        # A fraction lies strictly between two whole numbers, so it may stand next to an excluded bound.
        low, high = math.ceil(_lowest(keywords)), math.floor(_highest(keywords))
        fraction = self._named('"." [0-9]{0,5} [1-9]')
        if high > max(low, 0):
            parts.append(f"( {_digits(max(low, 0), high - 1)} ) {fraction}")
        if low < min(high, 0):
            parts.append(f'"-" ( {_digits(max(-high, 0), -low - 1)} ) {fraction}')
        if not parts:
            raise _bad("no number lies between the bounds")
        return _either(parts)

    def _primitive(self, name: str) -> str:
        if name not in self.bodies:
            self.bodies[name] = _PRIMITIVES[name]
            for word in _PRIMITIVES[name].split():
                if word.rstrip("*?") in _PRIMITIVES:
                    self._primitive(word.rstrip("*?"))
        return name

    def _named(self, body: str) -> str:
        """A rule with this body; the same one for the same body."""
        if body in self.bodies:
            return body  # it is the name of a rule already
        if body not in self._names:
            self._names[body] = name = f"n{len(self._names)}"
            self.bodies[name] = body
        return self._names[body]


def _types(keywords: Mapping[str, Any]) -> list[str] | None:
    """The types a value may have, None for any; a keyword that means one type only says it, too."""
    given = keywords.get("type")
    if given is None:
        meant = [kind for kind in ("object", "array", "string") if _KEYWORDS[kind] & keywords.keys()]
        if _KEYWORDS["number"] & keywords.keys():
            meant.append("number")
        return meant or None
    kinds = given if isinstance(given, list) else [given]
    unknown = [kind for kind in kinds if not isinstance(kind, str) or kind not in _KEYWORDS]
    if unknown or not kinds:
        raise _bad(f"{unknown[0]!r} is no type" if unknown else "type must not be empty")
    return list(kinds)


def _is_a(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and kind == "integer":
        return value.is_integer()
    types: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": type(None),
    }
    return isinstance(value, types[kind])


# --- texts and repetitions ---


def _either(bodies: Sequence[str]) -> str:
    return bodies[0] if len(bodies) == 1 else "( " + " | ".join(bodies) + " )"


def _separated(bodies: Iterable[str]) -> str:
    return ' ", " '.join(bodies)


def _dumped(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise _bad("a value is not JSON") from error
    return text if text.isprintable() else json.dumps(value)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _counts(keywords: Mapping[str, Any], what: str) -> tuple[int, int | None]:
    least, most = keywords.get(f"min{what}", 0), keywords.get(f"max{what}")
    for name, value in ((f"min{what}", least), (f"max{what}", 0 if most is None else most)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise _bad(f"{name} must be a whole number from 0")
    if least > MAX_REPEATS:
        raise _bad(f"min{what} is more than {MAX_REPEATS:,}")
    if most is not None and most < least:
        raise _bad(f"max{what} is less than min{what}")
    return least, most


def _repeats(keywords: Mapping[str, Any], what: str) -> str:
    return _braces(*_counts(keywords, what))


def _braces(least: int, most: int | None) -> str:
    if most is None:
        return "*" if least == 0 else f"{{{least},}}"
    return f"{{{least},{min(most, MAX_REPEATS)}}}"


# --- numbers ---


def _lowest(keywords: Mapping[str, Any]) -> float:
    return max(_bound(keywords, "minimum", -_FAR), _bound(keywords, "exclusiveMinimum", -_FAR))


def _highest(keywords: Mapping[str, Any]) -> float:
    return min(_bound(keywords, "maximum", _FAR), _bound(keywords, "exclusiveMaximum", _FAR))


_FAR = 10**_MAX_DIGITS - 1
"""What stands for no bound."""


def _bound(keywords: Mapping[str, Any], name: str, default: int) -> float:
    value = keywords.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _bad(f"{name} must be a number")
    if abs(value) > _FAR:
        raise _bad(f"{name} has more than {_MAX_DIGITS} digits")
    return value


def _bounds(keywords: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the greatest whole number allowed."""
    least, most = math.ceil(_lowest(keywords)), math.floor(_highest(keywords))
    if keywords.get("exclusiveMinimum") == least:
        least += 1
    if keywords.get("exclusiveMaximum") == most:
        most -= 1
    return least, most


def _integers(least: int, most: int) -> str:
    if least > most:
        raise _bad("no whole number lies between the bounds")
    parts = []
    if least < 0:
        parts.append(f'"-" ( {_digits(max(1, -most), -least)} )')
    if most >= 0:
        parts.append(_digits(max(least, 0), most))
    return _either(parts)


def _digits(least: int, most: int) -> str:
    """Decimal digits of the numbers from `least` to `most`, neither below 0: alternatives."""
    parts = []
    for length in range(len(str(least)), len(str(most)) + 1):
        low = max(least, 10 ** (length - 1) if length > 1 else 0)
        high = min(most, 10**length - 1)
        parts += _between(str(low), str(high))
    return " | ".join(parts)


def _between(low: str, high: str) -> list[str]:
    """Alternatives for the numbers between two of the same length."""
    n = len(low)
    if low == high:
        return [f'"{low}"']
    if low == "0" * n and high == "9" * n:
        return [f"[0-9]{{{n}}}"]
    if n == 1:
        return [f"[{low}-{high}]"]
    first, last = int(low[0]), int(high[0])
    if first == last:
        return [f'"{first}" {rest}' for rest in _between(low[1:], high[1:])]
    # Whole tens between two ends that may be cut; an end that is whole belongs to them.
    parts = []
    if low[1:] != "0" * (n - 1):
        parts += [f'"{first}" {rest}' for rest in _between(low[1:], "9" * (n - 1))]
        first += 1
    if high[1:] != "9" * (n - 1):
        parts += [f'"{last}" {rest}' for rest in _between("0" * (n - 1), high[1:])]
        last -= 1
    if first <= last:
        parts.append(f"[{first}-{last}] [0-9]{{{n - 1}}}")
    return parts
