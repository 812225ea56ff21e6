"""The reducer, event by event, on the hand-written lifecycle of two requests."""

import msgspec
import pytest

from seqtop.sequence import (
    PoolingParams,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.state.model import CachedBlock
from seqtop.state.sort_key import queue_key
from seqtop.state.waits import wait_until
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    CachedBlocks,
    EngineStopped,
    Event,
    Heartbeat,
    RequestArrived,
    RequestFinished,
    StreamingUpdate,
)
from tests.support import events
from tests.support.events import update, wait_reason
from tests.support.random_engine import RandomEngine
from tests.support.recordings import assert_same
from tests.support.reducer_events import (
    STATS,
    arrived,
    delta,
    finish,
    full,
    metrics,
    prefilled,
    step,
)
from tests.support.scripted import engine_info

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


def test_arrival_waits() -> None:
    state = EngineState()
    touched = state.apply(arrived("a", 1))
    assert list(touched) == [1]
    assert state.sequences[1].status is WAITING
    assert state.sequences[1].num_tokens == 3
    assert [(span.kind, span.start, span.end) for span in state.requests["a"].spans] == [
        ("queued", 10.0, None)
    ]
    assert state.num_by_status[WAITING] == 1
    state.apply(arrived("b", 2))
    assert [request.queue_turn for request in state.requests.values()] == [1, 2]


def test_an_arrival_tells_all_of_a_request() -> None:
    event = RequestArrived(
        request_id="a",
        arrival_time=10.0,
        seq_ids=[1, 2],
        num_prompt_tokens=3,
        prompt="abc",
        prompt_token_ids=Ints.of([4, 5, 6]),
        sampling_params=SamplingParams(max_tokens=5),
        pooling_params=PoolingParams(dimensions=8),
        priority=2,
        metrics=metrics(time_in_queue=1.0),
        engine_status="WAITING_FOR_FSM",
        lora="poems",
        parent_request_id="whole",
        transfer_id="4711",
    )
    state = EngineState()
    assert list(state.apply(event)) == [1, 2]
    request = state.requests["a"]
    for field in RequestArrived.__struct_fields__:
        given = getattr(event, field)
        if field == "arrival_time":
            assert state.time == given
        elif field == "engine_status":
            assert [state.sequences[seq_id].engine_status for seq_id in (1, 2)] == [given] * 2
        elif field == "prompt_token_ids":
            assert list(request.prompt_token_ids) == given
        elif field in ("eos_token_id", "num_schedule_calls"):
            assert not hasattr(request, field)  # only a replay of the scheduler needs it
        else:
            assert getattr(request, field) == given, field
    assert state.num_anomalies == 0
    state.apply(event)
    assert state.last_anomaly == "request a arrived twice"
    event.request_id = "b"
    state.apply(event)
    assert (state.num_anomalies, state.last_anomaly) == (3, "sequence 2 announced twice")


def test_prefill_brings_table_tokens_text_and_times() -> None:
    state = prefilled()
    request, sequence = state.requests["a"], state.sequences[1]
    assert sequence.status is RUNNING
    assert sequence.block_table == [7]
    assert sequence.num_computed_tokens == 3
    assert sequence.output_token_ids == [5]
    assert sequence.cumulative_logprob == -0.5
    assert (sequence.text, sequence.last_delta_length) == ("Hi", 2)
    assert request.metrics == metrics(scheduler_time=0.25)
    assert [(s.kind, s.start, s.end, s.num_tokens) for s in request.spans] == [
        ("queued", 10.0, 20.0, 0),
        ("prefill", 20.0, 20.5, 3),
    ]
    assert state.num_by_status[WAITING] == 0
    assert state.num_by_status[RUNNING] == 1
    assert state.num_output_tokens == 1


