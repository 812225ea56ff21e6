"""Locates errors in a value by field names, such as `seq_group_metadata_list[0].is_prompt`.

msgspec locates a decoding error by positions in the encoded arrays, and an encoding error not at
all. The names are derived here after an error, so that they cost nothing without one.
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

from seqtop.wire.message_tag import tag

_AT_PATH: Final = re.compile(r"(?P<reason>.*) - at (?P<key>`key` in )?`\$(?P<path>.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+|\.\.\.)\]")
_MAX_DEPTH: Final = 64  # no valid value is nested deeper
_MAX_PLAIN_BYTES: Final = 4 * 1024
"""The largest data that are decoded a second time, untyped, to name the members of unions. Of
larger data, only the tag is read."""
_MAX_REASON: Final = 1_000
"""The largest error in characters. It may quote a value from the data."""
_UNKNOWN: Final = object()


def name_of(target: Any) -> str:
    """Returns the name of a type, or the names of the members of a union."""
    if get_origin(target) in (Union, UnionType):
        return " | ".join(map(name_of, get_args(target)))
    return target.__name__ if isinstance(target, type) else str(target)


def describe_error(error: Exception, target: Any, data: Any) -> str:
    """Returns the reason for a decoding error, with the names of the fields.

    The cost is bounded whatever the data: of large data, and of data that the error quotes at
    length, fewer fields are named.
    """
    text = str(error)
    if len(text) > _MAX_REASON:
        return f"{text[:_MAX_REASON]}… ({memoryview(data).nbytes:,} bytes)"
    match = _AT_PATH.fullmatch(text)
    if match is None:
        return text or type(error).__name__
    place = _name_steps(match["path"], _layout(target), _plain(data))
    if match["key"]:
        place = f"a key of {place}" if place else "a key"
    return f"{place}: {match['reason']}" if place else match["reason"]


def name_path(path: str, target: Any, value: Any) -> str:
    """Returns a path of positions and keys, such as `[5][0][21]`, with the names of the fields.

    Args:
        path: The path, in which `[...]` stands for each value of a map.
        target: The type of the value.
        value: The value as MessagePack has it.
    """
    return _name_steps(path, _layout(target), value)


def locate_failure(encode: Callable[[Any], bytes], obj: Any) -> str:
    """Returns the part of `obj` that `encode` fails for; empty if it is `obj` as a whole."""
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
    except Exception:  # noqa: BLE001 - the error itself has been reported before
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
    if memoryview(data).nbytes > _MAX_PLAIN_BYTES:
        return [tag(data)]
    try:
        return msgspec.msgpack.decode(data)
    except Exception:  # noqa: BLE001 - malformed elsewhere, too: the location has fewer names
        return _UNKNOWN


def _name_steps(path: str, node: inspect.Type | None, value: Any) -> str:
    """Replaces positions in `path` by field names."""
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
        exists = isinstance(value, list) and index is not None and index < len(value)
        value = value[index] if exists else _UNKNOWN
    return named.lstrip(".")


def _narrow(node: inspect.Type | None, value: Any) -> inspect.Type | None:
    """Returns the member of a union that the value belongs to: a container or a struct."""
    if not isinstance(node, inspect.UnionType):
        return node
    members = [kind for kind in node.types if not isinstance(kind, inspect.NoneType)]
    if len(members) == 1:
        return members[0]
    tag = value[0] if isinstance(value, list) and value else _UNKNOWN
    for member in members:
        if isinstance(member, inspect.StructType) and member.array_like and member.tag == tag:
            return member
    containers = [member for member in members if hasattr(member, "item_type")]
    return containers[0] if len(containers) == 1 else None


def _field_type(node: inspect.Type | None, name: str) -> inspect.Type | None:
    if isinstance(node, inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        for field in node.fields:
            if field.encode_name == name:
                return field.type
    return None


def _element(node: inspect.Type | None, index: int | None) -> tuple[str, inspect.Type | None]:
    """Returns the label of an element of an array or a map, and its type if known."""
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
