"""Steps of fixed sizes, which a device captures at start and then replays.

A step is hundreds of short kernels. To start them one by one takes the host longer than the device
needs to run them all, unless the step is large. A captured graph starts all of them at once, but it
repeats the same kernels on the same memory with the same shapes. Steps are therefore padded to a
few sizes, and a step's inputs are copied to the memory that the graph reads. The lengths of the
sequences are among the inputs: attention reads block tables of any length. Padding tokens write to
the pool's scratch block and attend to nothing.

Most steps are decodes of equally many tokens, for which there are graphs by the number of
sequences. There, a tile of queries is what a sequence has. In the graphs for all other steps, with
prompts beside decodes or drafts of unequal lengths, tiles are as large as in steps without a graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.platforms import copy_to_device, platform_of
from engine_stub.platforms.interface import Computation
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.step_inputs import DeviceInputs, StepInputs, device_inputs
from seqtop.sequence import IntermediateTensors

# The smallest and the largest step with prompts. As vLLM's, graphs end at 512 tokens: larger steps
# keep the device busy, and would need memory.
_LEAST_TOKENS = 16
_MOST_TOKENS = 512


class StepGraph:
    """A step of up to `num_tokens` tokens in up to `num_tiles` tiles.

    Attributes:
        tile_size: The most queries of a tile.

    Args:
        packed: The memory for the inputs of a step, int64; see `StepInputs.packed`.
        capture: Makes the step quick to repeat; see `Platform.graph_capture`.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        block_tables: DeviceBlockTables,
        num_tokens: int,
        num_tiles: int,
        tile_size: int,
        packed: Tensor,
        capture: Callable[[Computation], Computation],
    ) -> None:
        self.tile_size = tile_size
        self._sizes = num_tokens, num_tiles
        self._packed = packed[: 3 * (num_tokens + num_tiles)]
        self._padding_slot = cache.scratch_block * cache.block_size
        inputs = device_inputs(cache, block_tables, self._packed, *self._sizes, tile_size, [])
        self._inputs = inputs
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(num_tokens, model.config.hidden_size)
            self._received = IntermediateTensors({"hidden_states": states})
        self._replay = capture(lambda: model(*inputs, self._received))

    def load(self, inputs: StepInputs) -> DeviceInputs:
        """Copies the inputs of a step of at most this size to the device."""
        copy_to_device(inputs.packed(*self._sizes, self._padding_slot), self._packed)
        return self._inputs

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
        return self._replay()[:num_tokens]


class StepGraphs:
    """The graphs for all sizes.

    Attributes:
        decodes: The graphs for decodes, by the numbers of sequences and of queries of each.
        others: The graphs for all other steps, by the number of tokens.

    Args:
        cache: The pool, which is not in use yet: capturing writes to it.
        block_tables: The tables that steps read.
        max_num_seqs: The most sequences of a step.
        max_num_tokens: The most tokens of a step.
        num_draft_tokens: The length of the drafts that decodes with drafts may be replayed with.

    Raises:
        RuntimeError: The device cannot capture the steps.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        block_tables: DeviceBlockTables,
        max_num_seqs: int,
        max_num_tokens: int,
        num_draft_tokens: int = 0,
    ) -> None:
        self._batch_sizes = batch_sizes(max_num_seqs)
        self._token_sizes = token_sizes(max_num_tokens)
        most_decoded = self._batch_sizes[-1] * (1 + num_draft_tokens)
        # A tile has at least one token. Zeros are the inputs of a step, too: no tile has queries.
        num_elements = 6 * max(most_decoded, self._token_sizes[-1])
        packed = torch.zeros(num_elements, dtype=torch.int64, device=cache.pool.device)
        capture = platform_of(cache.pool.device).graph_capture(cache.pool.device)

        def graph(num_tokens: int, num_tiles: int, tile_size: int) -> StepGraph:
            sizes = num_tokens, num_tiles, tile_size
            return StepGraph(model, cache, block_tables, *sizes, packed, capture)

        def decodes(num_seqs: int, num_queries: int) -> StepGraph:
            size = min(cache.tile_size, num_queries)
            return graph(num_seqs * num_queries, num_seqs * -(-num_queries // size), size)

        def other(num_tokens: int) -> StepGraph:
            # The last tile of each sequence may have a single token.
            num_tiles = min(num_tokens // cache.tile_size + max_num_seqs, num_tokens)
            return graph(num_tokens, num_tiles, cache.tile_size)

        try:
            # The largest ones first: the others find room in their memory.
            self.others = {size: other(size) for size in reversed(self._token_sizes)}
            self.decodes = {
                (size, num_queries): decodes(size, num_queries)
                for num_queries in dict.fromkeys([1 + num_draft_tokens, 1])
                for size in reversed(self._batch_sizes)
            }
        except RuntimeError as error:
            raise RuntimeError(
                f"steps cannot be captured as graphs ({error}); use --enforce-eager"
            ) from error

    def fitting(self, num_tokens: int, num_queries: int | None) -> StepGraph | None:
        """Returns the smallest graph that a step fits; None if it fits none.

        Args:
            num_tokens: The tokens of the step.
            num_queries: Those of each sequence, if all sequences decode equally many; else None.
        """
        if num_queries is not None:
            size = _fitting(self._batch_sizes, num_tokens // num_queries)
            if graph := self.decodes.get((size, num_queries)):
                return graph
        return self.others.get(_fitting(self._token_sizes, num_tokens))


def _fitting(sizes: list[int], size: int) -> int:
    """Returns the smallest of `sizes` that is not below `size`; 0 if all are."""
    return next((own for own in sizes if own >= size), 0)


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Returns the numbers of sequences that decodes are padded to: 1, 2, 4, 8, multiples of 16."""
    sizes = [1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)]
    return [
        size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs
    ]


def token_sizes(max_num_tokens: int) -> list[int]:
    """Returns the numbers of tokens that other steps are padded to: powers of two."""
    sizes = [_LEAST_TOKENS]
    while sizes[-1] < min(max_num_tokens, _MOST_TOKENS):
        sizes.append(2 * sizes[-1])
    return sizes
