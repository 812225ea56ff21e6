"""What clients get: OpenAI's objects, made of the pieces that the engine's steps bring."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol

import msgspec

from engine_stub.entrypoints.openai.bridge import Piece
from seqtop.sequence import Logprob


class Usage(msgspec.Struct):
    """Numbers of tokens; those of all `n` samples together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Answer(msgspec.Struct):
    """A whole answer, or one chunk of a stream; without `usage` unless it is to be told."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | msgspec.UnsetType = msgspec.UNSET


class TextLogprobs(msgspec.Struct):
    """One entry a token in each list; offsets are characters from the output's beginning."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class Candidate(msgspec.Struct):
    """A token that was or could have been sampled; no `bytes` for a part of a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(Candidate):
    top_logprobs: list[Candidate]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatToken]


class ChatMessage(msgspec.Struct):
    content: str
    role: Literal["assistant"] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatDelta(msgspec.Struct):
    index: int
    delta: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class Wording(Protocol):
    """How one of the two APIs puts a piece; made anew for each answer.

    Attributes:
        whole, chunk: What the API calls its objects.
        id_prefix: How its ids begin.
    """

    whole: str
    chunk: str
    id_prefix: str

    def __init__(self, *, with_logprobs: bool) -> None: ...

    def choice(self, piece: Piece) -> TextChoice | ChatChoice:
        """`piece`, which is all there is."""
        ...

    def delta(self, piece: Piece) -> TextChoice | ChatDelta:
        """`piece`, which goes on from the ones before."""
        ...


class TextWording:
    """Of completions."""

    whole = chunk = "text_completion"
    id_prefix = "cmpl"

    def __init__(self, *, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._offsets: dict[int, int] = {}

    def choice(self, piece: Piece) -> TextChoice:
        logprobs = self._logprobs(piece) if self._with_logprobs else None
        return TextChoice(piece.index, piece.text, logprobs, piece.finish_reason)

    delta = choice

    def _logprobs(self, piece: Piece) -> TextLogprobs:
        found = TextLogprobs([], [], [], [])
        offset = self._offsets.get(piece.index, 0)
        for token_id, candidates in zip(piece.token_ids, piece.logprobs, strict=True):
            sampled = candidates[token_id]
            found.tokens.append(_text(sampled))
            found.token_logprobs.append(sampled.logprob)
            found.top_logprobs.append({_text(each): each.logprob for each in candidates.values()})
            found.text_offset.append(offset)
            offset += len(_text(sampled))
        self._offsets[piece.index] = offset
        return found


class ChatWording:
    """Of chat completions; a stream's first chunk of each sample names the speaker."""

    whole = "chat.completion"
    chunk = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, *, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._begun: set[int] = set()

    def choice(self, piece: Piece) -> ChatChoice:
        message = ChatMessage(piece.text, "assistant")
        return ChatChoice(piece.index, message, self._logprobs(piece), piece.finish_reason)

    def delta(self, piece: Piece) -> ChatDelta:
        message = ChatMessage(piece.text)
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            message.role = "assistant"
        return ChatDelta(piece.index, message, self._logprobs(piece), piece.finish_reason)

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._with_logprobs:
            return None
        tokens = []
        for token_id, candidates in zip(piece.token_ids, piece.logprobs, strict=True):
            sampled = _candidate(candidates[token_id])
            likeliest = sorted(candidates.values(), key=lambda each: -each.logprob)
            top = [_candidate(each) for each in likeliest]
            tokens.append(ChatToken(sampled.token, sampled.logprob, sampled.bytes, top))
        return ChatLogprobs(tokens)


class Writer:
    """Puts one request's pieces into answers, and counts their tokens."""

    def __init__(
        self, wording: Wording, answer_id: str, *, model: str, num_prompt_tokens: int
    ) -> None:
        self._wording = wording
        self._id = answer_id
        self._created = int(time.time())
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0

    def chunk(self, piece: Piece) -> Answer:
        """The next chunk of a stream."""
        self._num_output_tokens += len(piece.token_ids)
        return self._answer(self._wording.chunk, [self._wording.delta(piece)])

    def usage_chunk(self) -> Answer:
        """The chunk after all others, which only tells the usage."""
        answer = self._answer(self._wording.chunk, [])
        answer.usage = self._usage()
        return answer

    def whole(self, pieces: Iterable[Piece]) -> Answer:
        """All in one."""
        samples = list(_joined(pieces))
        self._num_output_tokens = sum(len(each.token_ids) for each in samples)
        answer = self._answer(self._wording.whole, [self._wording.choice(each) for each in samples])
        answer.usage = self._usage()
        return answer

    def _answer(self, kind: str, choices: list[Any]) -> Answer:
        return Answer(self._id, kind, self._created, self._model, choices)

    def _usage(self) -> Usage:
        prompt, output = self._num_prompt_tokens, self._num_output_tokens
        return Usage(prompt, output, prompt + output)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """One piece a sample, in order."""
    by_sample: dict[int, list[Piece]] = {}
    for piece in pieces:
        by_sample.setdefault(piece.index, []).append(piece)
    for index, parts in sorted(by_sample.items()):
        yield Piece(
            index,
            "".join(part.text for part in parts),
            [token_id for part in parts for token_id in part.token_ids],
            [candidates for part in parts for candidates in part.logprobs],
            parts[-1].finish_reason,
        )


def _text(candidate: Logprob) -> str:
    return candidate.decoded_token or ""


def _candidate(candidate: Logprob) -> Candidate:
    text = _text(candidate)
    is_whole = "\ufffd" not in text
    return Candidate(text, candidate.logprob, list(text.encode()) if is_whole else None)
