"""Mutations of valid messages: of their bytes, and of their values."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec.msgpack import Ext

HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1,
    0.0, -0.0, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
    "", "\x1b]52;c;cm0=\x07\x1b[2J", "[bold]x[/]", "\u202e\u200d" * 50, "狐" * 999, "\x00\r\n\t",
    b"", b"\xff" * 9, [], {}, [[[[[[[[]]]]]]]], [None] * 5, {"": None}, {-1: []}, [2**62] * 3,
    Ext(ord("i"), b"\xff" * 8), Ext(ord("q"), b"\x80" * 16), Ext(ord("d"), b"\xff" * 16),
    Ext(ord("h"), b"1"),
)  # fmt: skip
"""Values that fields do not expect, or interpret differently."""


def bytewise(choose: random.Random, data: bytes) -> bytes:
    """Changes one to four places: flips, overwrites, removes, repeats or cuts bytes."""
    spoilt = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        size = len(spoilt) or 1
        at = choose.randrange(size)
        match choose.randrange(7):
            case 0 if spoilt:
                spoilt[at] ^= 1 << choose.randrange(8)
            case 1 if spoilt:
                spoilt[at] = choose.choice((0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xD9, 0xFF))
            case 2:
                del spoilt[at : at + choose.randint(1, 8)]
            case 3:
                spoilt[at:at] = choose.randbytes(choose.randint(1, 8))
            case 4:
                spoilt[at:at] = spoilt[at : at + choose.randint(1, 64)]
            case 5:
                del spoilt[at:]
            case _:  # a container or a text that claims to have four thousand million elements
                spoilt[at : at + 5] = bytes([choose.choice((0xC6, 0xDB, 0xDD, 0xDF))]) + b"\xff" * 4
    return bytes(spoilt)


def by_meaning(choose: random.Random, data: bytes) -> bytes:
    """The same message, but one to three of its values are others."""
    tree = msgspec.msgpack.decode(data, strict=False)
    for _ in range(choose.randint(1, 3)):
        tree = _changed(choose, tree)
    return msgspec.msgpack.encode(tree)


def _changed(choose: random.Random, node: Any) -> Any:
    """`node` with one value somewhere in it replaced, removed or repeated."""
    if isinstance(node, dict) and node and choose.random() < 0.9:
        key = choose.choice(list(node))
        match choose.randrange(8):
            case 0:
                return {each: value for each, value in node.items() if each != key}
            case 1:
                other = choose.choice((-1, 2**40, "", str(key)))
                return {(other if each == key else each): value for each, value in node.items()}
            case _:
                return node | {key: _changed(choose, node[key])}
    if isinstance(node, list) and node and choose.random() < 0.9:
        at = choose.randrange(len(node))
        match choose.randrange(10):
            case 0:
                return node[:at] + node[at + 1 :]
            case 1:
                return [*node[:at], node[at], *node[at:]]
            case 2:
                return node[:at]
            case _:
                return [*node[:at], _changed(choose, node[at]), *node[at + 1 :]]
    if isinstance(node, Ext) and choose.random() < 0.7:
        return Ext(
            choose.choice((node.code, *b"bhiqfd", 84, 0)), bytewise(choose, bytes(node.data))
        )
    if isinstance(node, int) and not isinstance(node, bool) and choose.random() < 0.5:
        other = node + choose.choice((-1, 1, -node, 7, 2**31))
        return min(max(other, -(2**63)), 2**64 - 1)
    return choose.choice(HOSTILE)
