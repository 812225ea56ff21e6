"""Snapshots: taken from a state, read into an empty one, and into one that missed messages."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from seqtop.sequence import Logprob, PoolingParams, SamplingParams, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState, snapshot
from seqtop.state.model import CachedBlock
from seqtop.state.snapshot import SnapshotLoader, carry_finished, take
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.state.waits import wait_until
from seqtop.wire import codec, parsing
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    CachedBlocks,
    Heartbeat,
    NotPublished,
    PrefixMiss,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    StreamingUpdate,
)
from seqtop.wire.snapshot import (
    BlockedTimes,
    EngineHistory,
    Limits,
    RequestHistory,
    RequestSnapshot,
    SequenceSnapshot,
    Snapshot,
    SnapshotPart,
    Span,
    StepCosts,
    WaitTimes,
)
from tests.support.events import engine_info, update, wait_reason
from tests.support.random_engine import RandomEngine
from tests.support.recordings import encoded, fed
from tests.support.reducer_events import (
    RUNNING,
    WAITING,
    arrived,
    delta,
    finish,
    full,
    metrics,
    prefilled,
    step,
)

SCRIPT = encoded(2, 120)
TIME = 30.0
OF_THE_VIEWER = {"max_finished", "keeps_candidates"}
"""Fields that each viewer sets itself: its limit on finished requests."""


def sent(message: Snapshot | SnapshotPart) -> Any:
    """`message` as a viewer receives it."""
    return parsing.reply(codec.encode(message))


def viewer_of(engine: EngineState) -> EngineState:
    """The state of a viewer that joins now."""
    state = EngineState()
    state.apply(sent(take(engine)))
    return state


def assert_agrees(viewer: EngineState, engine: EngineState) -> None:
    for field in msgspec.structs.fields(EngineState):
        if field.name not in OF_THE_VIEWER:
            assert getattr(viewer, field.name) == getattr(engine, field.name), field.name
    assert list(viewer.requests) == list(engine.requests)  # in order of arrival
    assert list(viewer.cached_blocks or ()) == list(engine.cached_blocks or ())


# --- To an empty state


@pytest.mark.parametrize("seed", range(4))
def test_a_late_viewer_has_the_state_of_the_engine(seed: int) -> None:
    engine, num_finished = EngineState(max_finished=8), 0
    for payload in encoded(seed, 120, load=20 if seed % 2 else 8):
        engine.apply(parsing.event(payload))
        num_finished = max(num_finished, len(engine.finished))
        assert_agrees(viewer_of(engine), engine)
    assert num_finished == 8
    assert len(engine.finished) < engine.num_finished, "some are not in it any more"


def test_a_late_viewer_continues_as_one_that_was_there() -> None:
    engine, viewer = fed(SCRIPT[:200]), viewer_of(fed(SCRIPT[:200]))
    viewer.max_finished = engine.max_finished
    for payload in SCRIPT[200:]:
        assert [*engine.apply(parsing.event(payload))] == [*viewer.apply(parsing.event(payload))]
    assert_agrees(viewer, engine)


def test_a_viewer_that_missed_messages_has_the_state_of_the_engine() -> None:
    engine, stale = EngineState(), EngineState()
    for number, event in enumerate(RandomEngine(5, 150)):
        payload = codec.encode(event)
        engine.apply(parsing.event(payload))
        if number % 50 < 35:  # then fifteen are lost
            stale.apply(parsing.event(payload))
        elif number % 50 == 49:
            stale.apply(sent(take(engine)))
            assert_agrees(stale, engine)


@pytest.mark.parametrize("code", "bhiq")
def test_prompts_may_be_columns_of_any_width(code: str) -> None:
    arrival = msgspec.structs.replace(arrived("a", 1), prompt_token_ids=Ints(code).plus([1, 2, 3]))
    engine = EngineState()
    engine.apply(parsing.event(codec.encode(arrival)))
    assert list(engine.requests["a"].prompt_token_ids) == [1, 2, 3]
    assert_agrees(viewer_of(engine), engine)


def test_all_that_is_in_a_snapshot_has_changed() -> None:
    engine = fed(SCRIPT)
    assert sorted(EngineState().apply(take(engine))) == sorted(engine.sequences)


def test_a_viewer_has_its_own_limit_on_finished_requests() -> None:
    state = EngineState(max_finished=3)
    state.apply(sent(take(fed(SCRIPT, max_finished=8))))
    assert state.max_finished == 3


def unusual() -> EngineState:
    """A state of one finished request, in which each field has an unusual value."""
    sequence = SequenceState(
        seq_id=4,
        request_id="r",
        status=SequenceStatus.FINISHED_STOPPED,
        num_prompt_tokens=3,
        num_computed_tokens=5,
        num_cached_tokens=2,
        num_prompt_hits=1,
        output_token_ids=Ints.of([7, 8]),
        output_logprobs=Floats.of([-0.5, -1.0]),
        top_logprobs=TopLogprobs.of({1: {8: Logprob(-1.0, 1, "x")}}),
        cumulative_logprob=-1.5,
        text="ab",
        last_delta_length=1,
        block_table=[9],
        stop_reason="b",
        parent_seq_id=2,
        last_step=6,
        engine_status="FINISHED_STOPPED",
        num_draft_tokens=5,
        num_accepted_tokens=4,
        group_block_tables=[[10]],
        host_table=[11],
        fork_length=4,
        num_external_tokens=1,
        text_lengths=Ints("b").plus([-1, 2]),
        prefix_misses=[PrefixMiss(cause="evicted", num_tokens=3, step=1, request_id="s")],
    )
    request = RequestState(
        request_id="r",
        metrics=metrics(),
        seq_ids=[4],
        is_announced=True,
        num_prompt_tokens=3,
        prompt="abc",
        prompt_token_ids=Ints.of([1, 2, 3]),
        sampling_params=SamplingParams(max_tokens=5),
        pooling_params=PoolingParams(dimensions=3),
        priority=2,
        spans=[Span("queued", 1.0, 2.0), Span("decode", 2.0, 3.0, 2, 2)],
        token_chunk_size=1,
        num_scheduled_steps=2,
        num_preemptions=1,
        num_lost_tokens=3,
        last_preemption_mode="swap",
        preempted_for="s",
        wait_reason=wait_reason("r", "no_blocks", 2),
        wait=WaitTimes(total=2.0, by_cause={"no_blocks": 1.0}, named=0.5),
        harm=1.5,
        harm_estimated=0.25,
        finish_reason="stop",
        preemption_steps=[3],
        queue_turn=-2,
        renewed_arrival_time=12.5,
        lora="adapter",
        cache_salt="digest",
        traceparent=f"00-{'1' * 32}-{'2' * 16}-01",
        transfer_id="4711",
        is_prompt_partial=True,
        num_encoder_inputs=1,
        parent_request_id="p",
    )
    return EngineState(
        info=engine_info(),
        step=8,
        time=40.0,
        stats=step(0).stats,
        requests={"r": request},
        sequences={4: sequence},
        finished=["r"],
        max_finished=7,
        keeps_candidates=False,
        num_by_status=[status == sequence.status for status in range(len(SequenceStatus))],
        num_output_tokens=11,
        num_steps_seen=12,
        stopped="maintenance",
        num_anomalies=13,
        last_anomaly="it contradicts itself",
        num_prefill_tokens=14,
        num_finished=15,
        wait_reason_ids=["r"],
        step_costs=StepCosts(0.01, 1e-4, 1e-5, 40, 38, [1.0] * 9),
        blocked=BlockedTimes({"no_blocks": 1.0}, 20.0),
        num_queued=16,
        holders={"r": True},
        in_queue={"gone": True},
        num_parked={"PARKED": 1},
        limits=Limits({"steps": 3.0}, [(20.0, {"steps": 1.0})], 20.0, 10.0),
        cached_blocks={9: CachedBlock("r", 4, 0), 3: CachedBlock("s", 5, 2)},
        num_missed_tokens={"evicted": 17},
        num_drafted=[3, 2],
        num_accepted=[2, 1],
        not_published=NotPublished(time=39.0, num_messages=18, reason="KeyError", detail="'a'"),
    )


def test_every_field_of_a_state_is_in_its_snapshot() -> None:
    engine = unusual()
    viewer = viewer_of(engine)
    pairs: list[tuple[msgspec.Struct, msgspec.Struct]] = [
        (engine, viewer),
        (engine.requests["r"], viewer.requests["r"]),
        (engine.sequences[4], viewer.sequences[4]),
    ]
    for struct, received in pairs:
        for field in msgspec.structs.fields(type(struct)):
            name = f"{type(struct).__name__}.{field.name}"
            value, default = getattr(struct, field.name), field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            assert value != default, f"{name} has its default, so this test does not see it"
            # What waits follows from the requests.
            if field.name not in (*OF_THE_VIEWER, "in_queue", "num_parked"):
                assert getattr(received, field.name) == value, f"a snapshot lacks {name}"


def test_a_request_that_was_not_announced_is_read_from_deltas_by_a_late_viewer_too() -> None:
    engine = EngineState()
    engine.apply(step(0, full("a", 1, [7], chunk=3)))
    viewer = viewer_of(engine)
    for state in (engine, viewer):
        state.apply(step(1, delta("a", 1, [5], 3)))
        state.apply(step(2, delta("a", 1, [6], 4)))
    assert list(viewer.sequences[1].output_token_ids) == [5, 6]
    assert_agrees(viewer, engine)


# --- In parts


def in_parts(whole: Snapshot, num_requests: int) -> Iterator[tuple[Any, Any]]:
    """The arguments of `SnapshotLoader.add` for the first requests, and for the rest."""
    yield whole.requests[:num_requests], (whole.cached_blocks or [])[:1]
    yield whole.requests[num_requests:], (whole.cached_blocks or [])[1:]


def test_parts_are_merged() -> None:
    engine, viewer = fed(SCRIPT), EngineState()
    whole = sent(take(engine))
    assert len(whole.requests) > 5
    assert len(whole.cached_blocks) > 1
    loader = SnapshotLoader(whole, viewer)
    for part in in_parts(whole, 3):
        loader.add(*part)
    loader.end()
    assert_agrees(viewer, engine)


@pytest.mark.parametrize("repeated", [0, 1])
def test_no_entry_comes_in_two_parts(repeated: int) -> None:
    whole = sent(take(fed(SCRIPT)))
    first, second = in_parts(whole, 3)
    again: list[Any] = [[], []]
    again[repeated] = first[repeated]
    loader = SnapshotLoader(whole, EngineState())
    loader.add(*first)
    loader.add(*second)
    noun = "request 'req-" if repeated == 0 else "a cached block"
    with pytest.raises(WireError, match=rf"{noun}.* is in it twice"):
        loader.add(*again)


def test_blocks_of_an_engine_that_does_not_report_its_cache_are_ignored() -> None:
    state = prefilled()
    assert state.cached_blocks is None
    part = SnapshotPart(
        index=0,
        is_last=True,
        cached_blocks=[CachedBlocks(request_id="a", seq_id=1, position=0, blocks=[8])],
    )
    viewer = EngineState()
    loader = SnapshotLoader(sent(take(state)), viewer)
    loader.add(take(state).requests, ())
    loader.add((), sent(part).cached_blocks)
    loader.end()
    assert_agrees(viewer, state)


# --- That contradict themselves


def test_a_snapshot_has_few_causes_of_waiting() -> None:
    """Each request that begins to wait gets a copy of them."""
    state = finished_request()
    state.blocked = BlockedTimes({str(number): 1.0 for number in range(65)})
    with pytest.raises(WireError, match="length <= 64"):
        sent(take(state))


def finished_request() -> EngineState:
    state = prefilled()
    finish(state)
    state.cached_blocks = {7: CachedBlock("a", 1, 0)}
    return state


def add_request(whole: Snapshot, *seq_ids: int, spans: int = 1) -> None:
    """Adds request `b`, with sequences like that of the first request."""
    sequence = whole.requests[0].sequences[0]
    sequences = [
        msgspec.structs.replace(
            sequence, update=msgspec.structs.replace(sequence.update, seq_id=seq_id)
        )
        for seq_id in seq_ids
    ]
    arrival = msgspec.structs.replace(arrived("b", 0), seq_ids=list(seq_ids))
    history = RequestHistory(spans=[Span("queued", 1.0, None)] * spans)
    whole.requests.append(RequestSnapshot(arrival=arrival, sequences=sequences, history=history))


def repeat_sequence(whole: Snapshot) -> None:
    request = whole.requests[0]
    request.sequences *= 2
    request.arrival.seq_ids *= 2


def history_of(whole: Snapshot) -> EngineHistory:
    assert whole.history is not None
    return whole.history


def drop_history(whole: Snapshot) -> None:
    whole.history = None


def first_update(whole: Snapshot) -> SequenceUpdate:
    return whole.requests[0].sequences[0].update


NO_STATE = "the update of sequence 1 is not its state"
NO_LIST = "the list of finished requests does not fit"


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda whole: add_request(whole, 2, spans=0), "request 'b' has no phase"),
        (lambda whole: whole.requests.append(whole.requests[0]), "request 'a' is in it twice"),
        (lambda whole: add_request(whole, 1), "sequence 1 is in it twice"),
        (repeat_sequence, "sequence 1 is in it twice"),
        (lambda whole: whole.requests[0].sequences.clear(), "sequences of request 'a' differ"),
        (lambda whole: whole.requests[0].arrival.seq_ids.append(2), "of request 'a' differ"),
        (lambda whole: setattr(first_update(whole), "seq_id", 2), "of request 'a' differ"),
        (lambda whole: setattr(first_update(whole), "is_removed", True), NO_STATE),
        (lambda whole: setattr(first_update(whole), "new_token_ids", [5]), NO_STATE),
        (lambda whole: setattr(first_update(whole), "text_delta", "x"), NO_STATE),
        (lambda whole: whole.cached_blocks.extend(whole.cached_blocks), "a cached block is in it"),
        (lambda whole: history_of(whole).finished.clear(), NO_LIST),
        (lambda whole: history_of(whole).finished.append("a"), NO_LIST),
        (lambda whole: history_of(whole).finished.append("b"), NO_LIST),
        (lambda whole: whole.requests.clear(), NO_LIST),
        (drop_history, NO_LIST),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(
    break_it: Callable[[Any], object], reason: str
) -> None:
    whole = sent(take(finished_request()))
    break_it(whole)
    with pytest.raises(WireError, match=f"^snapshot: .*{reason}"):
        EngineState().apply(sent(whole))


# --- To a state that has missed messages


def request_of(arrival: RequestArrived, *sequences: SequenceSnapshot) -> RequestSnapshot:
    """A request of which an engine says what is, and not what has been."""
    seq_ids = [sequence.update.seq_id for sequence in sequences]
    return RequestSnapshot(
        arrival=msgspec.structs.replace(arrival, seq_ids=seq_ids), sequences=list(sequences)
    )


def now(seq_id: int, status: SequenceStatus, num_computed: int, **fields: Any) -> SequenceSnapshot:
    return SequenceSnapshot(update=update(seq_id, status, num_computed, **fields))


def repaired(state: EngineState, *requests: RequestSnapshot, **more: Any) -> EngineState:
    """`state` after a snapshot at step 9, with as many anomalies as before."""
    num_anomalies = state.num_anomalies
    stats = step(9).stats
    state.apply(sent(Snapshot(time=TIME, step=9, stats=stats, requests=list(requests), **more)))
    assert (state.step, state.time, state.stats) == (9, TIME, stats)
    assert state.num_anomalies == num_anomalies
    assert sum(state.num_by_status) == len(state.sequences)
    return state


def spans(state: EngineState) -> list[tuple[str, float, float | None]]:
    return [(span.kind, span.start, span.end) for span in state.requests["a"].spans]


def test_unnamed_requests_have_ended_unless_their_end_is_known() -> None:
    state = prefilled()
    for name, seq_id in (("b", 2), ("c", 3)):
        state.apply(arrived(name, seq_id))
    finish(state)
    repaired(
        state,
        request_of(arrived("c", 3), now(3, WAITING, 0)),
        request_of(arrived("d", 4), now(4, WAITING, 0)),
    )
    assert list(state.requests) == ["a", "c", "d"]
    assert list(state.sequences) == [1, 3, 4]
    assert state.requests["a"].finish_reason == "abort"
    assert state.finished == ["a"]


def test_a_sequence_is_replaced_as_a_whole() -> None:
    state = prefilled()
    assert state.num_output_tokens == 1
    whole = SequenceSnapshot(
        update=update(1, RUNNING, 5, table=[7, 8]),
        output_token_ids=Ints.of([5, 6]),
        output_logprobs=Floats.of([-0.5, -1.0]),
        top_logprobs={1: {6: Logprob(-1.0, 1, "!")}},
        text="Hi!",
    )
    reason = wait_reason("a", "no_blocks", 1)
    state.apply(step(1, wait_reasons=[reason]))
    arrival = msgspec.structs.replace(arrived("a", 1), metrics=metrics(time_in_queue=3.0))
    repaired(state, request_of(arrival, whole))
    sequence = state.sequences[1]
    assert list(sequence.output_token_ids) == [5, 6]
    assert list(sequence.output_logprobs) == [-0.5, -1.0]
    assert (sequence.text, sequence.cumulative_logprob) == ("Hi!", -1.5)
    assert list(sequence.text_lengths) == [-1, 3], "the lengths before the loss are not known"
    assert list(sequence.top_logprobs.by_place()) == [1]
    assert (sequence.block_table, sequence.num_computed_tokens) == ([7, 8], 5)
    assert state.num_output_tokens == 2
    assert state.requests["a"].metrics.time_in_queue == 3.0
    assert state.requests["a"].wait_reason is None
    assert spans(state) == [("queued", 10.0, 20.0), ("prefill", 20.0, 20.5), ("decode", 20.5, TIME)]


def test_figures_of_a_sequence_are_totals_and_those_of_steps_stay() -> None:
    state = prefilled()
    miss = PrefixMiss(cause="evicted", num_tokens=3)
    state.apply(
        step(
            1,
            sequences=[update(1, RUNNING, 4, drafted=3, accepted=1, prefix_misses=[miss])],
        )
    )
    totals = state.num_missed_tokens, state.num_drafted, state.num_accepted
    assert totals == ({"evicted": 3}, [1, 1, 1], [1, 0, 0])
    more = [miss, PrefixMiss(cause="new_tokens", num_tokens=2)]
    current = now(1, RUNNING, 9, drafted=7, accepted=4, prefix_misses=more)
    repaired(state, request_of(arrived("a", 1), current))
    sequence = state.sequences[1]
    assert (sequence.num_draft_tokens, sequence.num_accepted_tokens) == (7, 4)
    assert sequence.prefix_misses == more
    assert (state.num_missed_tokens, state.num_drafted, state.num_accepted) == totals


def test_a_sequence_that_its_request_has_no_more_is_removed() -> None:
    state = prefilled()
    state.apply(step(1, sequences=[update(5, RUNNING, 3, request_id="a", parent=1, table=[7])]))
    assert list(state.requests["a"].seq_ids) == [1, 5]
    repaired(state, request_of(arrived("a", 1), now(1, RUNNING, 3)))
    assert list(state.requests["a"].seq_ids) == list(state.sequences) == [1]


def test_a_sequence_of_another_request_is_refused() -> None:
    state = prefilled()
    with pytest.raises(WireError, match="sequence 1 is in it twice"):
        repaired(state, request_of(arrived("b", 1), now(1, RUNNING, 3)))


def test_input_that_was_lost_is_in_the_prompt() -> None:
    engine, state = prefilled(), prefilled()
    engine.apply(
        StreamingUpdate(
            request_id="a",
            time=21.0,
            num_computed_tokens=3,
            num_prompt_tokens=5,
            prompt="abcde",
            prompt_token_ids=Ints.of(range(5)),
        )
    )
    whole = take(engine).requests[0]
    repaired(state, request_of(whole.arrival, SequenceSnapshot(update=whole.sequences[0].update)))
    for name in ("num_prompt_tokens", "prompt", "prompt_token_ids"):
        assert getattr(state.requests["a"], name) == getattr(engine.requests["a"], name), name
    assert state.sequences[1].num_prompt_tokens == 5


def test_the_prefix_cache_is_that_of_the_snapshot() -> None:
    state = prefilled()
    whole = request_of(arrived("a", 1), now(1, RUNNING, 3))
    cached = [CachedBlocks(request_id="a", seq_id=1, blocks=[4, 9], position=2)]
    repaired(state, whole, cached_blocks=cached)
    assert state.cached_blocks is not None
    assert {block: entry.position for block, entry in state.cached_blocks.items()} == {4: 2, 9: 3}
    repaired(state, whole)
    assert state.cached_blocks is None


@pytest.mark.parametrize(
    ("last", "status", "num_computed", "expected"),
    [
        # In the same phase as before.
        (Span("decode", 20.0, 21.0), RUNNING, 4, []),
        (Span("prefill", 20.0, 21.0), RUNNING, 2, []),
        # In the next one, which began where the last is known to have ended.
        (Span("prefill", 20.0, 21.0), RUNNING, 3, [("decode", 21.0, TIME)]),
        (Span("preempted", 20.0, 21.0), RUNNING, 2, [("prefill", 21.0, TIME)]),
        (Span("preempted", 20.0, None), RUNNING, 3, [("decode", TIME, TIME)]),
        # Preempted during the loss, when is not known exactly.
        (Span("decode", 20.0, 21.0), WAITING, 0, [("preempted", 21.0, None)]),
        (Span("prefill", 20.0, 21.0), WAITING, 0, [("preempted", 21.0, None)]),
        (Span("decode", 20.0, None), WAITING, 0, [("preempted", TIME, None)]),
        (Span("preempted", 20.0, None), WAITING, 0, []),
        # Neither waits nor runs.
        (Span("decode", 20.0, 21.0), SequenceStatus.SWAPPED, 0, []),
    ],
)
def test_the_last_span_agrees_with_the_status(
    last: Span,
    status: SequenceStatus,
    num_computed: int,
    expected: list[tuple[str, float, float | None]],
) -> None:
    state = prefilled()
    state.requests["a"].spans = [Span("queued", 10.0, 20.0), msgspec.structs.replace(last)]
    repaired(state, request_of(arrived("a", 1), now(1, status, num_computed)))
    assert spans(state)[2:] == expected
    request = state.requests["a"]
    is_preempted = "preempted" in [kind for kind, *_ in expected]
    assert (request.queue_turn, request.wait.since) == (
        (-2, expected[0][1]) if is_preempted else (1, None)
    )


def test_a_request_that_was_queued_has_its_first_span_ended() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(arrived("b", 2))
    arrival = msgspec.structs.replace(arrived("a", 1), metrics=metrics(first_scheduled_time=25.0))
    repaired(
        state,
        request_of(arrival, now(1, RUNNING, 3)),
        request_of(arrived("b", 2), now(2, RUNNING, 2)),
    )
    assert spans(state) == [("queued", 10.0, 25.0), ("decode", 25.0, TIME)]
    wait, other = (state.requests[name].wait for name in "ab")
    assert (wait.since, wait.total) == (None, 15.0)
    assert (other.since, other.total) == (None, TIME - 10.0), "its end is not known"


def test_the_first_sequence_determines_the_phase() -> None:
    state = prefilled()
    fork = update(5, RUNNING, 3, request_id="a", parent=1)
    state.apply(step(1, sequences=[fork]))
    repaired(state, request_of(arrived("a", 1), now(1, RUNNING, 3), now(5, WAITING, 0)))
    assert spans(state)[-1] == ("decode", 20.5, TIME)


def test_reasons_to_wait_from_before_the_loss_are_no_longer_valid() -> None:
    state = EngineState()
    state.apply(arrived("a", 1, time=20.0))
    state.apply(step(0, wait_reasons=[wait_reason("a", "no_blocks")]))
    state.apply(step(1, wait_reasons=[wait_reason("a", "no_blocks")]))
    repaired(state, request_of(arrived("a", 1), now(1, WAITING, 0)))
    wait = wait_until(state, state.requests["a"], 40.0)
    seconds = {"no_blocks": 1.5, "in_progress": 10.0}
    assert (wait.total, wait.by_cause) == (20.0, seconds), "8.5 are unknown"
    assert list(state.apply(step(10))) == []


def test_all_that_was_named_or_dropped_has_changed() -> None:
    state = prefilled()
    fork = update(5, RUNNING, 3, request_id="a", parent=1)
    state.apply(step(1, sequences=[fork]))
    state.apply(arrived("b", 2))
    whole = Snapshot(
        time=TIME,
        step=9,
        stats=step(9).stats,
        requests=[
            request_of(arrived("a", 1), now(1, RUNNING, 3)),
            request_of(arrived("c", 3), now(3, WAITING, 0)),
        ],
    )
    assert sorted(state.apply(whole)) == [1, 2, 3, 5]
    assert [*state.num_by_status[:2], sum(state.num_by_status)] == [1, 1, 2]


def test_a_total_of_tokens_is_not_negative() -> None:
    """Tokens that full metadata bring along are not in it."""
    state = EngineState()
    group = full("a", 1, [7], chunk=1)
    for token in (5, 6):
        group.seq_data[1].append_token_id(token, -0.5)
    state.apply(step(0, group))
    current = SequenceSnapshot(update=update(1, RUNNING, 3), output_token_ids=Ints.of([5]))
    repaired(state, request_of(arrived("a", 1), current))
    assert state.num_output_tokens == 0


def test_requests_without_a_sequence_and_finished_ones_keep_their_spans() -> None:
    state = prefilled()
    finish(state)
    before = spans(state)
    repaired(state, request_of(arrived("a", 1), now(1, WAITING, 0)), request_of(arrived("b", 2)))
    assert spans(state) == before
    assert [span.kind for span in state.requests["b"].spans] == ["queued"]


def test_the_clock_does_not_go_back() -> None:
    state = prefilled()
    state.apply(Heartbeat(time=50.0, step=0))
    state.apply(Snapshot(time=TIME, step=9, stats=step(9).stats, requests=[]))
    assert (state.time, state.step) == (50.0, 9)


# --- Between two states of a viewer


def test_history_of_an_older_state_is_kept_in_front() -> None:
    old = prefilled()
    old.apply(
        RequestFinished(
            request_id="a", time=21.0, status=SequenceStatus.FINISHED_ABORTED, metrics=metrics()
        )
    )
    new = EngineState()
    new.apply(arrived("b", 2))
    carry_finished(new, old)
    assert list(new.requests) == ["a", "b"]
    assert new.finished == ["a"]
    assert set(new.sequences) == {1, 2}
    assert sum(new.num_by_status) == 2


def test_only_equal_finished_requests_are_shared() -> None:
    old = fed(SCRIPT)
    new = viewer_of(old)
    same, other = new.finished[0], new.finished[1]
    new.sequences[new.requests[other].seq_ids[0]].text += "!"
    snapshot.share_finished(new, old)
    assert new.requests[same] is old.requests[same]
    for seq_id in old.requests[same].seq_ids:
        assert new.sequences[seq_id] is old.sequences[seq_id]
    assert new.requests[other] is not old.requests[other]
    waiting = next(name for name in new.requests if name not in new.finished)
    assert new.requests[waiting] is not old.requests[waiting]


def test_finished_requests_that_differ_or_are_gone_are_not_shared() -> None:
    old, other, gone = finished_request(), finished_request(), EngineState()
    other.requests["a"].priority += 1
    snapshot.share_finished(other, old)
    assert other.requests["a"] is not old.requests["a"]
    assert other.requests["a"].priority == 1
    snapshot.share_finished(gone, old)
    assert gone == EngineState()