def test_decode_steps_add_up_and_share_a_span() -> None:
    state = prefilled()
    for number in (1, 2):
        touched = state.apply(
            step(
                number,
                delta("a", 1, [5], 2 + number),
                sequences=[
                    update(1, RUNNING, 3 + number, tokens=[6], logprobs=[-0.25],
                           text="!", blocks=[9] if number == 2 else [])
                ],
            )
        )  # fmt: skip
        assert list(touched) == [1]
    request, sequence = state.requests["a"], state.sequences[1]
    assert sequence.output_token_ids == [5, 6, 6]
    assert sequence.text == "Hi!!"
    assert sequence.block_table == [7, 9]
    assert sequence.cumulative_logprob == -1.0
    assert request.metrics.last_token_time == 22.5
    assert request.metrics.scheduler_time == 0.75
    assert request.metrics.model_forward_time == 1.0
    assert request.metrics.model_execute_time == 2.0
    assert request.spans[-1].kind == "decode"
    assert request.spans[-1].num_steps == request.spans[-1].num_tokens == 2
    assert len(request.spans) == 3


def test_preemption_takes_the_blocks_and_is_told() -> None:
    state = prefilled()
    state.apply(
        step(
            1,
            sequences=[update(1, WAITING, 0, table=[])],
            preemptions=[events.preemption("a", lost=3, by="b")],
            wait_reasons=[wait_reason("a", "no_blocks", 2)],
        )
    )
    request, sequence = state.requests["a"], state.sequences[1]
    assert sequence.status is WAITING
    assert sequence.block_table == []
    assert sequence.output_token_ids == [5]  # what was sampled stays
    assert (request.num_preemptions, request.num_lost_tokens) == (1, 3)
    assert (request.preempted_for, request.last_preemption_mode) == ("b", "recompute")
    assert request.preemption_steps == [1]
    assert (request.queue_turn, state.num_queued) == (-2, 2)
    assert (request.wait.since, request.wait.total) == (21.0, 10.0)
    assert request.wait_reason is not None
    assert (request.spans[-1].kind, request.spans[-1].end) == ("preempted", None)
    state.apply(step(2, full("a", 1, [3], chunk=4), sequences=[update(1, RUNNING, 4)]))
    assert request.wait_reason is None
    assert (request.wait.since, request.wait.total) == (None, 11.0)
    assert [span.kind for span in request.spans] == ["queued", "prefill", "preempted", "prefill"]


def test_a_preemption_ends_the_wait_before_it() -> None:
    """A row may say that a sequence runs before any metadata is there."""
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(step(0, sequences=[update(1, RUNNING, 3)]))
    preemption = events.preemption("a", mode="swap")
    swapped = update(1, SequenceStatus.SWAPPED, 3)
    state.apply(step(1, sequences=[swapped], preemptions=[preemption]))
    request = state.requests["a"]
    assert [(span.kind, span.start, span.end) for span in request.spans] == [
        ("queued", 10.0, 21.0),
        ("swapped", 21.0, None),
    ]
    assert (request.wait.since, request.wait.total) == (21.0, 11.0)


def test_requests_that_share_a_block_are_swapped_out_in_one_step() -> None:
    """Each has a copy of its own, in the order of the preemptions; its sequences share one."""
    state = EngineState()
    for name, seq_id, table in (("a", 1, [7, 3, 9]), ("b", 2, [7, 4])):
        state.apply(arrived(name, seq_id))
        state.apply(step(seq_id, full(name, seq_id, table, chunk=3)))
    fork = update(3, RUNNING, 3, request_id="b", parent=2, table=[7])
    state.apply(step(3, sequences=[fork]))
    updates = [update(seq_id, SequenceStatus.SWAPPED, 3, table=[]) for seq_id in (1, 2, 3)]
    preemptions = [events.preemption(request_id, mode="swap") for request_id in "ba"]
    swap = step(4, sequences=updates, preemptions=preemptions)
    swap.execute.blocks_to_swap_out += [(7, 0), (4, 1), (7, 2), (3, 5)]
    state.apply(swap)
    assert state.sequences[2].host_table == [0, 1]
    assert state.sequences[3].host_table == [0]
    assert state.sequences[1].host_table == [2, 5], "no copy of block 9"
    assert [request.spans[-1].kind for request in state.requests.values()] == ["swapped"] * 2
    state.apply(step(5, full("a", 1, [7, 3], chunk=3)))
    state.apply(step(6, delta("a", 1, [], 3)))
    assert (state.sequences[1].host_table, state.sequences[2].host_table) == ([], [0, 1])
    assert state.num_anomalies == 0


