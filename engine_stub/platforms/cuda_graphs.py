"""Decode steps of fixed shapes, which a CUDA device can record once and then replay.

A step of decodes is hundreds of short kernels, and to start them one by one takes the host longer
than all of them take the device. A CUDA graph starts all at once, but repeats just what was
captured: the same kernels, over the same memory, of the same shapes. So steps are padded to a few
shapes, some number of sequences with some number of blocks each, and a step's inputs are copied to
where the graph of its shape reads them. Rows that pad a step write to the pool's scratch block and
see nothing but what they write; blocks that pad a table are masked.

Steps that read more keys and values than `_MOST_BYTES` keep the device busy for longer than the
host takes to start them, and padding would cost more than it saves: they are computed as they are.
So are steps with prompts in them, whose shapes hardly repeat, or with drafts of unequal lengths.

Where nothing can be captured (tests on a CPU), a graph computes its step anew each time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from engine_stub.model_executor.attention import AttentionSegment, PagedAttention, PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.platforms.cuda import copy_to_device
from seqtop.sequence import IntermediateTensors

_logger = logging.getLogger(__name__)

# Of keys and values, the most that a layer gathers in a step that is replayed.
_MOST_BYTES = 2**28
# The shortest tables have room for as many tokens; others for twice as many as the next shorter.
_FEWEST_TOKENS = 256


class DecodeGraph:
    """A step of `num_seqs` decodes of `num_queries` tokens, with `num_blocks` blocks each.

    Attributes:
        input_ids: ``[num_seqs * num_queries]``; like the others, where a step's are copied to.
        positions: ``[num_seqs * num_queries]``.
        attend: What the model attends by.

    Args:
        gathered: ``[num_seqs * num_blocks, …]``, where a layer puts the blocks it reads.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        num_seqs: int,
        num_blocks: int,
        num_queries: int,
        gathered: Tensor,
    ) -> None:
        self._model = model
        self._cache = cache
        self._num_tokens = num_seqs * num_queries
        # All in one, so that one copy brings them.
        sizes = [self._num_tokens, self._num_tokens, num_seqs * num_blocks]
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=cache.pool.device)
        self.input_ids, self.positions, blocks = torch.split(self._inputs, sizes)
        blocks.fill_(cache.scratch_block)
        self._tables = blocks.view(num_seqs, num_blocks)
        self._queries = self.positions.view(num_seqs, num_queries)
        # In the end, a mask has a row for each query of each head that shares a key head.
        self._times = model.config.num_attention_heads // cache.num_kv_heads
        masks = {window: self._for_heads(mask) for window, mask in self._masks().items()}
        self._context = cache.context(self._tables, masks, gathered)
        segment = AttentionSegment(0, self._num_tokens, num_seqs, self._context)
        self.attend = PagedAttention(cache, torch.zeros_like(self.positions), [segment])
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(self._num_tokens, model.config.hidden_size)
            self._received = IntermediateTensors({"hidden_states": states})
        self._captured: torch.cuda.CUDAGraph | None = None
        self._output: Tensor | None = None

    @property
    def is_captured(self) -> bool:
        return self._captured is not None

    def capture(self, memory: Any) -> None:
        """Record the step; what it computes lies in the `memory` that graphs share.

        Before the first inputs are loaded, for it computes a step that is all padding.
        """
        # What torch and its libraries set up when first used cannot be captured.
        stream = torch.cuda.Stream(self._inputs.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self._inputs.device))
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream(self._inputs.device).wait_stream(stream)
        self._captured = torch.cuda.CUDAGraph()
        # Other threads, those of NCCL say, may go on using the device.
        try:
            with torch.cuda.graph(self._captured, pool=memory, capture_error_mode="thread_local"):
                self._output = self._step()
        except RuntimeError as error:
            raise RuntimeError(
                f"decodes cannot be captured as a CUDA graph ({error}); use --enforce-eager"
            ) from error

    def load(
        self, input_ids: Sequence[int], positions: Sequence[int], tables: Sequence[list[int]]
    ) -> None:
        """Bring the inputs of a step of at most as many sequences and blocks to the device."""
        missing = self._num_tokens - len(input_ids)
        num_seqs, num_blocks = self._tables.shape
        scratch = self._cache.scratch_block
        values = [*input_ids, *[0] * missing, *positions, *[0] * missing]
        for table in tables:
            values += table
            values += [scratch] * (num_blocks - len(table))
        values += [scratch] * (num_blocks * (num_seqs - len(tables)))
        copy_to_device(values, self._inputs)

    def run(self, num_tokens: int, received: IntermediateTensors | None) -> Tensor:
        """Compute the step whose inputs were loaded.

        Args:
            received: What the stage before made of them.

        Returns:
            The first `num_tokens` rows of what the model returns, valid until any graph runs again.
        """
        if self._received is not None:
            assert received is not None
            self._received["hidden_states"][:num_tokens].copy_(received["hidden_states"])
        if self._captured is None:
            return self._step()[:num_tokens]
        self._captured.replay()
        assert self._output is not None
        return self._output[:num_tokens]

    def _step(self) -> Tensor:
        """The model's pass; everything in it follows from the inputs' memory."""
        block_size = self._cache.block_size
        blocks = self._tables.gather(1, self._queries // block_size).flatten()
        self.attend.slots.copy_(blocks * block_size + self.positions % block_size)
        for window, mask in self._masks().items():
            self._context.masks[window].copy_(self._for_heads(mask))
        hidden: Tensor = self._model(self.input_ids, self.positions, self.attend, self._received)
        return hidden

    def _masks(self) -> dict[int | None, Tensor]:
        return self._cache.masks(self._queries, self._tables.shape[1])

    def _for_heads(self, mask: Tensor) -> Tensor:
        """A mask as attention takes it: without more rows than one where one says it all."""
        return mask if mask.shape[2] == 1 else mask.repeat(1, 1, self._times, 1)


class DecodeGraphs:
    """The graphs of all shapes, each made when the first step comes that it fits.

    Attributes:
        shapes: How many sequences, and how many blocks and queries of each, a graph may be for.
        made: Those that there are by now, by shape.

    Args:
        max_num_seqs: Of a step.
        max_model_len: Of a sequence, in tokens.
        num_draft_tokens: Of the drafts that steps may be replayed with, besides those without.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        max_num_seqs: int,
        max_model_len: int,
        num_draft_tokens: int = 0,
    ) -> None:
        self._model = model
        self._cache = cache
        self._sizes = batch_sizes(max_num_seqs)
        self._widths = table_widths(max_model_len, cache.block_size)
        most_blocks = _MOST_BYTES // cache.pool[0, 0].nbytes
        self.shapes = [
            (size, width, num_queries)
            for num_queries in dict.fromkeys([1, 1 + num_draft_tokens])
            for size in self._sizes
            for width in self._widths
            if size * width <= most_blocks
        ]
        num_blocks = max((size * width for size, width, _ in self.shapes), default=0)
        self._gathered = cache.block_rows[0].new_empty(num_blocks, cache.block_rows[0].shape[1])
        self.made: dict[tuple[int, int, int], DecodeGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if cache.pool.is_cuda else None

    def fitting(self, num_seqs: int, num_blocks: int, num_queries: int = 1) -> DecodeGraph | None:
        """The smallest for so many sequences, of which the longest has so many blocks."""
        size = next((each for each in self._sizes if each >= num_seqs), 0)
        width = next((each for each in self._widths if each >= num_blocks), 0)
        shape = (size, width, num_queries)
        if shape not in self.shapes:
            return None
        if shape not in self.made:
            self.made[shape] = self._make(*shape)
        return self.made[shape]

    def _make(self, size: int, width: int, num_queries: int) -> DecodeGraph:
        begin = perf_counter()
        gathered = self._gathered[: size * width]
        graph = DecodeGraph(self._model, self._cache, size, width, num_queries, gathered)
        if self._memory is not None:
            graph.capture(self._memory)
            _logger.info(
                "captured decodes of %d sequences of up to %d tokens, %d a step, as a CUDA graph"
                " in %.2f s",
                *(size, width * self._cache.block_size, num_queries, perf_counter() - begin),
            )
        return graph


def batch_sizes(max_num_seqs: int) -> list[int]:
    """To how many sequences steps are padded: 1, 2, 4, then multiples of 8."""
    sizes = [1, 2, 4, *range(8, max_num_seqs + 8, 8)]
    return [
        size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs
    ]


def table_widths(max_model_len: int, block_size: int) -> list[int]:
    """To how many blocks tables are padded, the last one those of the longest sequence."""
    most = -(-max_model_len // block_size)
    widths = [min(-(-_FEWEST_TOKENS // block_size), most)]
    while widths[-1] < most:
        widths.append(min(2 * widths[-1], most))
    return widths
