"""Fields of messages are read by the inspector: what nothing reads, no user sees."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from seqtop.wire import messages
from seqtop.wire.messages import Message

SEQTOP = Path(messages.__file__).parents[1]
PUBLISHERS = ("wire", "adapters", "publish")
"""Folders that write messages, or define them."""
DRIVERS = ("adapters/vllm/whatif.py",)
"""Modules in them that read recordings."""
COMPARED = {"EngineInfo.preemption_mode"}
"""Settings that only `seqtop diff` shows, which compares all fields of `EngineInfo`."""


@functools.cache
def names_read() -> set[str]:
    """The attributes that are read in the inspector, by name."""
    return {name for path in sources() for name in attributes(ast.parse(path.read_text("utf-8")))}


def sources() -> Iterator[Path]:
    for path in SEQTOP.rglob("*.py"):
        inside = path.relative_to(SEQTOP)
        if inside.parts[0] not in PUBLISHERS or inside.as_posix() in DRIVERS:
            yield path


def attributes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr


def message_fields() -> list[str]:
    structs = [
        value
        for value in vars(messages).values()
        if isinstance(value, type) and issubclass(value, Message) and value is not Message
    ]
    return [
        f"{struct.__name__}.{field.name}"
        for struct in structs
        for field in msgspec.structs.fields(struct)
    ]


@pytest.mark.parametrize("field", sorted({*message_fields()} - COMPARED))
def test_a_field_is_read(field: str) -> None:
    assert field.split(".")[1] in names_read(), f"nothing in seqtop shows or uses {field}"


def test_fields_that_are_only_compared_are_named() -> None:
    assert {*message_fields()} >= COMPARED
    assert not [field for field in COMPARED if field.split(".")[1] in names_read()]