def test_time_to_wait_adds_up_by_reason() -> None:
    state = EngineState()
    arrival = arrived("a", 1, time=9.0)
    arrival.engine_status = "WAITING_FOR_REMOTE_KVS"
    state.apply(arrival)
    state.apply(step(0, sequences=[update(1, WAITING, 0)]))
    for number in (1, 2):
        state.apply(step(number, wait_reasons=[wait_reason("a", "lora_slots")]))
    wait = wait_until(state, state.requests["a"], state.time)
    assert wait.by_cause == {
        "WAITING_FOR_REMOTE_KVS": 11.0,
        "between_steps": 0.5,
        "lora_slots": 1.5,
    }
    assert (wait.total, wait.named) == (13.5, 1.5)


def test_a_reason_to_wait_that_is_not_repeated_is_cleared() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    reason = wait_reason("a", "no_blocks", 2)
    assert list(state.apply(step(0, wait_reasons=[reason]))) == [1]
    assert state.requests["a"].wait_reason == reason
    assert list(state.apply(step(1))) == [1]
    assert state.requests["a"].wait_reason is None


def test_input_of_a_session_takes_the_output_into_the_prompt() -> None:
    state = prefilled()
    request, sequence = state.requests["a"], state.sequences[1]
    state.apply(
        step(1, sequences=[update(1, WAITING, 3, engine_status="WAITING_FOR_STREAMING_REQ")])
    )
    assert sequence.block_table
    event = StreamingUpdate(
        request_id="a",
        time=state.time + 1,
        num_computed_tokens=3,
        num_prompt_tokens=6,
        prompt="Hi again",
        prompt_token_ids=Ints.of([1, 2, 3, 5, 8, 9]),
    )
    assert list(state.apply(event)) == [1]
    assert (request.num_prompt_tokens, request.prompt) == (6, "Hi again")
    assert (sequence.num_tokens, sequence.num_computed_tokens) == (6, 3)
    assert list(request.prompt_token_ids) == event.prompt_token_ids
    assert (len(sequence.output_token_ids), sequence.text, sequence.engine_status) == (0, "", "")
    assert len(sequence.output_logprobs) == len(sequence.text_lengths) == 0
    assert (sequence.last_delta_length, sequence.cumulative_logprob) == (0, 0.0)
    assert sequence.status is WAITING
    assert (state.num_by_status[WAITING], sum(state.num_by_status)) == (1, 1)
    assert request.spans[-1].kind == "queued"
    assert state.time == request.wait.since == event.time
    event.time += 1.0  # more input while it waits
    state.apply(event)
    *_, before, now = request.spans
    assert (before.kind, before.end) == ("queued", event.time)
    assert (now.kind, now.start, now.end) == ("queued", event.time, None)
    sequence.num_prompt_hits, event.num_prompt_tokens = 5, 4  # what an engine says is not checked
    state.apply(event)
    assert (sequence.num_prompt_hits, sequence.num_prompt_tokens) == (4, 4)
    event.request_id = "nobody"
    assert not list(state.apply(event))
    assert state.last_anomaly == "input for unknown or ended request nobody"
    finish(state)
    event.request_id = "a"
    assert not list(state.apply(event))
    assert (state.num_anomalies, request.num_prompt_tokens) == (2, 4)


