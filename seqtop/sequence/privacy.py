"""Declarations of the fields that hold text or tokens.

Each field of a struct that is published says what `seqtop.wire.redaction` does with it:

    class Example(msgspec.Struct):
        num_tokens: Public[int]
        token_ids: Masked[list[int]]
        text: Private[str] = ""

A field without a declaration is treated as private, and a test fails with its name. A private
mapping keeps the integers of the keys that `PublicKeys` names.
"""

from __future__ import annotations

import enum
from typing import Annotated, NamedTuple, TypeAlias, TypeVar

_Field = TypeVar("_Field")


class Privacy(enum.Enum):
    """The treatment of a field by redaction."""

    PUBLIC = "public"
    MASKED = "masked"
    PRIVATE = "private"


class PublicKeys(NamedTuple):
    """The keys of a private mapping whose values are kept, if they are integers."""

    keys: tuple[str, ...]


Public: TypeAlias = Annotated[_Field, Privacy.PUBLIC]
"""A field that is kept. Structs in it are redacted by the declarations of their own fields."""

Masked: TypeAlias = Annotated[_Field, Privacy.MASKED]
"""A field whose elements are replaced by zeros and empty strings, so that they can be counted."""

Private: TypeAlias = Annotated[_Field, Privacy.PRIVATE]
"""A field that is reset to its default."""
