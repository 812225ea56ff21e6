"""The endpoints ``/tokenize`` and ``/detokenize``, as vLLM has them: the bodies."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from engine_stub.entrypoints.openai.chat import ConversationMessage


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/tokenize``, with either `prompt` or `messages`.

    Attributes:
        prompt: The text to tokenize, as ``/v1/completions`` does.
        messages: The conversation to tokenize, as ``/v1/chat/completions`` does.
        add_special_tokens: Whether a prompt gets the special tokens that the tokenizer adds. Those
            of a conversation come from its template.
        return_token_strs: Whether to return the tokens as the vocabulary spells them, too.
        chat_template_kwargs: Variables of the model's chat template.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ConversationMessage], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(msgspec.Struct):
    """The tokens; `token_strs` is None unless requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """The body of ``/detokenize``."""

    tokens: list[int]
    model: str | None = None


class DetokenizeResponse(msgspec.Struct):
    """The text of the tokens, with special ones."""

    prompt: str
