"""The layouts of what is sent and recorded, as text: names, order, defaults and bytes of fields."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from seqtop import sequence
from seqtop.history import file_format, keyframe, segments
from seqtop.sequence import ExecuteModelRequest, Logprob, PoolingParams, SamplingParams
from seqtop.state import model, top_logprobs
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.wire import codec, messages, snapshot
from seqtop.wire.arrays import Floats, Ints
from tests.support import events

MODULES = (messages, snapshot, model, top_logprobs, keyframe, segments, file_format)


class Values:
    """Makes values that differ from each other and from any default.

    The values of a type are the same each time.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._makers: dict[Any, Callable[[], Any]] = {
            bool: lambda: True,
            int: lambda: next(self._numbers),
            float: lambda: next(self._numbers) + 0.5,
            str: lambda: f"text {next(self._numbers)}",
            bytes: lambda: b"%d bytes" % next(self._numbers),
            Ints: lambda: Ints.of([next(self._numbers)]),
            Floats: lambda: Floats.of([next(self._numbers) + 0.5]),
            TopLogprobs: lambda: TopLogprobs.of({next(self._numbers): {1: self.of(Logprob)}}),
            msgspec.Raw: lambda: msgspec.Raw(b"\xc3"),
            ExecuteModelRequest: lambda: ExecuteModelRequest(
                [events.delta(f"text {next(self._numbers)}", next(self._numbers))]
            ),
            SamplingParams: lambda: SamplingParams(seed=next(self._numbers)),
            PoolingParams: lambda: PoolingParams(dimensions=next(self._numbers)),
        }

    def of(self, hint: Any) -> Any:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint in self._makers:
            return self._makers[hint]()
        if origin is typing.Annotated:
            return self.of(arguments[0])
        if origin is typing.Literal:
            return arguments[-1]
        if origin in (typing.Union, types.UnionType):
            return self.of(next(part for part in arguments if part is not types.NoneType))
        if origin in (list, set):
            return origin([self.of(arguments[0])])
        if origin is tuple:
            return tuple(self.of(part) for part in arguments)
        if origin is dict:
            return {self.of(arguments[0]): self.of(arguments[1])}
        if isinstance(hint, enum.EnumType):
            return list(hint)[-1]
        return self.instance(hint)

    def instance(self, cls: type) -> Any:
        """An instance with a value for each field."""
        hints = typing.get_type_hints(cls, include_extras=True)
        return cls(**{name: self.of(hints[name]) for name, _ in fields(cls)})


REQUIRED = ""


def fields(cls: Any) -> Iterator[tuple[str, str]]:
    """Yields the name and the default of each field."""
    if dataclasses.is_dataclass(cls):
        for own in dataclasses.fields(cls):
            yield own.name, _default(own, dataclasses.MISSING)
        return
    for field in msgspec.structs.fields(cls):
        yield field.encode_name, _default(field, msgspec.NODEFAULT)


def _default(field: Any, missing: object) -> str:
    if field.default_factory is not missing:
        default = field.default_factory()
        if isinstance(default, Ints | Floats):
            return f" = {type(default).__name__}({default.typecode!r})"
        return f" = {default!r}"
    return REQUIRED if field.default is missing else f" = {field.default!r}"


def layout(cls: Any) -> Iterator[str]:
    """Yields the lines of one type."""
    if isinstance(cls, enum.EnumType):
        yield f"{cls.__name__}: enumeration"
        members: dict[str, Any] = dict(cls.__members__)
        yield from (f"    {name} = {member.value!r}" for name, member in members.items())
        return
    kind = "dataclass"
    if issubclass(cls, msgspec.Struct):
        config = cls.__struct_config__
        kind = "array" if config.array_like else "map"
        kind += f", tag {config.tag!r}" if config.tag else ""
        kind += ", omits defaults" if config.omit_defaults else ""
        kind += ", forbids unknown fields" if config.forbid_unknown_fields else ""
    yield f"{cls.__name__}: {kind}"
    yield from (f"    {name}{default}" for name, default in fields(cls))


def own_types() -> list[Any]:
    """The structs of messages, snapshots, states and recordings."""
    return [
        value
        for module in MODULES
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
        and value is not messages.Message
    ]


def types_of_vllm() -> list[Any]:
    """The types of vLLM's V0 engine that are sent; other golden data has their bytes."""
    exported = (getattr(sequence, name) for name in sequence.__all__)
    return [
        value
        for value in exported
        if isinstance(value, type)
        and (issubclass(value, msgspec.Struct | enum.Enum) or "__dataclass_fields__" in vars(value))
    ]


def dump() -> str:
    """Returns the layouts of all types, and of our own the bytes of an instance."""
    lines: list[str] = []
    for cls in own_types():
        encoded = codec.encode(Values().of(cls)).hex()
        lines += [*layout(cls), f"  {encoded}", ""]
    for cls in types_of_vllm():
        lines += [*layout(cls), ""]
    lines.append("seqtop.sequence")
    for name in sequence.__all__:
        value = getattr(sequence, name)
        lines.append(f"    {name}" + (f" = {value!r}" if isinstance(value, str | int) else ""))
    return "\n".join(lines)


def examples() -> list[Any]:
    """An instance of each of our own types, with a value for each field."""
    return [Values().of(cls) for cls in own_types()]
