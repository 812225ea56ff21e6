"""Removal of prompts, outputs and token ids from messages and states.

The declarations of the fields (`seqtop.sequence.privacy`) determine the result: numbers and lengths
remain, text and tokens do not. Log-probabilities are removed as well, because a reader who has the
model can derive the tokens from them.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from seqtop.sequence.privacy import Privacy, PublicKeys
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import EngineInfo

S = TypeVar("S", bound=msgspec.Struct)


def redact(struct: S) -> S:
    """Returns a copy of a message or a state without text and tokens.

    The original is unchanged. The copy may share values with it.

    Raises:
        WireError: The object is not a struct whose fields declare their privacy, or the struct is
            invalid.
    """
    if not isinstance(struct, msgspec.Struct):
        raise WireError(f"{type(struct).__qualname__} cannot be redacted")
    changes: dict[str, Any] = {}
    for field in _redacted_fields(type(struct)):
        value = getattr(struct, field.name)
        if field.privacy is Privacy.PUBLIC:
            changes[field.name] = _redact_structs(value)
        elif field.public_keys and isinstance(value, dict):
            kept = {key: value[key] for key in field.public_keys if type(value.get(key)) is int}
            changes[field.name] = kept or None
        elif field.privacy is Privacy.PRIVATE and field.has_default:
            changes[field.name] = _default(field.info)
        else:
            changes[field.name] = _mask(value)
    if isinstance(struct, EngineInfo):
        changes["redacted"] = True
    try:
        return msgspec.structs.replace(struct, **changes)
    except ValueError as error:  # of `__post_init__`, as in decoding
        raise WireError(f"{type(struct).__qualname__} cannot be redacted: {error}") from error


@cache
def privacy_of(struct: type[msgspec.Struct]) -> dict[str, Privacy | None]:
    """Returns the declared privacy of each field; `None` for a field without a declaration."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: _privacy(hints[name]) for name in struct.__struct_fields__}


class _RedactedField(NamedTuple):
    name: str
    privacy: Privacy
    info: msgspec.structs.FieldInfo
    public_keys: tuple[str, ...]

    @property
    def has_default(self) -> bool:
        missing = msgspec.NODEFAULT
        return self.info.default is not missing or self.info.default_factory is not missing


@cache
def _redacted_fields(struct: type[msgspec.Struct]) -> list[_RedactedField]:
    """Returns the fields of a struct that redaction changes."""
    annotated = get_type_hints(struct, include_extras=True)
    declared = privacy_of(struct)
    if declared and not any(declared.values()):
        raise WireError(f"{struct.__qualname__} cannot be redacted: no field declares its privacy")
    hints = get_type_hints(struct)
    return [
        _RedactedField(
            info.name,
            declared[info.name] or Privacy.PRIVATE,
            info,
            _public_keys(annotated[info.name]),
        )
        for info in msgspec.structs.fields(struct)
        if declared[info.name] is not Privacy.PUBLIC or _may_hold_structs(hints[info.name])
    ]


def _privacy(hint: Any) -> Privacy | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((data for data in hint.__metadata__ if isinstance(data, Privacy)), None)


def _public_keys(hint: Any) -> tuple[str, ...]:
    marks = getattr(hint, "__metadata__", ())
    return next((mark.keys for mark in marks if isinstance(mark, PublicKeys)), ())


def _may_hold_structs(hint: Any) -> bool:
    if arguments := get_args(hint):
        return any(map(_may_hold_structs, arguments))
    # Objects that are not structs, such as dataclasses and enums, are not redacted in part.
    return not isinstance(hint, type) or issubclass(hint, msgspec.Struct)


def _redact_structs(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return redact(value)
    if isinstance(value, list | tuple):
        return type(value)(map(_redact_structs, value))
    if isinstance(value, dict):
        return {key: _redact_structs(item) for key, item in value.items()}
    return value


def _mask(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(map(_mask, value))
    if isinstance(value, Ints):  # as narrow as possible: the width would reveal something
        return Ints("b", bytes(len(value)))
    if isinstance(value, Floats):
        return Floats.of([0.0] * len(value))
    if isinstance(value, array):
        return array(value.typecode, bytes(len(value) * value.itemsize))
    return type(value)() if isinstance(value, str | int | float) else None


def _default(info: msgspec.structs.FieldInfo) -> Any:
    factory = info.default_factory
    return info.default if factory is msgspec.NODEFAULT else factory()