def test_a_session_waits_since_its_last_input_where_the_engine_says_so() -> None:
    state = EngineState()
    state.apply(engine_info(queue_order="priority"))
    for seq_id, name in enumerate("ab", 1):
        state.apply(arrived(name, seq_id))
    arrival = state.requests["a"].metrics.arrival_time
    event = StreamingUpdate(
        request_id="a", time=arrival, num_computed_tokens=0, num_prompt_tokens=6
    )
    for renewed, queue in ((None, ["a", "b"]), (arrival + 60.0, ["b", "a"])):
        event.arrival_time = renewed
        state.apply(event)
        assert sorted("ab", key=lambda name: queue_key(state, state.requests[name])) == queue
        assert state.requests["a"].metrics.arrival_time == arrival, "of its first input"


def test_a_session_that_waits_for_input_joins_the_end_of_the_queue() -> None:
    state = prefilled()
    state.apply(arrived("b", 2))
    waiting = update(1, WAITING, 3, engine_status="WAITING_FOR_STREAMING_REQ")
    for number in range(2):
        state.apply(step(1 + number, sequences=[waiting]))
        assert (state.requests["a"].queue_turn, state.num_queued) == (3, 3)


def test_end_frees_and_keeps_what_was_said() -> None:
    state = prefilled()
    state.apply(
        step(
            1,
            delta("a", 1, [5], 3),
            sequences=[
                update(1, SequenceStatus.FINISHED_STOPPED, 4, tokens=[2],
                       logprobs=[-1.0], table=[], stop_reason=2)
            ],
        )
    )  # fmt: skip
    final = metrics(finished_time=21.5)
    touched = state.apply(
        RequestFinished(
            request_id="a", time=21.5, status=SequenceStatus.FINISHED_STOPPED, metrics=final
        )
    )
    assert list(touched) == [1]
    request, sequence = state.requests["a"], state.sequences[1]
    assert sequence.status is SequenceStatus.FINISHED_STOPPED
    assert sequence.output_token_ids == [5, 2]  # the last token, which deltas never carry
    assert sequence.stop_reason == 2
    assert sequence.block_table == []
    assert request.finish_reason == "stop"
    assert request.metrics == final
    assert state.finished == ["a"]
    assert state.num_finished == 1


@pytest.mark.parametrize("given", [11.0, None])
def test_abort_of_a_waiting_request(given: float | None) -> None:
    """It ends at the event's time, whether its metrics tell that, too, or not."""
    state = EngineState()
    state.apply(arrived("a", 1))
    reason = wait_reason("a", "no_blocks", 2)
    state.apply(step(0, wait_reasons=[reason]))
    state.apply(
        RequestFinished(
            request_id="a",
            time=11.0,
            status=SequenceStatus.FINISHED_ABORTED,
            metrics=metrics(finished_time=given),
        )
    )
    assert state.sequences[1].status is SequenceStatus.FINISHED_ABORTED
    assert state.requests["a"].finish_reason == "abort"
    assert state.requests["a"].spans[-1].end == 11.0
    assert state.requests["a"].metrics.finished_time == 11.0
    assert state.requests["a"].wait_reason is None


def test_the_end_frees_all_blocks_of_what_has_not_ended_before() -> None:
    state = prefilled()
    fork = update(2, RUNNING, 3, request_id="a", parent=1, table=[7], group_block_tables=[[5]])
    ended = update(1, SequenceStatus.FINISHED_STOPPED, 3)
    state.apply(step(1, sequences=[fork, ended]))
    swap = step(
        2,
        sequences=[update(2, SequenceStatus.SWAPPED, 3)],
        preemptions=[events.preemption("a", mode="swap")],
    )
    swap.execute.blocks_to_swap_out.append((7, 1))
    state.apply(swap)
    assert state.sequences[2].host_table == [1]
    finish(state)
    request, sequence = state.requests["a"], state.sequences[2]
    assert (sequence.block_table, sequence.group_block_tables, sequence.host_table) == ([], [], [])
    assert [sequence.status.name for sequence in state.sequences.values()] == [
        "FINISHED_STOPPED",
        "FINISHED_ABORTED",
    ]
    assert (request.wait.since, request.spans[-1].end) == (None, 21.0)
    assert [sum(state.num_by_status), sum(state.num_by_status[:3])] == [2, 0]
    finish(state)
    assert (state.num_finished, state.finished) == (1, ["a"])
    assert state.last_anomaly == "end of unknown or ended request a"


