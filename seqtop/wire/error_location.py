"""Where in a value an error is, in the names of its fields: `seq_group_metadata_list[0].is_prompt`.

msgspec gives the place of a decoding error as positions in the encoded arrays, and of an encoding
error not at all. Both are worked out here, after the error, so that no other value pays for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import inspect

_AT_PATH: Final = re.compile(r"(?P<reason>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_MAX_DEPTH: Final = 64  # a value nested deeper is its own explanation
_UNKNOWN: Final = object()


def name_of(target: Any) -> str:
    """A type's name, or for a union the names of its members."""
    if get_origin(target) in (Union, UnionType):
        return " | ".join(map(name_of, get_args(target)))
    return target.__name__ if isinstance(target, type) else str(target)


def explain(error: Exception, target: Any, data: Any) -> str:
    """What was wrong with `data`, encoded as a `target`, and in which field."""
    match = _AT_PATH.fullmatch(str(error))
    if match is None:
        return str(error) or type(error).__name__
    place = _name_steps(match["path"], _layout(target), _plain(data))
    if match["key"]:
        place = f"a key of {place}" if place else "a key"
    return f"{place}: {match['reason']}" if place else match["reason"]


def blame(encode: Callable[[Any], bytes], obj: Any) -> str:
    """Which part of `obj` it is that `encode` fails for; empty if it is `obj` as a whole."""
    place = ""
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(obj):
            if not _succeeds(encode, part):
                place, obj = place + step, part
                break
        else:
            return place.lstrip(".")
    return ""


@cache
def _layout(target: Hashable) -> inspect.Type:
    return inspect.type_info(target)


def _succeeds(encode: Callable[[Any], bytes], part: Any) -> bool:
    try:
        encode(part)
    except Exception:  # noqa: BLE001 - whatever it is, it has been reported; this finds its place
        return False
    return True


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, msgspec.Struct):
        for name in obj.__struct_fields__:
            yield f".{name}", getattr(obj, name)
    elif dataclasses.is_dataclass(obj):
        for field in dataclasses.fields(obj):
            yield f".{field.name}", getattr(obj, field.name)
    elif isinstance(obj, Mapping):
        for key, value in obj.items():
            yield f"[{key!r}]", key
            yield f"[{key!r}]", value
    elif isinstance(obj, list | tuple | set | frozenset):
        for index, value in enumerate(obj):
            yield f"[{index}]", value


def _plain(data: Any) -> Any:
    """The value as MessagePack alone has it: lists, dicts and scalars."""
    try:
        return msgspec.msgpack.decode(data)
    except Exception:  # noqa: BLE001 - malformed beyond the error at hand: names have to do without
        return _UNKNOWN


def _name_steps(path: str, node: inspect.Type | None, value: Any) -> str:
    """`path`, with a field's name in the place of its position in an array."""
    named = ""
    for step in _STEP.finditer(path):
        node = _narrow(node, value)
        if step["name"]:
            named += f".{step['name']}"
            node = _field_type(node, step["name"])
            value = value.get(step["name"], _UNKNOWN) if isinstance(value, dict) else _UNKNOWN
            continue
        index = int(step["index"]) if step["index"] != "..." else None
        label, node = _element(node, index)
        named += label
        known = isinstance(value, list) and index is not None and index < len(value)
        value = value[index] if known else _UNKNOWN
    return named.lstrip(".")


def _narrow(node: inspect.Type | None, value: Any) -> inspect.Type | None:
    """The one member of a union that can have parts; of several structs, the one tagged so."""
    if not isinstance(node, inspect.UnionType):
        return node
    members = [each for each in node.types if not isinstance(each, inspect.NoneType)]
    if len(members) == 1:
        return members[0]
    tag = value[0] if isinstance(value, list) and value else _UNKNOWN
    for member in members:
        if isinstance(member, inspect.StructType) and member.array_like and member.tag == tag:
            return member
    containers = [each for each in members if hasattr(each, "item_type")]
    return containers[0] if len(containers) == 1 else None


def _field_type(node: inspect.Type | None, name: str) -> inspect.Type | None:
    if isinstance(node, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        for field in node.fields:
            if field.encode_name == name:
                return field.type
    return None


def _element(node: inspect.Type | None, index: int | None) -> tuple[str, inspect.Type | None]:
    """How to name an element of an array or a map, and its type where that is known."""
    label = "[...]" if index is None else f"[{index}]"
    match node:
        case inspect.StructType(array_like=True) if index is not None:
            elements = [(f".{field.encode_name}", field.type) for field in node.fields]
            if node.tag is not None:
                elements.insert(0, (".tag", inspect.StrType()))
            return elements[index] if index < len(elements) else (label, None)
        case inspect.TupleType() if index is not None and index < len(node.item_types):
            return label, node.item_types[index]
        case inspect.DictType():
            return label, node.value_type
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            return label, node.item_type
        case _:
            return label, None
