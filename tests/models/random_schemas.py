"""Random JSON schemas of everything that is supported, and what it means to conform to one."""

from __future__ import annotations

import math
import random
import re
from typing import Any

Schema = dict[str, Any]
WORDS = ("name", "größe", 'a "b"', "x\\y", "名前", "n", "list of", "{}", "emoji 🙂", "tab\tbed")


def random_schema(rng: random.Random) -> Schema:
    """An object schema with definitions of its own that it refers to."""
    definitions = {f"d{i}/~": _schema(rng, 1, ()) for i in range(2)}
    root = _object(rng, 3, ("#/$defs/d0~1~0", "#/$defs/d1~1~0"))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **root, "$defs": definitions}


def _schema(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    makers = [_enum, _const, _integer, _number, _string, _format, lambda _rng: {"type": "boolean"}, _types]
    if references and rng.random() < 0.2:
        return {"$ref": rng.choice(references), "description": "referred to"}
    if depth and rng.random() < 0.5:
        return rng.choice([_object, _array, _tuple, _union, _dictionary])(rng, depth, references)
    return rng.choice(makers)(rng)


def _enum(rng: random.Random) -> Schema:
    return {"enum": [*rng.sample(WORDS, 3), rng.randint(-5, 5), 1.5, None, True, {"a": [1, "b"]}]}


def _const(rng: random.Random) -> Schema:
    return {"const": rng.choice(WORDS)}


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-(10 ** rng.randint(0, 6)), 10 ** rng.randint(0, 6))
    return {"type": "integer", rng.choice(["minimum", "exclusiveMinimum"]): low, "maximum": low + rng.randint(2, 5000)}


def _number(rng: random.Random) -> Schema:
    low = rng.choice([-2.5, -1, 0, 0.25, 3])
    bounds = {"minimum": low, rng.choice(["maximum", "exclusiveMaximum"]): low + rng.choice([1, 2, 10.5])}
    return {"type": "number", **(bounds if rng.random() < 0.7 else {})}


def _string(rng: random.Random) -> Schema:
    low = rng.randint(0, 3)
    return {"type": "string", "minLength": low, "maxLength": low + rng.randint(0, 6)}


def _format(rng: random.Random) -> Schema:
    return {"type": "string", "format": rng.choice(list(FORMATS))}


def _types(rng: random.Random) -> Schema:
    return {"type": rng.sample(["integer", "null", "boolean"], 2)}


def _object(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    names = rng.sample(WORDS, rng.randint(1, 4))
    properties = {name: _schema(rng, depth - 1, references) for name in names}
    required = [name for name in names if rng.random() < 0.6]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _dictionary(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    return {"additionalProperties": _schema(rng, depth - 1, references), "required": rng.sample(WORDS, 1)}


def _array(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    low = rng.randint(0, 2)
    return {"items": _schema(rng, depth - 1, references), "minItems": low, "maxItems": low + rng.randint(0, 2)}


def _tuple(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    heads = [_schema(rng, depth - 1, references) for _ in range(2)]
    return {"type": "array", "prefixItems": heads, "items": rng.choice([False, {"type": "null"}]), "maxItems": 3}


def _union(rng: random.Random, depth: int, references: tuple[str, ...]) -> Schema:
    return {"anyOf": [_schema(rng, depth - 1, references) for _ in range(2)]}


FORMATS = {
    "date": r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])",
    "time": r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?Z",
    "date-time": r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?Z",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def conforms(value: Any, schema: Any, root: Schema) -> bool:
    """True when a value conforms to a schema, as far as the keywords above go."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].split("/")[1:]:
            target = target[part.replace("~1", "/").replace("~0", "~")]
        return conforms(value, target, root)
    if "anyOf" in schema:
        return any(conforms(value, option, root) for option in schema["anyOf"])
    if "enum" in schema:
        return any(value == option and type(value) is type(option) for option in schema["enum"])
    if "const" in schema:
        return bool(value == schema["const"])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_of(value, kind) for kind in kinds):
        return False
    if isinstance(value, dict):
        return _object_conforms(value, schema, root)
    if isinstance(value, list):
        heads = schema.get("prefixItems", [])
        pairs = [(item, heads[i] if i < len(heads) else schema.get("items", True)) for i, item in enumerate(value)]
        low, high = schema.get("minItems", 0), schema.get("maxItems", 1 << 30)
        return low <= len(value) <= high and all(conforms(item, wanted, root) for item, wanted in pairs)
    if isinstance(value, str):
        low, high = schema.get("minLength", 0), schema.get("maxLength", 1 << 30)
        return low <= len(value) <= high and bool(re.fullmatch(FORMATS.get(schema.get("format"), "(?s:.*)"), value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        is_inside = schema.get("minimum", value) <= value <= schema.get("maximum", value)
        is_between = schema.get("exclusiveMinimum", -math.inf) < value < schema.get("exclusiveMaximum", math.inf)
        return bool(is_inside and is_between)
    return True


def _is_of(value: Any, kind: str) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _object_conforms(value: dict[str, Any], schema: Schema, root: Schema) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return set(schema.get("required", [])) <= value.keys() and all(
        conforms(item, properties.get(name, others), root) for name, item in value.items()
    )
