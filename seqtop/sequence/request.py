"""The request with which the engine starts a step of the workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from seqtop.sequence.errors import SequenceError
from seqtop.sequence.hidden_states import HiddenStates
from seqtop.sequence.metadata import (
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupState,
)
from seqtop.sequence.privacy import Private, Public
from seqtop.sequence.tensors import Tensor

if TYPE_CHECKING:
    Callback: TypeAlias = Callable[..., Any]
else:
    Callback: TypeAlias = Callable


class ExecuteModelRequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """A batch to run, without any device data.

    Attributes:
        seq_group_metadata_list: The scheduled groups, in full or as deltas.
        blocks_to_swap_in: ``(cpu_block, device_block)`` pairs.
        blocks_to_swap_out: ``(device_block, cpu_block)`` pairs.
        blocks_to_copy: ``(source, destination)`` pairs of device blocks.
        virtual_engine: The index of the pipeline-parallel engine.
        num_lookahead_slots: KV slots reserved per sequence beyond this step.
        running_queue_size: Requests in the running queue.
        previous_hidden_states: Input of a proposer that drafts from the target's hidden states.
        num_steps: Forward steps to run.
        spec_step_idx: The step within a speculative draft.
        finished_requests_ids: Requests finished since the last step, including those never
            scheduled.
        last_sampled_token_ids: The samples of the last step in a multi-step run.
        async_callback: Called by the worker while the device is busy; never sent.
    """

    seq_group_metadata_list: Public[list[SequenceGroupMetadata | SequenceGroupMetadataDelta]]
    blocks_to_swap_in: Public[list[tuple[int, int]]] = msgspec.field(default_factory=list)
    blocks_to_swap_out: Public[list[tuple[int, int]]] = msgspec.field(default_factory=list)
    blocks_to_copy: Public[list[tuple[int, int]]] = msgspec.field(default_factory=list)
    virtual_engine: Public[int] = 0
    num_lookahead_slots: Public[int] = 0
    running_queue_size: Public[int] = 0
    previous_hidden_states: Private[HiddenStates | None] = None
    num_steps: Public[int] = 1
    spec_step_idx: Public[int | None] = None
    finished_requests_ids: Public[list[str]] = msgspec.field(default_factory=list)
    last_sampled_token_ids: Private[Tensor | None] = None
    async_callback: Private[Callback | None] = None

    @property
    def is_first_multi_step(self) -> bool:
        """True if this is the first step of a multi-step run."""
        return self._state.current_step == 0

    @property
    def is_last_step(self) -> bool:
        """True if this is the last step of a multi-step run."""
        return self._state.remaining_steps == 1

    @property
    def current_step(self) -> int:
        """The index of the step within a multi-step run."""
        return self._state.current_step

    @property
    def _state(self) -> SequenceGroupState:
        """The state of the first group, which all groups of a batch share."""
        state = self.seq_group_metadata_list[0].state if self.seq_group_metadata_list else None
        if state is None:
            raise SequenceError("without a first group that has a state, there is no current step")
        return state

    def clone(
        self, seq_group_metadata_list: list[SequenceGroupMetadata | SequenceGroupMetadataDelta]
    ) -> ExecuteModelRequest:
        """Returns the same request for other groups.

        Block lists and sampled tokens are copied, finished ids shared; `spec_step_idx` is reset.
        """
        sampled = self.last_sampled_token_ids
        return ExecuteModelRequest(
            seq_group_metadata_list=seq_group_metadata_list,
            blocks_to_swap_in=self.blocks_to_swap_in.copy(),
            blocks_to_swap_out=self.blocks_to_swap_out.copy(),
            blocks_to_copy=self.blocks_to_copy.copy(),
            virtual_engine=self.virtual_engine,
            num_lookahead_slots=self.num_lookahead_slots,
            running_queue_size=self.running_queue_size,
            previous_hidden_states=self.previous_hidden_states,
            num_steps=self.num_steps,
            finished_requests_ids=self.finished_requests_ids,
            last_sampled_token_ids=None if sampled is None else sampled.clone(),
            async_callback=self.async_callback,
        )
