"""The endpoint ``/v1/embeddings``: the bodies of its requests and responses."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine_stub.entrypoints.openai.bridge import Completion
from engine_stub.processing.input_processor import Prompt
from seqtop.sequence import PoolingParams

MAX_INPUTS = 2048
"""The most inputs of one request, as at OpenAI."""


class EmbeddingRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of ``/v1/embeddings``.

    Attributes:
        input: One input, a text or a list of token ids, or a list of inputs.
        encoding_format: The format of a vector: numbers, or the base64 of its little-endian
            float32 values.
    """

    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None

    def prompts(self) -> list[Prompt]:
        """Returns the inputs for the engine.

        Raises:
            ValueError: There are too many, or they are of several kinds.
        """
        if isinstance(self.input, str):
            return [self.input]
        token_ids = [each for each in self.input if isinstance(each, int)]
        if len(token_ids) == len(self.input):
            return [token_ids]
        if len(self.input) > MAX_INPUTS:
            raise ValueError(f"input holds {len(self.input)} inputs; {MAX_INPUTS} is the most")
        prompts: list[Prompt] = [each for each in self.input if not isinstance(each, int)]
        if token_ids or len({type(each) for each in prompts}) > 1:
            raise ValueError("input must be a text, token ids, or a list of one of these")
        return prompts

    def pooling_params(self) -> PoolingParams:
        """Returns the parameters for the engine."""
        return PoolingParams(dimensions=self.dimensions)


class Embedding(msgspec.Struct):
    """The vector of one input."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """Numbers of tokens."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct):
    """The body of a response."""

    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


async def embeddings(
    completions: Iterable[Completion], encoding_format: Literal["float", "base64"]
) -> list[Embedding]:
    """Waits for the vectors of all inputs.

    Raises:
        AbortedError: One of the requests was aborted.
    """
    found = []
    for index, completion in enumerate(completions):
        async for piece in completion.pieces():
            assert piece.pooled is not None
            vector = piece.pooled if encoding_format == "float" else _base64(piece.pooled)
            found.append(Embedding(index, vector))
    return found


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
