"""Decode steps for fixed numbers of sequences, which a device captures at start and then replays.

A step of decodes is hundreds of short kernels. To start them one by one takes the host longer than
the device needs to run them all. A captured graph starts all of them at once, but it repeats the
same kernels on the same memory with the same shapes. Steps are therefore padded to a few numbers of
sequences, and a step's inputs are copied to the memory that the graph reads. The lengths of the
sequences are among the inputs: attention reads block tables of any length. Padding rows write to
the pool's scratch block and attend to nothing.

Steps that contain prompts, whose shapes hardly repeat, run without a graph, and so do steps with
drafts of unequal lengths.

On a platform that cannot capture (in tests on a CPU), `DecodeGraph.run` computes its step anew.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from engine_stub.model_executor.attention import PagedKVCache
from engine_stub.model_executor.model import Decoder
from engine_stub.platforms import copy_to_device, platform_of
from engine_stub.platforms.interface import CapturedStep
from engine_stub.worker.step_inputs import DeviceInputs, StepInputs, device_inputs
from seqtop.sequence import IntermediateTensors

_logger = logging.getLogger(__name__)


class DecodeGraph:
    """A step of `num_seqs` decodes of `num_queries` tokens.

    Args:
        numbers: The memory for the inputs of a step, int64; see `StepInputs.numbers`.
    """

    def __init__(
        self, model: Decoder, cache: PagedKVCache, num_seqs: int, num_queries: int, numbers: Tensor
    ) -> None:
        self._model = model
        self._numbers = numbers
        self._padding_slot = cache.scratch_block * cache.block_size
        tile_size = min(cache.tile_size, num_queries)
        self._num_tokens = num_seqs * num_queries
        self._num_tiles = num_seqs * -(-num_queries // tile_size)
        self._inputs = device_inputs(cache, numbers, self._num_tokens, self._num_tiles, tile_size)
        self._received: IntermediateTensors | None = None
        if not model.stage.is_first:
            states = cache.pool.new_zeros(self._num_tokens, model.config.hidden_size)
            self._received = IntermediateTensors({"hidden_states": states})
        self._captured: CapturedStep | None = None

    def capture(self, memory: Any) -> None:
        """Captures the step, with its intermediate results in the `memory` that graphs share.

        Raises:
            RuntimeError: The device cannot capture the step.
        """
        self.load(StepInputs([], [], []))
        device = self._numbers.device
        try:
            self._captured = platform_of(device).capture(self._step, device, memory)
        except RuntimeError as error:
            raise RuntimeError(
                f"decodes cannot be captured as a graph ({error}); use --enforce-eager"
            ) from error

    def load(self, inputs: StepInputs) -> DeviceInputs:
        """Copies the inputs of a step of at most as many sequences to the device."""
        numbers = inputs.numbers(self._num_tokens, self._num_tiles, self._padding_slot)
        copy_to_device(numbers, self._numbers[: len(numbers)])
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
        output = self._step() if self._captured is None else self._captured.replay()
        return output[:num_tokens]

    def _step(self) -> Tensor:
        """Runs the model on the contents of the input memory alone."""
        hidden: Tensor = self._model(*self._inputs, self._received)
        return hidden


class DecodeGraphs:
    """The graphs for all numbers of sequences.

    Attributes:
        by_shape: The graphs by their numbers of sequences and of queries of each.

    Args:
        max_num_seqs: The most sequences of a step.
        max_model_len: The longest sequence, in tokens.
        num_draft_tokens: The length of the drafts that steps with drafts may be replayed with.

    Raises:
        RuntimeError: The device cannot capture the steps.
    """

    def __init__(
        self,
        model: Decoder,
        cache: PagedKVCache,
        max_num_seqs: int,
        max_model_len: int,
        num_draft_tokens: int = 0,
    ) -> None:
        begin = perf_counter()
        self._sizes = batch_sizes(max_num_seqs)
        num_blocks = self._sizes[-1] * -(-max_model_len // cache.block_size)
        num_numbers = 6 * self._sizes[-1] * (1 + num_draft_tokens) + num_blocks
        numbers = torch.zeros(num_numbers, dtype=torch.int64, device=cache.pool.device)
        # The largest ones first: the others find room in their memory.
        self.by_shape = {
            (size, num_queries): DecodeGraph(model, cache, size, num_queries, numbers)
            for num_queries in dict.fromkeys([1 + num_draft_tokens, 1])
            for size in reversed(self._sizes)
        }
        memory = platform_of(cache.pool.device).new_graph_memory()
        if memory is not None:
            with torch.inference_mode():
                for graph in self.by_shape.values():
                    graph.capture(memory)
            _logger.info(
                "captured decodes of up to %d sequences as %d graphs in %.1f s",
                *(self._sizes[-1], len(self.by_shape), perf_counter() - begin),
            )

    def fitting(self, num_seqs: int, num_queries: int = 1) -> DecodeGraph | None:
        """Returns the smallest graph for so many sequences; None without any."""
        size = next((each for each in self._sizes if each >= num_seqs), 0)
        return self.by_shape.get((size, num_queries))


def batch_sizes(max_num_seqs: int) -> list[int]:
    """Returns the numbers of sequences that steps are padded to: 1, 2, 4, 8, multiples of 16."""
    sizes = [1, 2, 4, 8, *range(16, max_num_seqs + 16, 16)]
    return [
        size for index, size in enumerate(sizes) if index == 0 or sizes[index - 1] < max_num_seqs
    ]
