"""Decode steps for fixed numbers of sequences, which a device captures at start and then replays.

A step of decodes is hundreds of short kernels. To start them one by one takes the host longer than
the device needs to run them all. A captured graph starts all of them at once, but it repeats the
same kernels on the same memory with the same shapes. Steps are therefore padded to a few numbers of
sequences, and a step's inputs are copied to the memory that the graph reads. The lengths of the
sequences are among the inputs: attention reads block tables of any length. Padding rows write to
the pool's scratch block and attend to nothing.

Steps that contain prompts, whose shapes hardly repeat, run without a graph, and so do steps with
drafts of unequal lengths.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.platforms import copy_to_device, platform_of
from engine_stub.platforms.interface import Computation
from engine_stub.worker.step_inputs import DeviceInputs, StepInputs, device_inputs
from seqtop.sequence import IntermediateTensors


class DecodeGraph:
    """A step of `num_seqs` decodes of `num_queries` tokens.

    Args:
        packed: The memory for the inputs of a step, int64; see `StepInputs.packed`.
        capture: Makes the step quick to repeat; see `Platform.graph_capture`.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        num_seqs: int,
        num_queries: int,
        packed: Tensor,
        capture: Callable[[Computation], Computation],
    ) -> None:
        self._packed = packed
        self._padding_slot = cache.scratch_block * cache.block_size
        tile_size = min(cache.tile_size, num_queries)
        self._sizes = num_seqs * num_queries, num_seqs * -(-num_queries // tile_size)
        self._inputs = inputs = device_inputs(cache, packed, *self._sizes, tile_size, [])
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(self._sizes[0], model.config.hidden_size)
            self._received = IntermediateTensors({"hidden_states": states})
        self._replay = capture(lambda: model(*inputs, self._received))

    def load(self, inputs: StepInputs) -> DeviceInputs:
        """Copies the inputs of a step of at most as many sequences to the device."""
        packed = inputs.packed(*self._sizes, self._padding_slot)
        copy_to_device(packed, self._packed[: len(packed)])
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


class DecodeGraphs:
    """The graphs for all numbers of sequences.

    Attributes:
        by_shape: The graphs by their numbers of sequences and of queries of each.

    Args:
        cache: The pool, which is not in use yet: capturing writes to it.
        max_num_seqs: The most sequences of a step.
        max_model_len: The longest sequence, in tokens.
        num_draft_tokens: The length of the drafts that steps with drafts may be replayed with.

    Raises:
        RuntimeError: The device cannot capture the steps.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        max_num_seqs: int,
        max_model_len: int,
        num_draft_tokens: int = 0,
    ) -> None:
        self._sizes = batch_sizes(max_num_seqs)
        num_blocks = self._sizes[-1] * -(-max_model_len // cache.block_size)
        num_elements = 6 * self._sizes[-1] * (1 + num_draft_tokens) + num_blocks
        # Zeros are the inputs of a step, too: its tiles have no queries.
        packed = torch.zeros(num_elements, dtype=torch.int64, device=cache.pool.device)
        capture = platform_of(cache.pool.device).graph_capture(cache.pool.device)
        try:
            # The largest ones first: the others find room in their memory.
            self.by_shape = {
                (size, num_queries): DecodeGraph(model, cache, size, num_queries, packed, capture)
                for num_queries in dict.fromkeys([1 + num_draft_tokens, 1])
                for size in reversed(self._sizes)
            }
        except RuntimeError as error:
            raise RuntimeError(
                f"decodes cannot be captured as a graph ({error}); use --enforce-eager"
            ) from error

    def fitting(self, num_seqs: int, num_queries: int = 1) -> DecodeGraph | None:
        """Returns the smallest captured graph that fits `num_seqs` sequences; None without one."""
        size = next((size for size in self._sizes if size >= num_seqs), 0)
        return self.by_shape.get((size, num_queries))


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Returns the numbers of sequences that steps are padded to: 1, 2, 4, 8, multiples of 16."""
    sizes = [1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)]
    return [
        size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs
    ]
