"""The messages of a conversation, and what ends the bundled model's turn in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

BUNDLED_STOPS = ("\nUser:",)
"""Where the bundled model would begin to speak for the user; it has no token to end a turn."""


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


Content: TypeAlias = str | list[TextPart]


class ConversationMessage(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None


def for_template(messages: Iterable[ConversationMessage]) -> list[dict[str, Any]]:
    """The messages as chat templates know them, the parts of each joined to one text."""
    return [{"role": each.role, "content": _text(each.content)} for each in messages]


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
