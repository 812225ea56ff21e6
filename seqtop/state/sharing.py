"""Finished requests are shared among states, for they change no more.

Copying thousands of them for each state that is looked at would be slow. A stream that goes on
about a finished request all the same is given a copy to change.
"""

import copy

from seqtop.sequence import SequenceGroupMetadata
from seqtop.state import EngineState
from seqtop.wire.messages import Event, Step


def thaw(state: EngineState, event: Event) -> None:
    """Before `event` is applied: give `state` copies of the finished requests it would change."""
    if not isinstance(event, Step):
        return  # nothing else changes a finished request
    for request_id in _named(state, event):
        request = state.requests.get(request_id)
        if request is None or request.finish_reason is None:
            continue
        state.requests[request_id] = copy.deepcopy(request)
        for seq_id in request.seq_ids:
            state.sequences[seq_id] = copy.deepcopy(state.sequences[seq_id])


def share(new: EngineState, old: EngineState) -> None:
    """Let `new` hold the very objects of `old` for each finished request equal in both."""
    for request_id in old.finished:
        request = old.requests[request_id]
        if new.requests.get(request_id) != request:
            continue
        sequences = {seq_id: old.sequences[seq_id] for seq_id in request.seq_ids}
        if all(new.sequences[seq_id] == sequence for seq_id, sequence in sequences.items()):
            new.requests[request_id] = request
            new.sequences.update(sequences)


def _named(state: EngineState, step: Step) -> set[str]:
    """The ids of the requests that a row of a step may change, directly or through a sequence.

    Decodes in columns change only what runs.
    """
    named = {group.request_id for group in step.execute.seq_group_metadata_list}
    named.update(preemption.request_id for preemption in step.preemptions)
    named.update(reason.request_id for reason in step.wait_reasons)
    named.update(step.metrics)
    seq_ids = {update.seq_id for update in step.sequences}
    for group in step.execute.seq_group_metadata_list:
        if isinstance(group, SequenceGroupMetadata):
            seq_ids.update(group.seq_data)
        else:
            seq_ids.update(group.seq_data_delta, group.block_tables)
    for update in step.sequences:
        if update.request_id is not None:
            named.add(update.request_id)
    for seq_id in seq_ids:
        if sequence := state.sequences.get(seq_id):
            named.add(sequence.request_id)
    return named