@pytest.mark.parametrize(
    ("ranking", "expected", "anomalies"),
    [
        ([], [1, 2, 3], 0),
        ([1, 2, 3], [1, 2, 3], 0),
        ([3, 1, 2], [3, 1, 2], 0),
        ([3, 1], [3, 1], 0),
        ([2, 9, 2], [2], 0),
    ],
)
def test_the_end_ranks_the_sequences_of_the_answer(
    ranking: list[int], expected: list[int], anomalies: int
) -> None:
    state = prefilled()
    forks = [update(seq_id, RUNNING, 3, request_id="a", parent=1) for seq_id in (2, 3)]
    state.apply(step(1, sequences=forks))
    status = SequenceStatus.FINISHED_LENGTH_CAPPED
    end = RequestFinished(
        request_id="a", time=60.0, status=status, metrics=metrics(), seq_ids=ranking
    )
    assert sorted(state.apply(end)) == [1, 2, 3]
    assert state.requests["a"].seq_ids == expected
    assert sorted(state.sequences) == sorted(expected)
    assert state.num_by_status[RUNNING] == 0
    assert state.num_by_status[status] == sum(state.num_by_status) == len(expected)
    assert (state.requests["a"].finish_reason, state.time) == ("length", 60.0)
    assert state.num_anomalies == anomalies


def test_prefix_cache_forgets_first_and_then_knows() -> None:
    state = prefilled()
    assert state.cached_blocks is None, "the engine does not report it"
    run = CachedBlocks(request_id="a", seq_id=1, position=2, blocks=[7, 5])
    state.apply(step(1, newly_cached_blocks=[run]))
    assert state.cached_blocks == {7: CachedBlock("a", 1, 2), 5: CachedBlock("a", 1, 3)}
    again = CachedBlocks(request_id="b", seq_id=2, position=0, blocks=[5])
    state.apply(step(2, newly_cached_blocks=[again], uncached_blocks=[7, 5]))
    assert state.cached_blocks == {5: CachedBlock("b", 2, 0)}
    state.apply(step(3))
    assert state.cached_blocks == {5: CachedBlock("b", 2, 0)}
    assert state.num_anomalies == 0
    state.apply(step(4, newly_cached_blocks=[], uncached_blocks=[9]))
    assert state.last_anomaly == "the prefix cache dropped block 9, which was not in it"


def test_full_metadata_correct_what_updates_have_told() -> None:
    state = prefilled()
    group = full("a", 1, [7], chunk=1)
    for token, logprob in ((5, -0.5), (6, -1.0), (7, -2.0)):
        group.seq_data[1].append_token_id(token, logprob)
    group.seq_data[1].update_num_computed_tokens(5)
    state.apply(step(1, group, sequences=[update(1, RUNNING, 5)]))
    sequence = state.sequences[1]
    assert list(sequence.output_token_ids) == [5, 6, 7]
    assert (sequence.text, list(sequence.text_lengths)) == ("Hi", [-1, -1, 2])
    assert sequence.cumulative_logprob == -3.5
    assert sequence.num_computed_tokens == 5


