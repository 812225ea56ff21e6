"""Rules about progress: what each finds, what it proves it with, and what it lets pass."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from seqtop.checks.checker import Checker
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.messages import Event, Heartbeat, StreamingUpdate, WaitCause
from tests.support.events import arrival, engine_info, preemption, stats, step, update, wait_reason
from tests.support.mutants import (
    LIVENESS_MUTANTS,
    Run,
    assert_found,
    check,
    compute_again,
    events,
    mutated,
    steps_of,
    wait_for_each_other,
)

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


@pytest.mark.parametrize(("rule", "mutate"), LIVENESS_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


def test_queue_is_served_in_order_of_arrival(payloads: list[bytes]) -> None:
    strict = Thresholds(overtaken_requests=1, overtaken_seconds=1e-9)
    assert check(events(payloads), thresholds=strict) == []


def test_lack_of_progress_is_proven_by_figures_and_reported_once(payloads: list[bytes]) -> None:
    (finding,) = check(mutated(payloads, "no-progress"), thresholds=Thresholds(empty_seconds=1e-9))
    assert (finding.severity, finding.step, finding.request_id) == ("warning", 99, "req-0")
    assert finding.message.startswith("100 steps and ")
    assert "6 requests unfinished, 0 run; 20 blocks available, the first request" in finding.message


@pytest.mark.parametrize(
    ("status", "cause", "rules"),
    [
        ("", None, ["no-progress"]),
        ("WAITING_FOR_REMOTE_KVS", None, ["wait-limit"]),
        ("", "no_blocks", ["no-progress"]),
        ("", "paused", []),
        ("", "lora_slots", ["wait-limit"]),
    ],
)
def test_heartbeats_without_steps_are_no_progress_unless_others_are_waited_for(
    status: str, cause: WaitCause | None, rules: list[str]
) -> None:
    waiting = arrival(1)
    waiting.engine_status = status
    reasons = [] if cause is None else [step(0, wait_reasons=[wait_reason("req-1", cause)])]
    beats = [Heartbeat(time=100.0 + second, step=-1) for second in range(200)]
    findings = check([engine_info(), Heartbeat(time=100.0, step=-1), waiting, *reasons, *beats])
    assert [finding.rule for finding in findings] == rules


def test_the_time_without_a_step_is_named() -> None:
    beats = [Heartbeat(time=100.0 + second, step=-1) for second in range(100)]
    (finding,) = check([engine_info(), beats[0], arrival(1), *beats])
    assert finding.message == "no step has ended for 60.0 s (since the start); 1 request unfinished"


def test_a_decode_that_stalls_is_named_with_its_tokens() -> None:
    run: Run = []
    compute_again(run)
    own = [each for event in steps_of(run) for each in event.sequences if each.seq_id == 1]
    own[0].new_token_ids = [7]
    for each in own:
        each.num_computed_tokens = 3
    (finding,) = check(run)
    assert finding.message.endswith(" computed others; 3 of 4 tokens computed")


def test_stalled_prefill_is_proven_by_figures_and_reported_once(payloads: list[bytes]) -> None:
    (finding,) = check(mutated(payloads, "stalled"))
    assert (finding.severity, finding.request_id, finding.seq_id) == ("warning", "req-1", 1)
    assert finding.message == (
        "no token computed for 100.0 s, in which 100 steps computed others; 1 of 3 tokens computed"
    )


def test_a_request_that_is_preempted_and_admitted_again_is_not_stalled(
    payloads: list[bytes],
) -> None:
    run = mutated(payloads, "stalled")
    preempts, admits = steps_of(run)[75:77]
    preempts.preemptions = [preemption("req-1", lost=1, by="req-2")]
    preempts.sequences.append(update(1, WAITING, 0, table=[]))
    preempts.stats = stats(
        num_used_blocks=1, num_free_blocks=63, num_prefill_tokens=1, num_running=1
    )
    admits.sequences.append(update(1, RUNNING, 1, blocks=[0]))
    assert check(run) == []


def test_silence_is_counted_from_the_last_description_of_the_engine() -> None:
    beats = [Heartbeat(time=100.0 + second, step=-1) for second in range(100)]
    assert (
        check([engine_info(), beats[0], arrival(1), *beats[:50], engine_info(), *beats[50:]]) == []
    )


def test_an_idle_engine_is_not_stuck() -> None:
    beats = [Heartbeat(time=100.0 + second, step=-1) for second in range(200)]
    assert check([engine_info(), *beats, arrival(1)]) == []


def test_preempted_request_that_is_overtaken() -> None:
    """Later requests are admitted while a preempted one waits."""
    run: Run = [engine_info(), *map(arrival, range(1, 14)), _scheduled(0, 1)]
    lost = preemption("req-1", lost=3)
    waits = update(1, WAITING, 0, table=[])
    run.append(step(1, sequences=[waits], preemptions=[lost], stats=stats(num_running=1)))
    run[14].metrics = {"req-1": RequestMetrics(1.0, 1.0, 100.0, None, 99.0)}
    state = EngineState()
    for event in copy.deepcopy(run):
        state.apply(event)
    run += [_scheduled(number, number) for number in range(2, 14)]
    late = Checker(state)  # it begins after the preemption, of which it knows the step's start
    found = [own for event in copy.deepcopy(run[-12:]) for own in late.apply(event)]
    (finding,) = [finding for finding in check(run) if finding.rule == "overtaken"]
    (of_late,) = [own for own in found if own.rule == "overtaken"]
    assert (of_late.request_id, of_late.step) == ("req-1", 11)
    assert of_late.message == finding.message.replace("10.0 s", "10.5 s")
    assert (finding.request_id, finding.step) == ("req-1", 11)
    assert finding.message == (
        "it was preempted and has waited 10.0 s since step 1, in which the engine admitted 10 later"
        " requests of no higher priority, the last of them req-11"
    )


@pytest.mark.parametrize(
    ("queue_order", "times", "is_overtaken"),
    [
        ("fcfs", (90.0, 5.0), True),
        ("priority", (90.0, 5.0), False),
        ("priority", (5.0, 5.0), False),
        ("priority", (4.0, 5.0), True),
    ],
)
def test_a_queue_without_priorities_has_the_order_of_its_arrivals(
    queue_order: Any, times: tuple[float, float], is_overtaken: bool
) -> None:
    arrivals = [arrival(number) for number in range(1, 14)]
    for number, event in enumerate(arrivals):
        event.arrival_time = times[number > 0]
    run: Run = [engine_info(queue_order=queue_order), *arrivals]
    run += [_scheduled(number, number) for number in range(2, 14)]
    assert ("overtaken" in {finding.rule for finding in check(run)}) is is_overtaken


@pytest.mark.parametrize(
    ("queue_order", "held", "is_found"),
    [("priority", [], True), ("priority", [7], False), ("priority_alone", [7], True)],
)
def test_those_that_hold_blocks_overtake_none_that_hold_none(
    queue_order: Any, held: list[int], is_found: bool
) -> None:
    """As sessions do, of whose inputs each gives them a place behind all others by time."""
    run: Run = [engine_info(queue_order=queue_order), arrival(1), arrival(2)]
    for number in range(11):
        table = update(2, WAITING, 3, table=held)
        given = StreamingUpdate(
            request_id="req-2",
            time=100.5 + 2 * number,
            num_computed_tokens=3,
            num_prompt_tokens=4,
            arrival_time=100.5 + 2 * number,
        )
        run += [step(2 * number, sequences=[table]), given, _scheduled(2 * number + 1, 2)]
    assert ("overtaken" in {finding.rule for finding in check(run)}) is is_found


@pytest.mark.parametrize(("num_found", "is_found"), [(0, True), (9, True), (16, False)])
def test_prefix_hits_are_not_computed_again_after_a_preemption(
    num_found: int, is_found: bool
) -> None:
    """Three tokens gained, for which three times 30 were computed again, less those found."""
    run: Run = [engine_info(), arrival(1)]
    for number in range(0, 8, 2):
        runs = update(1, RUNNING, 3, tokens=[5], blocks=[0], cached=num_found)
        waits = update(1, WAITING, 0, table=[])
        lost = [preemption("req-1", lost=30, by="req-2")]
        run += [
            step(number, sequences=[runs]),
            step(number + 1, sequences=[waits], preemptions=lost),
        ]
    assert ("thrash" in {finding.rule for finding in check(run)}) is is_found


def test_a_request_that_was_aborted_and_is_still_held_by_a_connector_is_not_overtaken() -> None:
    run: Run = [engine_info(), *map(arrival, range(1, 14))]
    ended = update(1, SequenceStatus.FINISHED_ABORTED, 0, table=[])
    run.append(step(0, sequences=[ended], stats=stats(num_running=0)))
    admitted = [_scheduled(number, number) for number in range(2, 14)]
    assert "overtaken" not in {finding.rule for finding in check([*run, *admitted])}
    del run[-1]
    assert "overtaken" in {finding.rule for finding in check([*run, *admitted])}


def _scheduled(number: int, seq_id: int) -> Any:
    """A step that runs one request for the first time."""
    from seqtop.sequence import SequenceData, SequenceGroupMetadata

    group = SequenceGroupMetadata(
        request_id=f"req-{seq_id}",
        is_prompt=True,
        seq_data={seq_id: SequenceData.from_seqs([1, 2, 3])},
        sampling_params=None,
        block_tables={seq_id: []},
    )
    runs = update(seq_id, RUNNING, 0)
    return step(number, group, sequences=[runs], stats=stats(num_running=1))


def test_thrash_is_proven_by_figures(payloads: list[bytes]) -> None:
    (finding,) = check(mutated(payloads, "thrash"))
    assert finding.message.startswith("preempted 4 times since step ")
    assert "0 tokens gained meanwhile" in finding.message


def test_never_fits_is_proven_by_figures(payloads: list[bytes]) -> None:
    (finding,) = check(mutated(payloads, "never-fits"))
    assert (finding.severity, finding.request_id, finding.step) == ("error", "req-1", 1)
    assert finding.message == "its prompt of 33 tokens needs 9 blocks, the pool has 8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {},
            (
                "req-1 misses 1 block: 2 are available, and requests that wait behind it hold 6"
                " (1 request). Aborting req-2 frees 6 blocks"
            ),
        ),
        ({"engine_status": "WAITING_FOR_REMOTE_KVS"}, None),  # its transfer ends
        ({"status": RUNNING}, None),  # it decodes in a step that has not ended
        ({"status": SequenceStatus.FINISHED_STOPPED}, None),
    ],
)
def test_a_deadlock_has_a_holder_that_waits_for_its_turn(
    changes: dict[str, Any], message: str | None
) -> None:
    run: Run = []
    wait_for_each_other(run)
    for own in (own for event in steps_of(run) for own in event.sequences):
        for name, value in changes.items():
            setattr(own, name, value)
    found = [finding for finding in check(run) if finding.rule == "deadlock"]
    assert [finding.message for finding in found] == ([] if message is None else [message])
    assert [finding.step for finding in found] == [2] * len(found)


def test_a_request_that_misses_no_block_is_in_no_deadlock() -> None:
    run: Run = []
    wait_for_each_other(run)
    for event in steps_of(run):
        event.wait_reasons = [wait_reason("req-1", "no_blocks", 0)]
    assert "deadlock" not in {finding.rule for finding in check(run)}
