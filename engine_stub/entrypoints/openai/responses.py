"""The bodies of responses: OpenAI's objects, made from the results of the engine's steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from engine_stub.entrypoints.openai.bridge import OutputDelta
from seqtop.sequence import Logprob


class Usage(msgspec.Struct):
    """Numbers of tokens, summed over all `n` samples."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(msgspec.Struct):
    """A whole completion, or one chunk of a stream. `usage` is omitted while unset."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET


class TextLogprobs(msgspec.Struct):
    """Log probabilities as lists with one entry per token; offsets are characters of output.

    A prompt's first token, which nothing predicts, has None.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    """A sample of a completion, or a part of one."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Candidate(msgspec.Struct):
    """A token that was or could have been sampled; `bytes` is None for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(Candidate):
    """A sampled token with its likeliest alternatives."""

    top_logprobs: list[Candidate]


class ChatLogprobs(msgspec.Struct):
    """The log probabilities of a message."""

    content: list[ChatToken]


class ChatMessage(msgspec.Struct):
    """A message of the model, or a part of one."""

    content: str
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    """A sample of a chat completion."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatDelta(msgspec.Struct):
    """A part of a sample of a chat completion."""

    index: int
    delta: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class EchoedPrompt(NamedTuple):
    """A prompt that its output begins with.

    Attributes:
        text: Its text, without special tokens.
        token_ids: Its tokens.
        first_token: The text of the first one; empty for a special token.
    """

    text: str
    token_ids: list[int]
    first_token: str


class ResponseFormat(Protocol):
    """The format of one of the two APIs. Each response has its own instance.

    Attributes:
        whole, chunk: The types of the API's objects.
        id_prefix: The beginning of its ids.
    """

    whole: str
    chunk: str
    id_prefix: str

    def choice(self, piece: OutputDelta) -> TextChoice | ChatChoice:
        """Formats a complete sample."""
        ...

    def delta(self, piece: OutputDelta) -> TextChoice | ChatDelta:
        """Formats the next part of a sample."""
        ...


class TextFormat:
    """The format of completions.

    Args:
        with_logprobs: Whether log probabilities were requested.
        echoed: For each sample, the prompt that it begins with; empty without `echo`.
    """

    whole = chunk = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, *, with_logprobs: bool, echoed: Sequence[EchoedPrompt] = ()) -> None:
        self._with_logprobs = with_logprobs
        self._echoed = dict(enumerate(echoed))
        self._offsets: dict[int, int] = {}

    def choice(self, piece: OutputDelta) -> TextChoice:
        """Formats a complete sample, or the next part of one."""
        text = piece.text
        token_ids: list[int] = piece.token_ids
        candidates: list[dict[int, Logprob] | None] = [*piece.logprobs]
        first_token = ""
        if echoed := self._echoed.pop(piece.index, None):
            text = echoed.text + text
            token_ids = echoed.token_ids + token_ids
            candidates = [*(piece.prompt_logprobs or ()), *candidates]
            first_token = echoed.first_token
        logprobs = None
        if self._with_logprobs:
            logprobs = self._logprobs(piece.index, token_ids, candidates, first_token)
        return TextChoice(piece.index, text, logprobs, piece.finish_reason)

    delta = choice

    def _logprobs(
        self,
        index: int,
        token_ids: list[int],
        logprobs: list[dict[int, Logprob] | None],
        first_token: str,
    ) -> TextLogprobs:
        result = TextLogprobs([], [], [], [])
        offset = self._offsets.get(index, 0)
        for token_id, candidates in zip(token_ids, logprobs, strict=True):
            if candidates is None:
                text, logprob, top = first_token, None, None
            else:
                text, logprob = _text(candidates[token_id]), candidates[token_id].logprob
                top = {_text(candidate): candidate.logprob for candidate in candidates.values()}
            result.tokens.append(text)
            result.token_logprobs.append(logprob)
            result.top_logprobs.append(top)
            result.text_offset.append(offset)
            offset += len(text)
        self._offsets[index] = offset
        return result


class ChatFormat:
    """The format of chat completions; the first chunk of each sample has the role."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, *, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()

    def choice(self, piece: OutputDelta) -> ChatChoice:
        """Formats a complete sample."""
        message = ChatMessage(piece.text, "assistant")
        return ChatChoice(piece.index, message, self._logprobs(piece), piece.finish_reason)

    def delta(self, piece: OutputDelta) -> ChatDelta:
        """Formats the next part of a sample."""
        message = ChatMessage(piece.text)
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            message.role = "assistant"
        return ChatDelta(piece.index, message, self._logprobs(piece), piece.finish_reason)

    def _logprobs(self, piece: OutputDelta) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        tokens = []
        for token_id, candidates in zip(piece.token_ids, piece.logprobs, strict=True):
            sampled = _candidate(candidates[token_id])
            likeliest = sorted(candidates.values(), key=lambda candidate: -candidate.logprob)
            top = [_candidate(candidate) for candidate in likeliest]
            tokens.append(ChatToken(sampled.token, sampled.logprob, sampled.bytes, top))
        return ChatLogprobs(tokens)


class ResponseBuilder:
    """Builds the responses to one request, and counts their tokens."""

    def __init__(
        self,
        response_format: ResponseFormat,
        response_id: str,
        *,
        model: str,
        num_prompt_tokens: int,
    ) -> None:
        self._format = response_format
        self._id = response_id
        self._created = int(time.time())
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0

    def chunk(self, piece: OutputDelta) -> CompletionResponse:
        """Returns the next chunk of a stream."""
        self._num_output_tokens += len(piece.token_ids)
        return self._response(self._format.chunk, [self._format.delta(piece)])

    def usage_chunk(self) -> CompletionResponse:
        """Returns the last chunk of a stream, which contains only the usage."""
        response = self._response(self._format.chunk, [])
        response.usage = self._usage()
        return response

    def whole(self, pieces: Iterable[OutputDelta]) -> CompletionResponse:
        """Returns the whole completion."""
        samples = list(_joined(pieces))
        self._num_output_tokens = sum(len(sample.token_ids) for sample in samples)
        response = self._response(
            self._format.whole, [self._format.choice(sample) for sample in samples]
        )
        response.usage = self._usage()
        return response

    def _response(self, kind: str, choices: list[Any]) -> CompletionResponse:
        return CompletionResponse(self._id, kind, self._created, self._model, choices)

    def _usage(self) -> Usage:
        prompt, output = self._num_prompt_tokens, self._num_output_tokens
        return Usage(prompt, output, prompt + output)


def _joined(pieces: Iterable[OutputDelta]) -> Iterator[OutputDelta]:
    """Yields one piece per sample, in order."""
    by_sample: dict[int, list[OutputDelta]] = {}
    for piece in pieces:
        by_sample.setdefault(piece.index, []).append(piece)
    for index, parts in sorted(by_sample.items()):
        yield OutputDelta(
            index,
            "".join(part.text for part in parts),
            [token_id for part in parts for token_id in part.token_ids],
            [candidates for part in parts for candidates in part.logprobs],
            parts[-1].finish_reason,
            prompt_logprobs=parts[0].prompt_logprobs,
        )


def _text(candidate: Logprob) -> str:
    return candidate.decoded_token or ""


def _candidate(candidate: Logprob) -> Candidate:
    text = _text(candidate)
    is_whole = "\ufffd" not in text
    return Candidate(text, candidate.logprob, list(text.encode()) if is_whole else None)
