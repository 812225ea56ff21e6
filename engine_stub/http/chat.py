"""The bundled model's chat template, in the form of the dialogues that it was trained on.

System messages come first in a paragraph of their own, then each turn is a line, and the last
line is left for the model to finish::

    You are a storyteller.

    User: Tell me a story about a fox.
    Bot:

The model saw dialogues of one question only; longer conversations are a stretch for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

STOP = "\nUser:"
"""Where the model would begin to speak for the user."""

_SPEAKERS = {"user": "User", "assistant": "Bot"}


class TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


Content: TypeAlias = str | list[TextPart]


class Message(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: str | None = None


def render(messages: Iterable[Message]) -> str:
    """Return the prompt that asks the model to go on with a conversation."""
    rules: list[str] = []
    turns: list[str] = []
    for message in messages:
        text = _text(message.content)
        if message.role in _SPEAKERS:
            turns.append(f"{_SPEAKERS[message.role]}: {text}\n")
        else:
            rules.append(f"{text}\n\n")
    return "".join((*rules, *turns, "Bot:"))


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
