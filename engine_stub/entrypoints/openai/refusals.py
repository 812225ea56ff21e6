"""Refusals of malformed bodies in the words of OpenAI's API, each with the parameter at fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import inspect

from engine_stub.entrypoints.openai.errors import ApiError, invalid_value
from seqtop.text.format import shortened

_MAX_VALUE_LENGTH: Final = 100
_NOUNS: Final = {
    "null": "null",
    "bool": "a boolean",
    "int": "an integer",
    "float": "a decimal number",
    "str": "a string",
    "array": "an array",
    "object": "an object",
}
_SIDES: Final = {"<": ("above maximum", "above_max"), ">": ("below minimum", "below_min")}

# What msgspec says; where it says anything else, the refusal only names the parameter.
_PLACE = re.compile(r" - at (`key` in )?`\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_TYPE = re.compile(r"Expected `([\w| ]+)`, got `(\w+)`")
_BOUND = re.compile(r"Expected `(int|float)` ([<>]=?) (\S+)")
_LENGTH = re.compile(r"Expected `(array|object)` of length ([<>])= (\d+)")

_Path: TypeAlias = Sequence[str | int]
_ENTRY: Final = "..."
"""The step of a path to an entry of an object, whose key msgspec does not name."""


def body_refusal(error: ValueError, body: bytes | bytearray, kind: type) -> ApiError:
    """Returns the refusal of a body.

    Args:
        error: The error of decoding `body` as a `kind` with msgspec.
    """
    sentence = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return _unparsed(sentence)
    place = _PLACE.search(sentence)
    path = _path(place[2]) if place else []
    sentence = _PLACE.sub("", sentence)
    if missing := _MISSING.fullmatch(sentence):
        param = _name([*path, missing[1]])
        return ApiError(
            f"Missing required parameter: '{param}'.",
            param=param,
            code="missing_required_parameter",
        )
    param = _name(path)
    if types := _TYPE.fullmatch(sentence):
        difference = f"expected {_nouns(types[1])}, but got {_nouns(types[2])} instead"
        if not param:
            return _unparsed(difference)
        subject = "key in" if place and place[1] else "type for"
        text = f"Invalid {subject} '{param}': {difference}."
        return ApiError(text, param=param, code="invalid_type")
    value = _value_at(body, path)
    if bound := _BOUND.fullmatch(sentence):
        return _out_of_bounds(param, value, *bound.groups())
    if length := _LENGTH.fullmatch(sentence):
        return _of_wrong_length(param, value, *length.groups())
    if choices := _choices(kind, path):
        listed = ", ".join(f"'{choice}'" for choice in choices)
        return invalid_value(param, f"'{_shown(value)}'. Supported values are: {listed}")
    return invalid_value(param, "the number is out of range" if "range" in sentence else "refused")


def _unparsed(reason: str) -> ApiError:
    return ApiError(f"We could not parse the JSON body of your request: {reason}.")


def _out_of_bounds(param: str, value: Any, kind: str, comparison: str, bound: str) -> ApiError:
    noun = "integer" if kind == "int" else "decimal"
    side, code = _SIDES[comparison[0]]
    got = "" if value is None else f", but got {_shown(value)} instead"
    return ApiError(
        f"Invalid '{param}': {noun} {side} value. Expected a value {comparison}"
        f" {bound.removesuffix('.0')}{got}.",
        param=param,
        code=f"{noun}_{code}_value",
    )


def _of_wrong_length(param: str, value: Any, kind: str, comparison: str, bound: str) -> ApiError:
    length = len(value) if isinstance(value, list | dict) else f"more than {bound}"
    if comparison == ">":
        code, fault = "empty_array", "empty array"
        limit, got = f"an array with minimum length {bound}", "an empty array"
    elif kind == "array":
        code, fault = "array_above_max_length", "array too long"
        limit = f"an array with maximum length {bound}"
        got = f"an array with length {length}"
    else:
        code, fault = "object_above_max_properties", "too many properties"
        limit = f"an object with at most {bound} properties"
        got = f"an object with {length} properties"
    return ApiError(
        f"Invalid '{param}': {fault}. Expected {limit}, but got {got} instead.",
        param=param,
        code=code,
    )


def _nouns(kinds: str) -> str:
    """Returns the words for kinds of values in the form ``int | str | null``."""
    names = kinds.split(" | ")
    nouns = [_NOUNS.get(name, name) for name in names if name != "null" or len(names) == 1]
    if len(nouns) == 1:
        return nouns[0]
    first, *others = nouns
    others = [noun.partition(" ")[2] for noun in others]
    return f"one of {', '.join([first, *others[:-1]])} or {others[-1]}"


def _shown(value: Any) -> str:
    return shortened(str(value), _MAX_VALUE_LENGTH)


def _path(steps: str) -> _Path:
    found = re.findall(r"\.(\w+)|\[(\d+|\.\.\.)\]", steps)
    return [name or (index if index == _ENTRY else int(index)) for name, index in found]


def _name(path: _Path) -> str:
    """Returns the parameter at a path as OpenAI's API names it, as in ``messages[0].role``."""
    steps = [
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in path if step != _ENTRY
    ]
    return "".join(steps).removeprefix(".")


def _value_at(body: bytes | bytearray, path: _Path) -> Any:
    """Returns the value at a path, or None if it cannot be told."""
    try:
        value = msgspec.json.decode(body)
        for step in path:
            value = value[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return value


def _choices(kind: type, path: _Path) -> list[Any]:
    """Returns the values that the field at a path may have, if they are listed."""
    types = _types_at(inspect.type_info(kind), path)
    return [value for one in types if isinstance(one, inspect.LiteralType) for value in one.values]


def _types_at(outer: inspect.Type, path: _Path) -> Iterator[inspect.Type]:
    """Yields the types that the value at a path may have."""
    if isinstance(outer, inspect.UnionType):
        for one in outer.types:
            yield from _types_at(one, path)
    elif not path:
        yield outer
    elif isinstance(outer, inspect.StructType):
        for field in outer.fields:
            if field.name == path[0]:
                yield from _types_at(field.type, path[1:])
    elif isinstance(outer, inspect.ListType):
        yield from _types_at(outer.item_type, path[1:])
