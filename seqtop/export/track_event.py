"""Perfetto's native trace format: packets with tracks and events, as protobuf bytes.

A trace is the concatenation of its packets (perfetto/protos/perfetto/trace/trace.proto). This is
the part of the format that the exports use, so no protobuf library is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache

from seqtop.text.sanitize import safe_text

Argument = str | int | float | bool
Arguments = Mapping[str, Argument | None]
"""Annotations of an event by name; `None` is left out."""

_SEQUENCE_ID = 1
"""All packets come from one writer."""
_MAX_INT = 2**63 - 1


class EventType(IntEnum):
    """The type of an event: `TrackEvent.Type`."""

    SLICE_BEGIN = 1
    SLICE_END = 2
    INSTANT = 3
    COUNTER = 4


def process(uuid: int, pid: int, name: str) -> bytes:
    """Returns the packet that declares a process. Viewers order processes by `pid`."""
    descriptor = _number(1, pid) + _text(6, name)
    return _track(_number(1, uuid) + _message(3, descriptor))


def thread(uuid: int, pid: int, tid: int, name: str) -> bytes:
    """Returns the packet that declares a thread. Viewers order a process's threads by `tid`."""
    descriptor = _number(1, pid) + _number(2, tid) + _text(5, name)
    return _track(_number(1, uuid) + _message(4, descriptor))


def track(uuid: int, parent: int, name: str) -> bytes:
    """Returns the packet that declares a track below the track `parent`."""
    return _track(_number(1, uuid) + _number(5, parent) + _text(2, name))


def counter(uuid: int, parent: int, name: str, unit: str) -> bytes:
    """Returns the packet that declares a counter below the track `parent`."""
    return _track(
        _number(1, uuid) + _number(5, parent) + _text(2, name) + _message(8, _text(6, unit))
    )


def event(
    kind: EventType,
    track: int,
    time: int,
    name: str = "",
    category: str = "",
    arguments: Arguments | None = None,
    flows: Iterable[int] = (),
    ended_flows: Iterable[int] = (),
) -> bytes:
    """Returns the packet of an event.

    Args:
        kind: The type of the event.
        track: The uuid of its track.
        time: Nanoseconds since the epoch.
        name: Its name; empty for the end of a slice.
        category: Its category.
        arguments: What it says about itself.
        flows: The ids of the flows that it starts or continues: arrows to later events.
        ended_flows: The ids of the flows that end at it.
    """
    parts = [_number(9, kind), _number(11, track)]
    if category:
        parts.append(_text(22, category))
    if name:
        parts.append(_text(23, name))
    for key, value in (arguments or {}).items():
        if value is not None:
            parts.append(_message(4, _text(10, key) + _argument(value)))
    parts += [_fixed64(47, flow) for flow in flows]
    parts += [_fixed64(48, flow) for flow in ended_flows]
    return _packet(_number(8, time) + _message(11, b"".join(parts)))


def sample(track: int, time: int, value: int) -> bytes:
    """Returns the packet of a counter's value at `time`, nanoseconds since the epoch."""
    parts = _number(9, EventType.COUNTER) + _number(11, track) + _number(30, _clipped(value))
    return _packet(_number(8, time) + _message(11, parts))


def _packet(content: bytes) -> bytes:
    return _message(1, content + _number(10, _SEQUENCE_ID))


def _track(descriptor: bytes) -> bytes:
    return _packet(_message(60, descriptor))


def _argument(value: Argument) -> bytes:
    match value:
        case bool():
            return _number(2, value)
        case int():
            return _number(4, _clipped(value))
        case float():
            return _varint(5 << 3 | 1) + struct.pack("<d", value)
        case str():
            return _text(6, value)


def _clipped(value: int) -> int:
    """Returns the nearest 64-bit integer: what an engine counts may be any integer."""
    return min(max(value, -_MAX_INT), _MAX_INT)


@lru_cache(4_096)
def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _fixed64(field: int, value: int) -> bytes:
    return _varint(field << 3 | 1) + struct.pack("<Q", value)


def _message(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


@lru_cache(4_096)  # names come again and again
def _text(field: int, text: str) -> bytes:
    return _message(field, safe_text(text).encode(errors="replace"))
