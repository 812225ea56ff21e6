"""Decode steps of fixed shapes, which a device can capture once and then replay.

A step of decodes is hundreds of short kernels. To start them one by one takes the host longer than
the device needs to run them all. A captured graph starts all of them at once, but it repeats the
same kernels on the same memory with the same shapes. Steps are therefore padded to a few shapes (a
number of sequences, each with a number of blocks), and a step's inputs are copied to the memory
that the graph of its shape reads. Padding rows write to the pool's scratch block and attend to
nothing else; padding blocks are masked.

A step that reads more keys and values than `_MOST_BYTES` keeps the device busy for longer than the
host takes to start it, and padding would cost more than it saves: it runs without a graph. So do
steps that contain prompts, whose shapes hardly repeat, and steps with drafts of unequal lengths.

On a platform that cannot capture (in tests on a CPU), `DecodeGraph.run` computes its step anew.
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
from engine_stub.platforms import copy_to_device, platform_of
from engine_stub.platforms.interface import CapturedStep
from seqtop.sequence import IntermediateTensors

_logger = logging.getLogger(__name__)

# The most bytes of keys and values that a layer gathers in a step that is replayed.
_MOST_BYTES = 2**28
# The width of the shortest tables, in tokens; each further width is twice the one before.
_FEWEST_TOKENS = 256


class DecodeGraph:
    """A step of `num_seqs` decodes of `num_queries` tokens, with `num_blocks` blocks each.

    Attributes:
        input_ids: The memory for a step's tokens, ``[num_seqs * num_queries]`` int64.
        positions: The memory for their positions, ``[num_seqs * num_queries]`` int64.
        attend: The attention of the padded step.

    Args:
        gathered: ``[num_seqs * num_blocks, …]``, the memory that layers gather blocks into.
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
        # All inputs are in one tensor, so that one copy brings them.
        sizes = [self._num_tokens, self._num_tokens, num_seqs * num_blocks]
        self._inputs = torch.zeros(sum(sizes), dtype=torch.int64, device=cache.pool.device)
        self.input_ids, self.positions, blocks = torch.split(self._inputs, sizes)
        blocks.fill_(cache.scratch_block)
        self._tables = blocks.view(num_seqs, num_blocks)
        self._queries = self.positions.view(num_seqs, num_queries)
        # Attention expects a mask row for each query of each head that shares a key head.
        self._num_grouped_heads = model.config.num_attention_heads // cache.num_kv_heads
        masks = {window: self._for_heads(mask) for window, mask in self._masks().items()}
        self._context = cache.context(self._tables, masks, gathered)
        segment = AttentionSegment(0, self._num_tokens, num_seqs, self._context)
        self.attend = PagedAttention(cache, torch.zeros_like(self.positions), [segment])
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(self._num_tokens, model.config.hidden_size)
            self._received = IntermediateTensors({"hidden_states": states})
        self._captured: CapturedStep | None = None

    @property
    def is_captured(self) -> bool:
        """True if `run` replays the step."""
        return self._captured is not None

    def capture(self, memory: Any) -> None:
        """Captures the step, with its intermediate results in the `memory` that graphs share.

        Must be called before the first `load`: it computes a step of padding.

        Raises:
            RuntimeError: The device cannot capture the step.
        """
        device = self._inputs.device
        try:
            self._captured = platform_of(device).capture(self._step, device, memory)
        except RuntimeError as error:
            raise RuntimeError(
                f"decodes cannot be captured as a graph ({error}); use --enforce-eager"
            ) from error

    def load(
        self, input_ids: Sequence[int], positions: Sequence[int], tables: Sequence[list[int]]
    ) -> None:
        """Copies the inputs of a step of at most as many sequences and blocks to the device."""
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
        """Computes the step that was loaded.

        Args:
            received: The states from the stage before; None in the first stage.

        Returns:
            The first `num_tokens` rows of the model's output, valid until any graph runs again.
        """
        if self._received is not None:
            assert received is not None
            self._received["hidden_states"][:num_tokens].copy_(received["hidden_states"])
        output = self._step() if self._captured is None else self._captured.replay()
        return output[:num_tokens]

    def _step(self) -> Tensor:
        """Runs the model on the contents of the input memory alone."""
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
        # A mask of one query row broadcasts over the heads by itself.
        return mask if mask.shape[2] == 1 else mask.repeat(1, 1, self._num_grouped_heads, 1)


class DecodeGraphs:
    """The graphs of all shapes, each captured when the first step that fits it arrives.

    Attributes:
        shapes: The shapes that graphs may have: sequences, blocks of each, queries of each.
        made: The graphs captured so far, by shape.

    Args:
        max_num_seqs: The most sequences of a step.
        max_model_len: The longest sequence, in tokens.
        num_draft_tokens: The length of the drafts that steps with drafts may be replayed with.
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
        self._memory = platform_of(cache.pool.device).new_graph_memory()

    def fitting(self, num_seqs: int, num_blocks: int, num_queries: int = 1) -> DecodeGraph | None:
        """Returns the smallest graph for so many sequences and blocks; None without any."""
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
                "captured decodes of %d sequences of up to %d tokens, %d a step, in %.2f s",
                *(size, width * self._cache.block_size, num_queries, perf_counter() - begin),
            )
        return graph


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Returns the numbers of sequences that steps are padded to: 1, 2, 4, then multiples of 8."""
    sizes = [1, 2, 4, *range(8, max_num_seqs + 8, 8)]
    return [
        size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs
    ]


def table_widths(max_model_len: int, block_size: int) -> list[int]:
    """Returns the numbers of blocks that tables are padded to; the last fits `max_model_len`."""
    most = -(-max_model_len // block_size)
    widths = [min(-(-_FEWEST_TOKENS // block_size), most)]
    while widths[-1] < most:
        widths.append(min(2 * widths[-1], most))
    return widths