def test_full_metadata_correct_a_prompt_and_its_hits() -> None:
    state = EngineState()
    state.apply(RequestArrived(request_id="a", arrival_time=10.0, seq_ids=[1], num_prompt_tokens=9))
    request, sequence = state.requests["a"], state.sequences[1]
    group = full("a", 1, [7], chunk=3)
    group.seq_data[1].update_num_cached_tokens(2)
    group.seq_data[1].update_num_computed_tokens(1)
    assert list(state.apply(step(0, group, sequences=[]))) == [1]
    assert sequence.num_computed_tokens == 4, "and those of the chunk"
    assert sequence.num_prompt_tokens == request.num_prompt_tokens == 3
    assert (sequence.num_prompt_hits, sequence.num_cached_tokens) == (2, 2)
    assert list(request.prompt_token_ids) == [0, 1, 2]
    assert request.sampling_params == SamplingParams(max_tokens=5)
    assert sequence.last_step == 0
    preemption = events.preemption("a", lost=3)
    state.apply(step(1, sequences=[update(1, WAITING, 0)], preemptions=[preemption]))
    group = full("a", 1, [7], chunk=3)
    group.seq_data[1].update_num_cached_tokens(1)
    group.pooling_params = PoolingParams(dimensions=8)
    group.block_tables = {}
    state.apply(step(2, group))
    assert (sequence.num_prompt_hits, sequence.num_cached_tokens) == (2, 1)
    assert request.pooling_params == PoolingParams(dimensions=8)
    assert (sequence.block_table, sequence.last_step, sequence.status) == ([], 2, RUNNING)
    request.prompt_token_ids = Ints.of([9, 9, 9])
    state.apply(step(3, full("a", 1, [7], chunk=3)))
    assert list(request.prompt_token_ids) == [9, 9, 9], "known before"


def test_figures_of_a_request_add_up_over_its_steps() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    request = state.requests["a"]
    unknown = msgspec.structs.replace(STATS, model_forward_time=None, model_execute_time=None)
    for number in range(2):
        chunk = step(number, full("a", 1, [7], chunk=2))
        chunk.stats = unknown
        state.apply(chunk)
    assert request.metrics.model_forward_time is request.metrics.model_execute_time is None
    more = delta("a", 1, [5], 4)
    tokens = update(1, RUNNING, 6, tokens=[6, 7, 8])
    state.apply(step(2, more, sequences=[tokens]))
    more.token_chunk_size = None
    state.apply(step(3, more, sequences=[update(1, RUNNING, 7, tokens=[9])]))
    last = step(4, more, sequences=[update(1, RUNNING, 7)])
    last.stats = unknown
    state.apply(last)
    assert [(span.kind, span.start, span.end, span.num_steps, span.num_tokens)
            for span in request.spans] == [
        ("queued", 10.0, 20.0, 0, 0),
        ("prefill", 20.0, 20.5, 1, 2),
        ("prefill", 21.0, 21.5, 1, 2),
        ("decode", 22.0, 24.5, 3, 5),
    ]  # fmt: skip
    assert (request.num_scheduled_steps, request.token_chunk_size) == (5, 1)
    assert request.metrics.scheduler_time == 1.25
    assert request.metrics.model_forward_time == 1.0
    assert request.metrics.model_execute_time == 2.0


