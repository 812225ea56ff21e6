"""Pools the hidden states of a prompt into one vector, for embedding requests.

A prompt may arrive in chunks, so a mean is a running sum until the last chunk. As in vLLM, a vector
is cut to the requested dimensions before it is normalized.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import normalize

from engine_stub.config import PoolingType
from seqtop.sequence import SequenceGroupMetadata


@dataclass(slots=True)
class _Sum:
    """The sum of the hidden states of a prompt's first `num_tokens`: ``[hidden_size]`` float32."""

    total: Tensor
    num_tokens: int


class Pooler:
    """Pools the hidden states of requests with pooling parameters.

    Args:
        pooling_type: "LAST" for the last token's hidden state, "MEAN" for the mean of all.
        normalize: Whether vectors are scaled to a length of 1.
    """

    def __init__(self, pooling_type: PoolingType, *, normalize: bool) -> None:
        self._pooling_type = pooling_type
        self._normalize = normalize
        self._sums: dict[str, _Sum] = {}

    def remove_request(self, request_id: str) -> None:
        """Drops the state of a request, if there is any."""
        self._sums.pop(request_id, None)

    def pool(self, hidden: Tensor, group: SequenceGroupMetadata, start: int) -> Tensor | None:
        """Adds a chunk of a prompt.

        Args:
            hidden: The hidden states of the chunk, ``[tokens, hidden_size]``.
            group: The group of the prompt, as it is in this step.
            start: The position of the chunk's first token in the prompt.

        Returns:
            The prompt's vector, float32 on the CPU, if this was the last chunk; else None.
        """
        hidden = hidden.float()
        if self._pooling_type == "MEAN":
            hidden = self._mean(hidden, group.request_id, start)
        return self._finish(hidden[-1], group) if group.do_sample else None

    def _mean(self, hidden: Tensor, request_id: str, start: int) -> Tensor:
        """Returns the mean up to the end of the chunk, ``[1, hidden_size]``."""
        chunk = _Sum(hidden.sum(0), len(hidden))
        before = self._sums.get(request_id)
        # A chunk that starts at 0 replaces the sum: a preempted prompt is computed again.
        if start > 0:
            assert before is not None
            assert before.num_tokens == start, "a chunk of the prompt is missing"
            chunk = _Sum(before.total + chunk.total, start + len(hidden))
        self._sums[request_id] = chunk
        return (chunk.total / chunk.num_tokens)[None]

    def _finish(self, vector: Tensor, group: SequenceGroupMetadata) -> Tensor:
        params = group.pooling_params
        assert params is not None
        vector = vector[: params.dimensions]
        if self._normalize:
            vector = normalize(vector, dim=-1)
        return vector.cpu()
