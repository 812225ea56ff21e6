"""From the hidden states of a prompt to one vector: what embedding requests are after.

Prompts arrive in chunks, so a mean is a running sum until the last one is there. As in vLLM, a
vector is cut to the dimensions asked for before it is normed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import normalize

from engine_stub.config import PoolingType
from engine_stub.worker.batch_row import BatchRow


@dataclass(slots=True)
class _Sum:
    """Of the hidden states of a prompt's first `num_tokens`: ``[hidden_size]`` float32."""

    total: Tensor
    num_tokens: int


class Pooler:
    """Pools what steps compute for requests with pooling parameters.

    Args:
        pooling_type: "LAST" for the last token's hidden state, "MEAN" for the mean of all.
        normalize: Whether vectors are scaled to a length of 1.
    """

    def __init__(self, pooling_type: PoolingType, *, normalize: bool) -> None:
        self._pooling_type = pooling_type
        self._normalize = normalize
        self._sums: dict[str, _Sum] = {}

    def forget(self, request_id: str) -> None:
        """Drop what is kept between steps for a request, if anything."""
        self._sums.pop(request_id, None)

    def pool(self, hidden: Tensor, row: BatchRow) -> Tensor | None:
        """Take in the hidden states ``[tokens, hidden_size]`` of a row's chunk.

        Returns:
            The prompt's vector, float32 on the CPU, if this was the last chunk.
        """
        hidden = hidden.float()
        if self._pooling_type == "MEAN":
            hidden = self._mean(hidden, row)
        return self._finish(hidden[-1], row) if row.group.do_sample else None

    def _mean(self, hidden: Tensor, row: BatchRow) -> Tensor:
        """The mean up to the end of the chunk, ``[1, hidden_size]``."""
        request_id = row.group.request_id
        chunk = _Sum(hidden.sum(0), len(hidden))
        before = self._sums.get(request_id)
        # A preempted prompt starts anew.
        if row.start > 0:
            assert before is not None
            assert before.num_tokens == row.start, "a chunk of the prompt is missing"
            chunk = _Sum(before.total + chunk.total, row.end)
        self._sums[request_id] = chunk
        return (chunk.total / chunk.num_tokens)[None]

    def _finish(self, vector: Tensor, row: BatchRow) -> Tensor:
        params = row.group.pooling_params
        assert params is not None
        vector = vector[: params.dimensions]
        if self._normalize:
            vector = normalize(vector, dim=-1)
        return vector.cpu()
