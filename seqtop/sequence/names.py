"""Names: short strings that identify something, such as a request or a model.

Every message repeats them, and viewers have them in keys, tables and indexes. Longer ones are
refused in decoding, which bounds the memory for them.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec

MAX_NAME_LENGTH: Final = 4_096
"""The limit in characters: that of a path, which may be the name of a model."""

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]
"""A string of at most `MAX_NAME_LENGTH` characters."""