def test_bare_vllm_stream_is_understood_without_announcements_or_updates() -> None:
    state = EngineState()
    group = full("a", 1, [7], chunk=3)
    group.seq_data[1].update_num_cached_tokens(2)
    state.apply(step(0, group))
    request = state.requests["a"]
    assert (request.metrics.arrival_time, request.spans[0].start) == (20.0, 20.0)
    assert state.sequences[1].status is RUNNING
    assert (state.sequences[1].num_cached_tokens, state.sequences[1].num_prompt_hits) == (2, 2)
    bare = SequenceGroupMetadataDelta(
        {1: SequenceDataDelta([5], -0.5, 3, SequenceStage.DECODE)}, "a", {1: [7, 8]}, False
    )
    touched = state.apply(step(1, bare))
    assert list(touched) == [1]
    assert state.sequences[1].output_token_ids == [5]
    assert state.sequences[1].num_computed_tokens == 4
    assert state.sequences[1].block_table == [7, 8]
    assert list(state.sequences[1].text_lengths) == [0]
    assert (state.sequences[1].cumulative_logprob, state.sequences[1].last_step) == (-0.5, 1)
    assert state.requests["a"].prompt_token_ids == [0, 1, 2]
    assert state.num_anomalies == 0
    bare.seq_data_delta = {9: bare.seq_data_delta[1]} | bare.seq_data_delta
    bare.block_tables = {9: [3]}
    state.apply(step(2, bare))
    assert state.last_anomaly == "delta for unknown sequence 9"
    assert (list(state.sequences), state.num_by_status[RUNNING]) == ([1], 1)
    assert state.sequences[1].output_token_ids == [5, 5]
    state.apply(step(3, sequences=[update(1, WAITING, 0)]))
    state.apply(step(4, bare))
    assert (state.sequences[1].status, state.num_by_status[RUNNING]) == (RUNNING, 1)


@pytest.mark.parametrize(
    "event",
    [
        arrived("a", 9),
        arrived("z", 1),
        step(1, delta("nobody", 1, [5], 3)),
        step(1, sequences=[update(99, RUNNING, 3)]),
        step(
            1,
            preemptions=[events.preemption("nobody", lost=1)],
        ),
        RequestFinished(
            request_id="nobody",
            time=1.0,
            status=SequenceStatus.FINISHED_ABORTED,
            metrics=metrics(),
        ),
    ],
)
def test_events_that_do_not_fit_are_counted_and_harm_nothing(event: Event) -> None:
    state = prefilled()
    sequence = msgspec.structs.asdict(state.sequences[1])
    assert 1 not in [*state.apply(event)]
    assert state.num_anomalies == 1
    assert state.last_anomaly
    assert msgspec.structs.asdict(state.sequences[1]) == sequence


def test_a_step_is_the_last_one() -> None:
    state = prefilled()
    assert (state.step, state.time, state.num_steps_seen) == (0, 20.5, 1)
    state.apply(step(7))
    assert (state.step, state.time, state.num_steps_seen) == (7, 27.5, 2)
    assert state.stats == step(7).stats
    assert state.num_prefill_tokens == 2 * step(7).stats.num_prefill_tokens


def test_clock_never_goes_back() -> None:
    state = EngineState()
    state.apply(Heartbeat(time=50.0, step=3))
    state.apply(Heartbeat(time=40.0, step=3))
    assert state.time == 50.0
    state.apply(EngineStopped(time=51.0))
    assert (state.stopped, state.time) == ("the engine stopped", 51.0)
    state.apply(EngineStopped(time=49.0, reason="killed"))
    assert (state.stopped, state.time) == ("killed", 51.0)
    state.apply(engine_info(start_time=52.0))
    state.apply(engine_info(start_time=50.0))
    assert state.info == engine_info(start_time=50.0)
    state.apply(arrived("a", 1, time=10.0))
    state.apply(step(0))
    assert state.time == 52.0


@pytest.mark.parametrize("seed", range(5))
def test_no_event_is_changed_so_that_several_states_may_share_it(seed: int) -> None:
    run = list(RandomEngine(seed, 60, num_blocks=24))
    told = [codec.encode(event) for event in run]
    one, two = EngineState(), EngineState()
    for event in run:
        one.apply(event)
    for event in run:
        two.apply(event)
    assert [codec.encode(event) for event in run] == told
    assert_same(two, one)


def test_metadata_without_a_size_of_its_chunk_is_of_one_token() -> None:
    state = EngineState()
    for event in (events.engine_info(), events.arrival(1)):
        state.apply(event)
    data = SequenceData.from_seqs([1, 2, 3])
    state.apply(events.step(0, events.full("req-1", 1, chunk=0, data=data)))
    assert state.sequences[1].num_computed_tokens == 1
