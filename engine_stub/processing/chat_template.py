"""Conversations as a model was trained on them, by the Jinja template beside its weights.

As in transformers: the template is ``chat_template.jinja`` or in ``tokenizer_config.json``, sees
the messages and the special tokens, and puts the special tokens into its text itself, the one that
begins it among them. It runs in Jinja's sandbox, for it came with somebody else's files.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class ChatTemplateError(ValueError):
    """The template cannot be read, or does not take these messages."""


class ChatTemplate:
    """A model's chat template.

    Args:
        source: In Jinja.
        special_tokens: What the template knows as ``bos_token`` and so on.

    Raises:
        ChatTemplateError: `source` is no template.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(
                f"the chat template cannot be read: {error.message}, line {error.lineno}"
            ) from error
        self._special_tokens = special_tokens

    @classmethod
    def from_pretrained(cls, path: Path) -> Self | None:
        """Read a model directory's template; None if it has none.

        Raises:
            ChatTemplateError: It cannot be read.
        """
        config_file, template_file = path / "tokenizer_config.json", path / "chat_template.jinja"
        config: dict[str, Any] = {}
        if config_file.is_file():
            try:
                config = json.loads(config_file.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ChatTemplateError(f"{config_file} is not valid JSON: {error}") from error
        if template_file.is_file():
            source = template_file.read_text(encoding="utf-8")
        elif given := config.get("chat_template"):
            # Several by name, of which the others are for tools and documents.
            named = {"default": given} if isinstance(given, str) else _by_name(given)
            source = named.get("default", "")
        else:
            source = ""
        if not source:
            return None
        tokens = {f"{kind}_token": config.get(f"{kind}_token") for kind in _SPECIAL_TOKENS}
        return cls(source, {name: _text(token) for name, token in tokens.items() if token})

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """The prompt that asks the model to go on with a conversation.

        Args:
            messages: With ``role`` and ``content`` each.
            variables: For the template, besides those that every template knows.

        Raises:
            ChatTemplateError: The template refuses the messages, or fails.
        """
        known = {"messages": messages, "add_generation_prompt": True, "tools": None}
        try:
            return self._template.render(self._special_tokens | known | variables)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses this: {error}") from error
        # A template may do anything that Python can fail at.
        except Exception as error:
            raise ChatTemplateError(
                f"the chat template fails on this: {type(error).__name__}: {error}"
            ) from error


class _GenerationBlock(Extension):
    """``{% generation %}``, which marks what to train on and means nothing here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _by_name(templates: list[dict[str, str]]) -> dict[str, str]:
    return {each["name"]: each["template"] for each in templates}


def _text(token: str | dict[str, str]) -> str:
    """A special token's text, which some configs keep among its properties."""
    return token if isinstance(token, str) else token["content"]


def _to_json(value: Any, **options: Any) -> str:
    """Jinja's own filter would escape for HTML."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
