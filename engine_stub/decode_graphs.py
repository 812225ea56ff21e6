"""Decode steps of fixed shapes, which a CUDA device can record once and then replay.

A step of decodes is hundreds of short kernels, and to start them one by one takes the host longer
than all of them take the device. A CUDA graph starts all at once, but repeats just what was
captured: the same kernels, over the same memory, of the same shapes. So steps are padded to a few
shapes, some number of sequences with some number of blocks each, and a step's inputs are copied to
where the graph of its shape reads them. Rows that pad a step write to the pool's scratch block and
see nothing but what they write; blocks that pad a table are masked.

Steps that read more keys and values than `_MOST_BYTES` keep the device busy for longer than the
host takes to start them, and padding would cost more than it saves: they are computed as they are.
So are steps with prompts or drafts in them, whose shapes hardly repeat.

Where nothing can be captured (tests on a CPU), a graph computes its step anew each time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from engine_stub.attention import PagedAttention, PagedKVCache, Segment
from engine_stub.cuda import copy_to_device
from engine_stub.model import Decoder
from seqtop.sequence import IntermediateTensors

_logger = logging.getLogger(__name__)

# Of keys and values, the most that a layer gathers in a step that is replayed.
_MOST_BYTES = 2**28
# The shortest tables have room for as many tokens; others for twice as many as the next shorter.
_FEWEST_TOKENS = 256


class DecodeGraph:
    """A step of `num_seqs` decodes, with `num_blocks` blocks each.

    Attributes:
        input_ids: ``[num_seqs]``; like the others, where a step's are copied to.
        positions: ``[num_seqs]``.
        attend: What the model attends by.

    Args:
        gathered: ``[num_seqs * num_blocks, …]``, where a layer puts the blocks it reads.
    """

    def __init__(
        self, model: Decoder, cache: PagedKVCache, num_seqs: int, num_blocks: int, gathered: Tensor
    ) -> None:
        self._model = model
        self._cache = cache
        self._num_seqs = num_seqs
        self._num_blocks = num_blocks
        # All in one, so that one copy brings them.
        self._inputs = torch.zeros(
            num_seqs * (2 + num_blocks), dtype=torch.int64, device=cache.pool.device
        )
        self.input_ids, self.positions, blocks = torch.split(
            self._inputs, [num_seqs, num_seqs, num_seqs * num_blocks]
        )
        blocks.fill_(cache.scratch_block)
        self._tables = blocks.view(num_seqs, num_blocks)
        self._context = cache.context(self._tables, self.positions[:, None], gathered)
        segment = Segment(0, num_seqs, num_seqs, self._context)
        self.attend = PagedAttention(cache, torch.zeros_like(self.positions), [segment])
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(num_seqs, model.config.hidden_size)
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
        missing = self._num_seqs - len(input_ids)
        scratch = self._cache.scratch_block
        values = [*input_ids, *[0] * missing, *positions, *[0] * missing]
        for table in tables:
            values += table
            values += [scratch] * (self._num_blocks - len(table))
        values += [scratch] * (self._num_blocks * missing)
        copy_to_device(values, self._inputs)

    def run(self, num_seqs: int, received: IntermediateTensors | None) -> Tensor:
        """Compute the step whose inputs were loaded.

        Args:
            received: What the stage before made of them.

        Returns:
            The first `num_seqs` rows of what the model returns, valid until any graph runs again.
        """
        if self._received is not None:
            assert received is not None
            self._received["hidden_states"][:num_seqs].copy_(received["hidden_states"])
        if self._captured is None:
            return self._step()[:num_seqs]
        self._captured.replay()
        assert self._output is not None
        return self._output[:num_seqs]

    def _step(self) -> Tensor:
        """The model's pass; everything in it follows from the inputs' memory."""
        block_size = self._cache.block_size
        blocks = self._tables.gather(1, (self.positions // block_size)[:, None])[:, 0]
        self.attend.slots.copy_(blocks * block_size + self.positions % block_size)
        masks = self._cache.masks(self.positions[:, None], self._num_blocks)
        for window, mask in masks.items():
            self._context.masks[window].copy_(mask)
        hidden: Tensor = self._model(self.input_ids, self.positions, self.attend, self._received)
        return hidden


class DecodeGraphs:
    """The graphs of all shapes, each made when the first step comes that it fits.

    Attributes:
        shapes: How many sequences, and how many blocks of each, a graph may be for.
        made: Those that there are by now, by shape.

    Args:
        max_num_seqs: Of a step.
        max_model_len: Of a sequence, in tokens.
    """

    def __init__(
        self, model: Decoder, cache: PagedKVCache, max_num_seqs: int, max_model_len: int
    ) -> None:
        self._model = model
        self._cache = cache
        self._sizes = batch_sizes(max_num_seqs)
        self._widths = table_widths(max_model_len, cache.block_size)
        most_blocks = _MOST_BYTES // cache.pool[0, 0].nbytes
        self.shapes = [
            (size, width)
            for size in self._sizes
            for width in self._widths
            if size * width <= most_blocks
        ]
        num_blocks = max((size * width for size, width in self.shapes), default=0)
        self._gathered = cache.block_rows[0].new_empty(num_blocks, cache.block_rows[0].shape[1])
        self.made: dict[tuple[int, int], DecodeGraph] = {}
        self._memory = torch.cuda.graph_pool_handle() if cache.pool.is_cuda else None

    def fitting(self, num_seqs: int, num_blocks: int) -> DecodeGraph | None:
        """The smallest for so many sequences, of which the longest has so many blocks."""
        size = next((each for each in self._sizes if each >= num_seqs), None)
        width = next((each for each in self._widths if each >= num_blocks), None)
        if size is None or width is None or (size, width) not in self.shapes:
            return None
        if (size, width) not in self.made:
            self.made[size, width] = self._make(size, width)
        return self.made[size, width]

    def _make(self, size: int, width: int) -> DecodeGraph:
        begin = perf_counter()
        gathered = self._gathered[: size * width]
        graph = DecodeGraph(self._model, self._cache, size, width, gathered)
        if self._memory is not None:
            graph.capture(self._memory)
            _logger.info(
                "captured decodes of %d sequences of up to %d tokens as a CUDA graph in %.2f s",
                *(size, width * self._cache.block_size, perf_counter() - begin),
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
