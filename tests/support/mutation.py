"""Mutations of valid messages: of their bytes, and of their values."""

from __future__ import annotations

import random
from collections.abc import Iterable
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
    changed = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        size = len(changed) or 1
        at = choose.randrange(size)
        match choose.randrange(7):
            case 0 if changed:
                changed[at] ^= 1 << choose.randrange(8)
            case 1 if changed:
                changed[at] = choose.choice((0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xD9, 0xFF))
            case 2:
                del changed[at : at + choose.randint(1, 8)]
            case 3:
                changed[at:at] = choose.randbytes(choose.randint(1, 8))
            case 4:
                changed[at:at] = changed[at : at + choose.randint(1, 64)]
            case 5:
                del changed[at:]
            case _:  # a container or a text that claims to have four thousand million elements
                changed[at : at + 5] = (
                    bytes([choose.choice((0xC6, 0xDB, 0xDD, 0xDF))]) + b"\xff" * 4
                )
    return bytes(changed)


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
                return {name: value for name, value in node.items() if name != key}
            case 1:
                other = choose.choice((-1, 2**40, "", str(key)))
                return {(other if name == key else name): value for name, value in node.items()}
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


class Pool:
    """The ids and texts of many messages, so that a mutation can put those of others in place.

    Args:
        trees: Decoded messages, to any depth of lists and dictionaries.
    """

    def __init__(self, trees: Iterable[Any]) -> None:
        ints, strs = {0, 1, -1, 2**31 - 1, 2**40}, {"", "\x1b[2J", "[bold]", "狐" * 99}
        stack = list(trees)
        while stack:
            node = stack.pop()
            if isinstance(node, dict):
                stack += [*node, *node.values()]
            elif isinstance(node, list):
                stack += node
            elif isinstance(node, str):
                strs.add(node)
            elif isinstance(node, int) and not isinstance(node, bool):
                ints.add(node)
        self.ints = sorted(ints)
        self.strs = sorted(strs)


def plausible(choose: random.Random, tree: Any, pool: Pool, most: int = 4) -> Any:
    """`tree` with one value, up to `most` values, replaced by others of the same type.

    Most results can be decoded: what is wrong with them is their meaning. Lists of equal things are
    shortened, lengthened, repeated and shuffled, dictionaries lose, gain and exchange entries.
    """
    for _ in range(choose.randint(1, most)):
        tree = _plausibly_changed(choose, tree, pool)
    return tree


def _plausibly_changed(choose: random.Random, node: Any, pool: Pool) -> Any:
    match node:
        case bool():
            return not node
        case int():
            near = (node - 1, node + 1, node * 2, 0)
            other = choose.choice(near) if choose.random() < 0.5 else choose.choice(pool.ints)
            return min(max(other, -(2**63)), 2**64 - 1)
        case float():
            return choose.choice((0.0, -1.0, node + 1.0, node - 1e6, 1e308, 5e-324, *_NOT_FINITE))
        case str():
            return choose.choice((choose.choice(pool.strs), node * 2, node[: len(node) // 2]))
        case bytes():
            return _columns_changed(choose, node)
        case Ext():
            return Ext(node.code, _columns_changed(choose, bytes(node.data)))
        case dict() if node:
            return _dict_changed(choose, node, pool)
        case list() if node:
            return _list_changed(choose, node, pool)
    return node


_NOT_FINITE = (float("inf"), float("-inf"), float("nan"))


def _dict_changed(choose: random.Random, node: dict[Any, Any], pool: Pool) -> Any:
    key = choose.choice(list(node))
    if not isinstance(key, str) or key in pool.strs:  # an id, no name of a field
        match choose.randrange(8):
            case 0:
                return {name: value for name, value in node.items() if name != key}
            case 1:
                other = choose.choice(pool.strs if isinstance(key, str) else pool.ints)
                return node | {other: node[key]}
            case 2 if choose.random() < 0.1 and isinstance(key, int):
                return node | dict.fromkeys(range(1000), node[key])
    return node | {key: _plausibly_changed(choose, node[key], pool)}


def _list_changed(choose: random.Random, node: list[Any], pool: Pool) -> Any:
    at = choose.randrange(len(node))
    is_struct = len({type(value) for value in node}) > 1
    action = choose.randrange(40 if is_struct else 12)
    match action:
        case 0:
            return [*node[: at + 1], *node[at:]] if not is_struct else node[: max(at, 1)]
        case 1:
            return node[:at] + node[at + 1 :] if not is_struct else _exchanged(choose, node)
        case 2 if not is_struct:
            return choose.sample(node, len(node))
        case 3 if not is_struct:
            return node * choose.choice((2, 2, 2, 50))
        case 4 if not is_struct:
            return []
    return [*node[:at], _plausibly_changed(choose, node[at], pool), *node[at + 1 :]]


def _exchanged(choose: random.Random, node: list[Any]) -> list[Any]:
    """Two fields of the same type in each other's place."""
    first = choose.randrange(1, len(node))
    alike = [
        index for index, value in enumerate(node) if index and type(value) is type(node[first])
    ]
    second = choose.choice(alike)
    changed = node.copy()
    changed[first], changed[second] = node[second], node[first]
    return changed


def _columns_changed(choose: random.Random, data: bytes) -> bytes:
    """Numbers of eight bytes each (or less) with others among them, mostly as many."""
    if not data:
        return data
    match choose.randrange(4):
        case 0:
            return data[: len(data) // 16 * 8]
        case 1:
            return data * 2
        case _:
            at = choose.randrange(len(data))
            return data[:at] + bytes([choose.randrange(256)]) + data[at + 1 :]
