"""Renders conversations as prompts, by the Jinja template in a model's directory.

As in transformers, the template is ``chat_template.jinja`` or in ``tokenizer_config.json``; its
variables are the messages and the special tokens, which it inserts itself, including the one at the
beginning. It runs in Jinja's sandbox, because model directories are untrusted.
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
    """The template cannot be read, or rejects the messages."""


class ChatTemplate:
    """A model's chat template.

    Args:
        source: The template's source.
        special_tokens: The special tokens by the template's names, ``bos_token`` and so on.

    Raises:
        ChatTemplateError: `source` is not a valid template.
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
        """Reads a model directory's template; returns None if it has none.

        Raises:
            ChatTemplateError: The template cannot be read.
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
            # Several by name; those besides the default are for tools and documents.
            named = {"default": given} if isinstance(given, str) else _by_name(given)
            source = named.get("default", "")
        else:
            source = ""
        if not source:
            return None
        tokens = {f"{kind}_token": config.get(f"{kind}_token") for kind in _SPECIAL_TOKENS}
        return cls(source, {name: _text(token) for name, token in tokens.items() if token})

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        """Returns the prompt that asks the model to continue a conversation.

        Args:
            messages: The messages, each with ``role`` and ``content``.
            variables: Further variables of the template.

        Raises:
            ChatTemplateError: The template rejects the messages, or fails.
        """
        common = {"messages": messages, "add_generation_prompt": True, "tools": None}
        try:
            return self._template.render(self._special_tokens | common | variables)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template refuses this: {error}") from error
        # A template can raise any exception of Python.
        except Exception as error:
            raise ChatTemplateError(
                f"the chat template fails on this: {type(error).__name__}: {error}"
            ) from error


class _GenerationBlock(Extension):
    """The ``{% generation %}`` block, which marks text to train on and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _by_name(templates: list[dict[str, str]]) -> dict[str, str]:
    return {each["name"]: each["template"] for each in templates}


def _text(token: str | dict[str, str]) -> str:
    """Returns a special token's text, which some configs store as one of its properties."""
    return token if isinstance(token, str) else token["content"]


def _to_json(value: Any, **options: Any) -> str:
    """Dumps JSON without escaping for HTML, unlike Jinja's own filter."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
