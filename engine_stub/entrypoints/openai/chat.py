"""The messages of a conversation, and the stop strings of the bundled model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from seqtop.sequence.errors import ParameterError

BUNDLED_STOPS = ("\nUser:",)
"""Strings that begin the user's next turn; the bundled model has no token to end a turn."""


class TextPart(msgspec.Struct):
    """A part of a message."""

    type: Literal["text"]
    text: str


Content: TypeAlias = str | list[TextPart]


class ConversationMessage(msgspec.Struct):
    """A message of a conversation; unknown fields are ignored."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    tool_calls: Any = None
    function_call: Any = None


def for_template(messages: Iterable[ConversationMessage]) -> list[dict[str, Any]]:
    """Returns the messages in the form of chat templates, with the parts of each one joined.

    Raises:
        ParameterError: A message calls a tool.
    """
    messages = [*messages]
    if any(message.tool_calls or message.function_call for message in messages):
        raise ParameterError(
            "messages",
            "messages must be without calls of tools, which this engine does not support",
        )
    return [{"role": message.role, "content": _text(message.content)} for message in messages]


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
