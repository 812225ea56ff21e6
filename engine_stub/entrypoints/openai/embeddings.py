"""The endpoint ``/v1/embeddings``: the bodies of its requests and responses."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from engine_stub.entrypoints.openai.bridge import Completion
from engine_stub.entrypoints.openai.schemas import as_prompts
from engine_stub.processing.input_processor import Prompt
from seqtop.sequence import PoolingParams


class EmbeddingRequest(msgspec.Struct, kw_only=True):
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

    def prompts(self) -> list[Prompt]:
        """Returns the inputs for the engine.

        Raises:
            ApiError: There are too many, or they are of several kinds.
        """
        return as_prompts("input", self.input)

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
    completion: Completion, encoding_format: Literal["float", "base64"]
) -> list[Embedding]:
    """Waits for the vectors of all inputs, and returns them in order.

    Raises:
        AbortedError: One of the requests was aborted.
    """
    vectors = []
    async for piece in completion.pieces():
        assert piece.pooled is not None
        vector = piece.pooled if encoding_format == "float" else _base64(piece.pooled)
        vectors.append(Embedding(piece.index, vector))
    return sorted(vectors, key=lambda embedding: embedding.index)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
