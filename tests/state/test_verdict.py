"""The verdict in a sentence: what limits an engine, for how much of the waiting, and who."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state import verdict as verdicts
from seqtop.state.limits import last_minute, sums_at
from seqtop.state.resources import is_encoder_cache_full
from seqtop.state.verdict import EngineVerdict, of_last_minute, of_whole
from seqtop.state.waits import MAX_CAUSES_OF_ALL, WAITED, add_waited
from seqtop.wire.messages import Event, WaitCause
from tests.support import field_cases
from tests.support.events import (
    arrival,
    engine_info,
    full,
    stats,
    step,
    update,
    wait_reason,
)
from tests.support.simulated_scheduler import REMOTE, SimulatedRequest, SimulatedScheduler


def applied(events: list[Event]) -> EngineState:
    state = EngineState()
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize(
    ("case", "cause", "words"),
    [
        (
            field_cases.adapter_starves,
            "lora_slots",
            ["LoRA slots, max_loras (1)", "b0 has waited", "for a slot of adapter-b, adapter-a is"],
        ),
        (
            field_cases.encoder_cache_fills,
            "unknown",
            ["the encoder cache", "4,096 of 4,096 tokens"],
        ),
        (
            field_cases.loaded_requests_wait_for_each_other,
            "no_blocks",
            [
                "KV blocks: 48% of all waiting in the last minute, KV connector",
                "A misses 1 beside the 4 that it holds",
                "B holds 3 of 7",
            ],
        ),
        (field_cases.load_without_an_end, REMOTE, ["100% of all waiting", "lost has waited 15m"]),
        (
            field_cases.cuda_graph_is_missing,
            "cuda_graph",
            ["without a CUDA graph", "of 40 tokens", "(30 tokens)"],
        ),
        (
            field_cases.priority_waits,
            "seq_limit",
            ["max_num_seqs (4)", "vip (priority -5) waits", "for 4 requests of lower priority"],
        ),
        (field_cases.scheduler_grows, "scheduler", ["the scheduler takes", "in the first 100"]),
        (
            field_cases.ended_requests_keep_blocks,
            "no_blocks",
            ["KV blocks", "6 ended requests (p0, p1, p2 and 3 more) hold 192 of 200"],
        ),
        (field_cases.pool_is_oversubscribed, "no_blocks", ["computed again after"]),
    ],
)
def test_the_verdict_names_what_a_report_names(
    case: Callable[[], list[Event]], cause: str, words: list[str]
) -> None:
    verdict = of_last_minute(applied(case()))
    assert verdict.cause == cause
    for word in words:
        assert word in verdict.sentence


def test_a_wait_for_lower_priorities_is_named_after_it_has_ended() -> None:
    run = field_cases.ByPriority(max_num_seqs=2, queue_order="priority", num_gpu_blocks=4000)
    for name in ("batch0", "batch1"):
        run.add(name, 60, 700, priority=10)
    run.steps(5)
    run.add("vip", 60, 20, priority=-5)
    run.run_out()
    state = applied(run.events)
    for verdict in (of_last_minute(state), of_whole(state)):
        assert verdict.request_id == "vip"
        assert "vip (priority -5) waited" in verdict.sentence
        assert "for 2 requests of lower priority (10: batch0, batch1)" in verdict.sentence
        assert "sequences run" not in verdict.sentence, "none runs"


def test_with_nothing_to_say_it_says_that() -> None:
    run = SimulatedScheduler()
    assert of_last_minute(applied(run.events)) == EngineVerdict(
        "nothing to judge yet: no step has ended"
    )
    run.add("only", 100, 40)
    run.run_out()
    verdict = of_last_minute(applied(run.events))
    assert verdict.cause is None
    assert verdict.sentence.startswith("nothing limits it: ")


def test_the_seconds_are_those_of_all_requests_together() -> None:
    """One runs for ten seconds; two wait, of which one arrives after five."""
    run = SimulatedScheduler(max_num_seqs=1)
    run.add("runs", 16, 10_000)
    run.step()
    start = run.now
    run.add("first", 16, 10)
    while run.now < start + 5:
        run.step()
    middle = run.now
    run.add("second", 16, 10)
    while run.now < start + 10:
        run.step()
    sums = sums_at(applied(run.events), run.now)
    waited = (run.now - start) + (run.now - middle)
    assert sums[f"{WAITED}seq_limit"] == pytest.approx(waited, rel=0.01)


def test_the_last_minute_forgets_what_was_before() -> None:
    run = SimulatedScheduler()
    parked = run.add("loads", 50, 10, status=REMOTE)
    run.step()
    run.idle(200)
    run.park(parked, "")
    run.run_out()
    while run.now < 1_280.0:
        run.add(f"r{run.num_ids}", 30, 20)
        run.run_out()
    state = applied(run.events)
    seconds, sums = last_minute(state)
    assert 60 <= seconds <= 66
    assert sums.get(f"{WAITED}{REMOTE}", 0.0) == 0.0
    assert of_last_minute(state).cause is None
    assert of_whole(state).cause == REMOTE
    assert state.num_parked == {}


def test_a_stall_is_not_charged_to_the_host() -> None:
    state = applied(field_cases.loaded_requests_wait_for_each_other())
    assert last_minute(state)[1].get("host", 0.0) == 0.0


class _Reserving(SimulatedScheduler):
    """A request is admitted only if the pool has room for all that the others may generate."""

    def admits(self, request: SimulatedRequest, budget: int, left: int) -> Any:
        blocked = super().admits(request, budget, left)
        return ("reserved_blocks", 0, False) if blocked is None and self.running else blocked


def test_the_largest_max_tokens_reserves_the_pool() -> None:
    run = _Reserving()
    run.add("greedy", 100, 3_000)
    run.step()
    run.add("small", 40, 10)
    run.steps(100)
    verdict = of_last_minute(applied(run.events))
    assert (verdict.cause, verdict.request_id) == ("reserved_blocks", "greedy")
    assert "greedy may still generate 2,899 tokens (max_tokens)" in verdict.sentence


def test_a_burst_of_aborts_wasted_its_tokens() -> None:
    run = SimulatedScheduler()
    requests = [run.add(f"r{number}", 50, 100) for number in range(4)]
    run.steps(30)
    for request in requests[1:]:
        run.abort(request)
    run.run_out()
    verdict = of_last_minute(applied(run.events))
    assert verdict.cause == "aborted"
    assert "3 aborted requests had 237 of" in verdict.sentence


def test_a_load_that_takes_longer_than_computing_is_named() -> None:
    run = SimulatedScheduler()
    for number in range(12):
        run.add(f"r{number}", 30 + 10 * number, 10)
        run.steps(3)
    loaded = run.add("loaded", 161, 5, status=REMOTE)
    run.load(loaded, 10)
    run.steps(20, gap=0.2)
    run.park(loaded, "")
    run.run_out()
    verdict = of_whole(applied(run.events))
    assert any("KV loads took" in note for note in verdict.notes)


@pytest.mark.parametrize(("num_running", "host"), [(1, {"host": 0.5}), (0, {})])
def test_the_host_delays_only_what_runs(num_running: int, host: dict[str, float]) -> None:
    """Two steps of half a second, with half a second in between in which the others wait."""
    figures = stats(num_running=num_running, num_waiting=1, num_decode_tokens=1)
    run: list[Event] = [engine_info(), *(step(number, stats=figures) for number in range(2))]
    sums = applied(run).limits.sums
    assert {key: sums[key] for key in ("busy", "steps", "step_time", "tokens")} == {
        "busy": 1.5,
        "steps": 2.0,
        "step_time": 1.0,
        "tokens": 2.0,
    }
    assert {key: sums[key] for key in sums if key == "host"} == host


@pytest.mark.parametrize(("seconds", "is_waste"), [(25.9, False), (26.0, True)])
def test_steps_without_a_graph_are_a_waste_if_they_take_much_longer(
    seconds: float, is_waste: bool
) -> None:
    sums = {"eager_steps": 20.0, "eager_time": seconds, "eager_tokens": 40.0}
    sums |= {"graph_steps": 20.0, "graph_time": 20.0, "graph_tokens": 60.0}
    waste = verdicts._eager(sums, 52.0)
    assert (waste is not None) is is_waste
    if waste is not None:
        assert waste.share == 0.5
        assert waste.text == (
            "50% of the time in decode steps without a CUDA graph: 1.30 s a step of 2 tokens,"
            " 1.00 s with one (3 tokens)"
        )


def test_waiting_since_no_time_is_not_counted() -> None:
    state = applied([engine_info(), arrival(0)])
    assert [*state.in_queue] == ["req-0"]
    assert sums_at(state, 10.0) == state.limits.sums == {}
    other = arrival(1)
    other.arrival_time = 0.0
    state.apply(other)
    assert len(state.in_queue) == 2
    assert state.limits.sums == {}


def test_the_causes_of_all_waiting_are_limited() -> None:
    known = {f"{WAITED}{number}": 1.0 for number in range(MAX_CAUSES_OF_ALL - 1)}
    sums = add_waited(known, {"0": 1, "new": 1, "one too many": 2}, 0.5)
    more = {key: sums[key] - known.get(key, 0.0) for key in sums}
    assert {key: seconds for key, seconds in more.items() if seconds} == {
        f"{WAITED}0": 0.5,
        f"{WAITED}new": 0.5,
        f"{WAITED}other": 1.0,
    }


@pytest.mark.parametrize(
    ("cause", "culprit", "request_id"),
    [
        ("no_blocks", "req-1 holds 6 of 10", "req-1"),
        ("token_budget", "req-1 took 60 of 100 in the last step", "req-1"),
        ("reserved_blocks", "", None),  # no request says how many tokens it may generate
    ],
)
def test_the_head_of_the_queue_holds_nothing_of_what_it_waits_for(
    cause: WaitCause, culprit: str, request_id: str | None
) -> None:
    arrivals = [arrival(number) for number in (1, 2, 3)]
    for arrived in arrivals:
        arrived.arrival_time = 100.0
    run: list[Event] = [engine_info(num_gpu_blocks=10, max_num_batched_tokens=100), *arrivals]
    figures = stats(num_running=2, num_waiting=1, num_prefill_tokens=80, num_used_blocks=8)
    for number in range(2):
        groups = [
            full("req-1", 1, chunk=60, block_tables={1: [*range(6)]}),
            full("req-2", 2, chunk=20, block_tables={2: [6, 7]}),
        ]
        runs = [update(seq_id, SequenceStatus.RUNNING) for seq_id in (1, 2)]
        reason = wait_reason("req-3", cause, 2)
        run.append(step(number, *groups, sequences=runs, wait_reasons=[reason], stats=figures))
    verdict = of_last_minute(applied(run))
    assert (verdict.cause, verdict.culprit, verdict.request_id) == (cause, culprit, request_id)


def test_of_several_holders_three_are_named_and_the_lowest_priority_number() -> None:
    run = field_cases.ByPriority(max_num_seqs=4, queue_order="priority", num_gpu_blocks=4000)
    for number, priority in enumerate((10, 20, 30, 40)):
        run.add(f"batch{number}", 60, 700, priority=priority)
    run.steps(5)
    run.add("vip", 60, 20, priority=-5)
    run.steps(20)
    sentence = of_last_minute(applied(run.events)).sentence
    assert "for 4 requests of lower priority (10: batch0, batch1, batch2 and 1 more)" in sentence


def test_a_cause_of_little_waiting_is_not_named() -> None:
    run = SimulatedScheduler(max_num_seqs=1)
    run.add("runs", 16, 10_000)
    run.step()
    run.add("waits", 16, 10)
    loads = run.add("loads", 16, 10, status=REMOTE)
    start = run.now
    while run.now < start + 0.1:
        run.step()
    run.park(loads, "")
    while run.now < start + 10:
        run.step()
    verdict = of_last_minute(applied(run.events))
    assert verdict.cause == "seq_limit"
    assert "KV connector" not in verdict.sentence


@pytest.mark.parametrize(
    ("ended", "culprit"),
    [
        ({1: [*range(6)]}, "1 ended request (req-1) holds 6 of 10"),
        ({1: [0, 1, 2], 2: [3, 4]}, "2 ended requests (req-1, req-2) hold 5 of 10"),
    ],
)
def test_requests_that_have_ended_hold_half_of_the_pool(
    ended: dict[int, list[int]], culprit: str
) -> None:
    run: list[Event] = [engine_info(num_gpu_blocks=10, num_reserved_blocks=0)]
    for number in (*ended, 3):
        run.append(arrived := arrival(number))
        arrived.arrival_time = 100.0
    figures = stats(num_waiting=1, num_used_blocks=sum(map(len, ended.values())))
    reason = wait_reason("req-3", "no_blocks", 9)
    for number, status in enumerate(
        [SequenceStatus.RUNNING, *[SequenceStatus.FINISHED_STOPPED] * 2]
    ):
        updates = [update(seq_id, status, table=table) for seq_id, table in ended.items()]
        run.append(step(number, sequences=updates, wait_reasons=[reason], stats=figures))
    verdict = of_last_minute(applied(run))
    assert (verdict.culprit, verdict.request_id) == (culprit, "req-1")


def test_aborts_before_the_first_token_waste_nothing() -> None:
    run = SimulatedScheduler(max_num_seqs=0)
    requests = [run.add(f"r{number}", 50, 100) for number in range(3)]
    run.steps(30)
    for request in requests:
        run.abort(request)
    run.steps(30)
    assert "aborted" not in of_last_minute(applied(run.events)).sentence


@pytest.mark.parametrize(("num_slots", "is_full"), [(1, True), (0, False), (2, False)])
def test_an_encoder_cache_is_full(num_slots: int, *, is_full: bool) -> None:
    state = applied([engine_info(encoder_cache_size=num_slots)])
    state.apply(step(1, stats=stats(num_used_encoder_slots=min(num_slots, 1))))
    assert is_encoder_cache_full(state) is is_full


def test_the_request_that_others_waited_for_longest_is_named() -> None:
    state = applied([engine_info(), *(arrival(number) for number in range(1, 4))])
    for number, harm in ((1, 2.0), (2, 5.0), (3, 3.0)):
        state.requests[f"req-{number}"].harm = harm
    assert verdicts._waited_for(state).request_id == "req-2"


def test_a_load_takes_no_more_than_all_of_the_time() -> None:
    sums = {"busy": 4.0, "steps": 100.0, "load": 6.0, "load_computed": 0.5}
    wastes = {waste.key: waste for waste in verdicts._wastes(EngineState(), sums)}
    assert {key: waste.share for key, waste in wastes.items()} == {"slow_load": 1.0}
