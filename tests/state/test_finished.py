"""Finished requests: the cap on their number, and copies before late changes."""

import pytest
from msgspec.structs import replace

from seqtop.sequence import Logprob, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.finished import FinishedMemory
from seqtop.state.freeze import freeze
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    RequestFinished,
    Step,
)
from tests.support import events
from tests.support.events import update
from tests.support.recordings import encoded, fed
from tests.support.reducer_events import arrived, delta, finish, full, metrics, prefilled, step


def test_history_is_bounded_and_drops_are_reported() -> None:
    state = EngineState(max_finished=8)
    dropped: list[int] = []
    for number in range(20):
        state.apply(arrived(str(number), number))
        touched = state.apply(
            RequestFinished(
                request_id=str(number),
                time=11.0,
                status=SequenceStatus.FINISHED_ABORTED,
                metrics=metrics(),
            )
        )
        dropped += [seq_id for seq_id in touched if seq_id not in state.sequences]
        assert len(state.finished) <= 8
        assert len(state.requests) == len(state.sequences) == len(state.finished)
        assert sum(state.num_by_status) == len(state.sequences)
    assert dropped == list(range(20 - len(state.finished)))
    assert state.num_finished == 20


def test_an_eighth_of_the_cap_is_dropped_at_once() -> None:
    state = EngineState(max_finished=80)
    kept = []
    for number in range(92):
        state.apply(arrived(str(number), number))
        state.apply(
            RequestFinished(
                request_id=str(number),
                time=11.0,
                status=SequenceStatus.FINISHED_ABORTED,
                metrics=metrics(),
            )
        )
        kept.append(len(state.finished))
    assert kept == [*range(1, 81), 71, *range(72, 81), 71, 72]


@pytest.mark.parametrize(
    "late",
    [
        step(9, sequences=[update(1, SequenceStatus.RUNNING, 9, text="late")]),
        step(9, sequences=[update(5, SequenceStatus.RUNNING, 3, request_id="a", parent=1)]),
        step(9, metrics={"a": metrics(time_in_queue=7.0)}),
        step(9, preemptions=[events.preemption("a", lost=3)]),
        step(9, wait_reasons=[events.wait_reason("a", "no_blocks", 1)]),
    ],
)
def test_a_late_event_changes_a_copy(late: Step) -> None:
    state = prefilled()
    finish(state)
    state.apply(arrived("b", 2))
    other = freeze(state)
    request, sequence = other.requests["a"], other.sequences[1]
    assert state.requests["a"] is request
    before = codec.encode(request), codec.encode(sequence)
    state.apply(late)
    assert other.requests["a"] is request
    assert (codec.encode(request), codec.encode(sequence)) == before
    after = codec.encode(state.requests["a"]), codec.encode(state.sequences[1])
    assert after != before


@pytest.mark.parametrize(
    "late",
    [
        step(9, full("a", 1, [3], chunk=4)),
        step(9, delta("a", 1, [5], 3)),
        step(9, delta("b", 1, [5], 3)),
        step(9, full("b", 1, [3], chunk=4)),
    ],
)
def test_a_batch_does_not_change_finished_sequences(late: Step) -> None:
    state = prefilled()
    finish(state)
    state.apply(arrived("b", 2))
    request, sequence = state.requests["a"], state.sequences[1]
    before = codec.encode(request), codec.encode(sequence)
    state.apply(late)
    assert state.num_anomalies == 1
    after = codec.encode(state.requests["a"]), codec.encode(state.sequences[1])
    assert after == before == (codec.encode(request), codec.encode(sequence))


def test_unfinished_requests_are_not_copied_and_unknown_ones_not_added() -> None:
    state = prefilled()
    request, sequence = state.requests["a"], state.sequences[1]
    reasons = [events.wait_reason(name, "no_blocks") for name in ("a", "unknown")]
    state.apply(step(1, metrics={"a": metrics(), "unknown": metrics()}, wait_reasons=reasons))
    assert (state.requests, state.sequences) == ({"a": request}, {1: sequence})
    assert state.requests["a"] is request
    assert state.sequences[1] is sequence
    state.apply(step(2))
    assert request.wait_reason is None


def test_other_finished_requests_stay_shared() -> None:
    state = prefilled()
    finish(state)
    other = freeze(state)
    state.apply(arrived("b", 2))
    state.apply(step(9, sequences=[update(2, SequenceStatus.RUNNING, 3)]))
    assert state.requests["a"] is other.requests["a"]
    assert state.sequences[1] is other.sequences[1]


def test_a_late_event_does_not_change_a_finished_request_of_another_state() -> None:
    state = fed(encoded(3, 60), max_finished=1_000)
    seq_id = state.requests[state.finished[0]].seq_ids[0]
    frozen = freeze(state)
    before = codec.encode(frozen.sequences[seq_id])
    late = update(seq_id, SequenceStatus.RUNNING, 1, text="boo")
    state.apply(events.step(99, sequences=[late]))
    assert state.sequences[seq_id].text.endswith("boo")
    assert codec.encode(frozen.sequences[seq_id]) == before


def test_the_oldest_are_dropped_when_they_take_too_much_memory() -> None:
    state, memory = EngineState(max_finished=1_000), FinishedMemory(max_bytes=400_000)
    dropped: list[int] = []
    most = 0
    for number in range(60):
        whole = replace(arrived(str(number), number), prompt_token_ids=Ints.of(range(5_000)))
        state.apply(whole)
        end = RequestFinished(
            request_id=str(number),
            time=11.0,
            status=SequenceStatus.FINISHED_ABORTED,
            metrics=metrics(),
        )
        assert set(state.apply(end)) <= {number}
        dropped += memory.add(state, str(number))
        most = max(most, memory.num_bytes)
        assert memory.num_bytes == sum(FinishedMemory().measure(state)) <= 400_000
    assert most > 350_000
    assert dropped == list(range(60 - len(state.finished))), "the oldest first"
    assert {*state.requests} == {*state.finished}
    assert len(state.sequences) == sum(state.num_by_status) == len(state.finished) > 10


def test_each_token_and_each_candidate_of_a_finished_request_counts() -> None:
    state, memory = prefilled(), FinishedMemory()
    finish(state)
    (before,) = memory.measure(state)
    sequence = state.sequences[1]
    sequence.output_token_ids = sequence.output_token_ids.plus([1] * 100)
    sequence.top_logprobs = TopLogprobs.of({0: {5: Logprob(-0.5, 1, "word")}})
    (after,) = memory.measure(state)
    assert after - before == 400 + sequence.top_logprobs.num_bytes
