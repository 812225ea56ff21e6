"""The messages of a conversation, and the stop strings of the bundled model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

BUNDLED_STOPS = ("\nUser:",)
"""Strings that begin the user's next turn; the bundled model has no token to end a turn."""


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message."""

    type: Literal["text"]
    text: str


Content: TypeAlias = str | list[TextPart]


class ConversationMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None


def for_template(messages: Iterable[ConversationMessage]) -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates, with the parts of each one joined."""
    return [{"role": each.role, "content": _text(each.content)} for each in messages]


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
