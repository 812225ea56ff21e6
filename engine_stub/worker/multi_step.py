"""Several decode iterations without returning to the scheduler.

The slots are allocated already, so an iteration only needs the tokens of the one before. They are
appended to copies of the groups, because the worker's own groups change by the engine's deltas
alone. The engine finds the end of each output, and discards the tokens computed beyond it.
"""

from __future__ import annotations

import msgspec

from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.model_runner import ModelRunner
from seqtop.sequence import CompletionSequenceGroupOutput, SequenceGroupMetadata


def run_steps(runner: ModelRunner, groups: list[SequenceGroupMetadata]) -> ModelOutput:
    """Runs each of `groups`, which all decode, for the number of steps in its state.

    Returns:
        For each group the samples of all its steps, in order.
    """
    outputs = [CompletionSequenceGroupOutput([], None) for _ in groups]
    errors: dict[int, str] = {}
    forward_time = 0.0
    running = {index: _copy(group) for index, group in enumerate(groups)}
    while True:
        result = runner.execute_model([*running.values()])
        forward_time += result.model_forward_time
        for index, output in zip(running, result.outputs, strict=True):
            outputs[index].samples += output.samples
        indices = [*running]
        errors |= {indices[index]: error for index, error in result.errors.items()}
        running = {index: group for index, group in running.items() if _finish_step(group)}
        if not running:
            return ModelOutput(outputs, forward_time, errors=errors)
        newest = [outputs[index].samples[-1:] for index in running]
        # In stages before the last there are no samples.
        sampled = runner.broadcast_from_last(
            [samples[0].output_token if samples else 0 for samples in newest]
        )
        for group, token_id in zip(running.values(), sampled, strict=True):
            (data,) = group.seq_data.values()
            data.update_num_computed_tokens(1)
            data.append_token_id(token_id, 0.0)


def _copy(group: SequenceGroupMetadata) -> SequenceGroupMetadata:
    assert group.state is not None
    return msgspec.structs.replace(
        group,
        seq_data={seq_id: data.snapshot() for seq_id, data in group.seq_data.items()},
        state=msgspec.structs.replace(group.state),
    )


def _finish_step(group: SequenceGroupMetadata) -> bool:
    """Counts a step; returns whether another one is due."""
    assert group.state is not None
    group.finish_step()
    return group.state.remaining_steps > 0
