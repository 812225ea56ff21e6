"""Properties that only some engines have, as the protocol expresses them."""

from typing import Any

from seqtop.checks.checker import Checker
from seqtop.sequence import SequenceGroupMetadataDelta, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.ordering import SequenceView
from seqtop.state.status_sentence import status_sentence
from seqtop.wire.messages import SequenceUpdate
from tests.support import events
from tests.support.events import arrival, engine_info, preemption, stats, step

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


def update(seq_id: int, status: SequenceStatus = RUNNING, **fields: Any) -> SequenceUpdate:
    return events.update(seq_id, status, 0, **fields)


def queue(state: EngineState) -> list[int]:
    view = SequenceView()
    view.rebuild(state)
    return view.queue.ids


def two_preempted(queue_order: str) -> EngineState:
    """Sequences 1 to 3 ran; 2 was preempted, then 3 in a later step; 4 never ran."""
    state = EngineState()
    state.apply(engine_info(queue_order=queue_order))
    for number in (1, 2, 3, 4):
        state.apply(arrival(number))
    state.apply(step(0, sequences=[update(1), update(2), update(3)]))
    for number, victim in ((1, 2), (2, 3)):
        lost = preemption(f"req-{victim}")
        updates = [update(victim, WAITING, engine_status="PREEMPTED")]
        state.apply(step(number, sequences=updates, preemptions=[lost]))
    return state


def test_queue_orders() -> None:
    assert queue(two_preempted("fcfs")) == [3, 2, 4], "the latest preempted is the head"
    assert queue(two_preempted("priority")) == [2, 3, 4]
    assert queue(two_preempted("preempted_last")) == [4, 2, 3], "a preempted one arrives again"


def test_first_come_is_the_order_of_the_messages() -> None:
    state = EngineState()
    state.apply(engine_info(queue_order="fcfs"))
    for number in (3, 1, 2):
        state.apply(arrival(number))
    assert queue(state) == [3, 1, 2]


def test_priority_alone_may_put_the_preempted_behind() -> None:
    state = two_preempted("priority")
    urgent = arrival(5)
    urgent.priority = -1
    state.apply(urgent)
    assert queue(state) == [5, 2, 3, 4]


def test_status_by_the_engines_own_name() -> None:
    state = two_preempted("fcfs")
    assert state.sequences[3].engine_status == "PREEMPTED"
    state.apply(step(3, sequences=[update(3)]))
    assert state.sequences[3].engine_status == ""


def test_speculative_tokens_add_up() -> None:
    state = two_preempted("fcfs")
    assert state.sequences[1].num_draft_tokens is None, "no speculation is not zero drafts"
    for accepted in (2, 0):
        drafts = update(1, drafted=3, accepted=accepted)
        state.apply(step(3, sequences=[drafts]))
    assert state.sequences[1].num_draft_tokens == 6
    assert (state.num_drafted, state.num_accepted) == ([2, 2, 2], [1, 1, 0])
    assert state.sequences[1].num_accepted_tokens == 2
    state.apply(step(4, sequences=[update(1, drafted=2**40, accepted=1)]))
    assert (state.num_drafted[:4], state.num_accepted[:4]) == ([3, 3, 3, 1], [2, 1, 0, 0])
    assert len(state.num_drafted) == len(state.num_accepted) == 64, "an engine cannot fill memory"


def test_a_status_of_the_engine_alone_is_the_word_for_a_wait() -> None:
    state, view = two_preempted("fcfs"), SequenceView()
    held = update(4, WAITING, engine_status="WAITING_FOR_REMOTE_KVS")
    drafts = update(1, tokens=[5, 6], drafted=3, accepted=1)
    drafts.num_computed_tokens = 4
    state.apply(step(3, sequences=[held, drafts]))
    view.rebuild(state)
    assert "WAITING_FOR_REMOTE_KVS" in status_sentence(state, view, state.sequences[4])
    assert status_sentence(state, view, state.sequences[1]).startswith(
        "Decoding: 2 tokens so far. 1 of 3 draft tokens accepted."
    )


def test_unknown_forward_time_stays_unknown() -> None:
    state = two_preempted("fcfs")
    group = SequenceGroupMetadataDelta({}, "req-1", {}, is_prompt=True, token_chunk_size=1)
    unknown = stats(model_forward_time=None, model_execute_time=0.5)
    for number in (3, 4):
        state.apply(step(number, group, sequences=[update(1)], stats=unknown))
    assert state.requests["req-1"].metrics.model_forward_time is None
    assert state.requests["req-1"].metrics.model_execute_time == 1.0


def test_pool_with_a_null_block_and_two_groups_adds_up() -> None:
    checker = Checker()
    findings = checker.apply(engine_info(num_reserved_blocks=1, num_gpu_blocks=64))
    findings += checker.apply(arrival(1))
    findings += checker.apply(arrival(2))
    pool = stats(num_used_blocks=4, num_free_blocks=59, num_cached_blocks=0)
    updates = [
        update(1, table=[0, 1], group_block_tables=[[0, 2]]),
        update(2, table=[0, 3], group_block_tables=[[0, 4]]),
    ]
    findings += checker.apply(step(0, sequences=updates, stats=pool))
    findings += checker.end()
    assert findings == []
    findings = checker.apply(step(1, sequences=[update(1, group_block_tables=[[]])], stats=pool))
    assert [finding.rule for finding in checker.end()] == ["block-leak"]
