"""Renders conversations as prompts, by the Jinja template in a model's directory.

As in transformers, the template is ``chat_template.jinja`` or in ``tokenizer_config.json``; its
variables are the messages and the special tokens, which it inserts itself, including the one at the
beginning. Model directories are untrusted: a template is compiled and rendered in Jinja's sandbox,
in a process with limits on time and memory, see `engine_stub.processing.template_process`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Self

from engine_stub.model_executor.model_config import read_model_file

_SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


class ChatTemplateError(ValueError):
    """The template cannot be read, or rejects the messages."""


class ChatTemplate:
    """A model's chat template.

    Args:
        source: The template's source.
        special_tokens: The special tokens by the template's names, ``bos_token`` and so on.

    Raises:
        ChatTemplateError: `source` is not a valid template, or compiling it exceeds the limits.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        self._source = source
        self._special_tokens = special_tokens
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        with self._lock:
            self._start()

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
                config = json.loads(read_model_file(config_file))
            except (ValueError, RecursionError) as error:
                raise ChatTemplateError(f"{config_file} is not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise ChatTemplateError(f"{config_file} holds no JSON object")
        if template_file.is_file():
            try:
                source = read_model_file(template_file)
            except ValueError as error:
                raise ChatTemplateError(f"{template_file} cannot be read: {error}") from error
        elif given := config.get("chat_template"):
            # Several by name; those besides the default are for tools and documents.
            try:
                source = given if isinstance(given, str) else _by_name(given).get("default", "")
            except (KeyError, TypeError) as error:
                raise ChatTemplateError(f"{config_file} has a malformed chat_template") from error
        else:
            source = ""
        if not source:
            return None
        tokens = {f"{kind}_token": config.get(f"{kind}_token") for kind in _SPECIAL_TOKENS}
        texts = {name: _text(token) for name, token in tokens.items() if token}
        if not all(isinstance(text, str) for text in (source, *texts.values())):
            raise ChatTemplateError(f"{config_file} has a template or a token that is no text")
        return cls(source, texts)

    def render(self, messages: list[dict[str, Any]], /, **variables: Any) -> str:
        """Returns the prompt that asks the model to continue a conversation.

        Args:
            messages: The messages, each with ``role`` and ``content``.
            variables: Further variables of the template.

        Raises:
            ChatTemplateError: The template rejects the messages, fails or exceeds the limits, or a
                variable has a name of the template's own.
        """
        if "messages" in variables:
            raise ChatTemplateError("messages is no further variable of the chat template")
        common = {"messages": messages, "add_generation_prompt": True, "tools": None}
        try:
            task = json.dumps(self._special_tokens | common | variables)
        except RecursionError as error:
            raise ChatTemplateError("the variables are nested too deeply") from error
        with self._lock:
            if self._process is None:
                self._start()
            return self._run(task)["prompt"]

    def _start(self) -> None:
        """Starts the process, and compiles the template in it."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine_stub.processing.template_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        weakref.finalize(self, _end, self._process)
        self._run(json.dumps(self._source))

    def _run(self, task: str) -> dict[str, str]:
        """Sends a task to the process and returns the result; the next one starts a new process."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task.encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:  # it has ended
            line = b""
        if not line:
            _end(self._process)
            self._process = None
            raise ChatTemplateError("the chat template takes too much time or memory")
        result: dict[str, str] = json.loads(line)
        if error := result.get("error"):
            raise ChatTemplateError(f"the chat template {error}")
        return result


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _by_name(templates: list[dict[str, str]]) -> dict[str, str]:
    return {template["name"]: template["template"] for template in templates}


def _text(token: Any) -> Any:
    """Returns a special token's text, which some configs store as one of its properties."""
    return token.get("content") if isinstance(token, dict) else token
