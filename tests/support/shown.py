"""A viewer of the bundled engine against the engine's own objects."""

import dataclasses
from typing import Any

from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.engine import LLMEngine
from engine_stub.step_record import StepRecord
from seqtop.live.session import Session
from seqtop.sequence import SequenceGroup, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.ordering import SequenceView
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineInfo, Event
from seqtop.wire.snapshot import Snapshot
from tests.support.waiting import wait_until


class CountingPublisher(MessagePublisher):
    """Knows the number of the newest message, so that a viewer can be waited for."""

    num_published = 0

    def __init__(self, endpoint: str, info: EngineInfo, *args: Any, **options: Any) -> None:
        self.incarnation = info.incarnation
        super().__init__(endpoint, info, *args, **options)

    def publish(self, event: Event | Snapshot) -> None:
        self.num_published += not isinstance(event, Snapshot)  # which has no number
        super().publish(event)


def catch_up(session: Session, publisher: CountingPublisher) -> None:
    wait_until(lambda: is_current(session, publisher))


def is_current(session: Session, publisher: CountingPublisher) -> bool:
    """Returns whether a session has the last message."""
    info = session.state.info
    return (
        session.connection.state is ConnectionState.LIVE
        and info is not None
        and info.incarnation == publisher.incarnation
        and session.sequence_number == publisher.num_published - 1
    )


def assert_shows(session: Session, engine: LLMEngine, record: StepRecord) -> None:
    """Every field a viewer has of the engine against where the engine itself keeps it."""
    with session.lock:
        state = session.state
        assert state.num_anomalies == 0, state.last_anomaly
        unfinished = {
            request_id: request
            for request_id, request in state.requests.items()
            if request.finish_reason is None
        }
        assert unfinished.keys() == engine.seq_groups.keys()
        for request_id, group in engine.seq_groups.items():
            assert_same_request(state, request_id, group, engine)
        for group in record.finished:
            assert_ended(state, group)
        assert state.step == record.step
        assert state.time == record.time
        assert state.stats is not None
        assert state.stats.num_used_blocks == record.blocks.used
        assert state.stats.num_cached_blocks == record.blocks.cached
        assert state.stats.num_free_blocks == record.blocks.free
        assert_same_cache(state, engine)
        view = SequenceView()
        view.rebuild(state)
        assert view.queue.ids == [
            seq.seq_id for group in engine.scheduler.waiting for seq in unfinished_seqs(group)
        ]
        assert state.num_by_status[SequenceStatus.RUNNING] == record.num_running
        assert state.num_by_status[SequenceStatus.WAITING] == record.num_waiting
        assert state.num_by_status[SequenceStatus.SWAPPED] == record.num_swapped


def assert_same_request(
    state: EngineState, request_id: str, group: SequenceGroup, engine: LLMEngine
) -> None:
    request = state.requests[request_id]
    assert request.prompt == group.prompt
    assert request.prompt_token_ids == group.prompt_token_ids
    assert request.metrics == group.metrics
    assert dataclasses.asdict(request.metrics) == dataclasses.asdict(group.metrics)
    assert request.sampling_params == group.sampling_params
    assert request.priority == group.priority
    assert set(request.seq_ids) == {seq.seq_id for seq in group.seqs}
    for seq in group.seqs:
        sequence = state.sequences[seq.seq_id]
        assert sequence.status is seq.status
        assert sequence.num_prompt_tokens == seq.get_prompt_len()
        assert sequence.num_computed_tokens == seq.get_num_computed_tokens()
        assert sequence.num_cached_tokens == seq.data.get_num_cached_tokens()
        assert tuple(sequence.output_token_ids) == seq.get_output_token_ids()
        assert sequence.cumulative_logprob == seq.get_cumulative_logprob()
        assert sequence.text == seq.output_text
        assert len(sequence.text_lengths) == seq.get_output_len()
        assert sum(length for length in sequence.text_lengths if length > 0) == len(sequence.text)
        assert sequence.block_table == engine.block_manager.get_block_table(seq)
        assert sequence.stop_reason == seq.stop_reason


def assert_same_cache(state: EngineState, engine: LLMEngine) -> None:
    """The blocks that the prefix cache knows, and what is in them."""
    manager = engine.block_manager
    hashes = {stored.block: stored.block_hash for stored in manager.stored_blocks()}
    assert state.cached_blocks is not None
    assert state.cached_blocks.keys() == hashes.keys()
    for block, known in state.cached_blocks.items():
        if table := manager._tables.get(known.seq_id):
            assert table.hashes[known.position] == hashes[block]


def assert_ended(state: EngineState, group: SequenceGroup) -> None:
    request = state.requests[group.request_id]
    assert request.finish_reason == SequenceStatus.get_finished_reason(group.first_seq.status)
    assert request.metrics == group.metrics
    assert request.seq_ids == [seq.seq_id for seq in group.seqs]
    for seq in group.seqs:
        sequence = state.sequences[seq.seq_id]
        assert sequence.status is seq.status
        assert tuple(sequence.output_token_ids) == seq.get_output_token_ids()
        assert sequence.text == seq.output_text
        assert sequence.block_table == []
