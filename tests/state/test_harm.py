"""Seconds by which requests delayed others, as the reducer adds them up."""

from typing import Any

import pytest
from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, snapshot
from seqtop.state.fields import FIELDS, harm
from seqtop.state.filter import parse
from seqtop.state.harm import StepHarm
from seqtop.wire.messages import Event, RequestArrived, Step, WaitCause
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot
from tests.support import events
from tests.support.events import wait_reason
from tests.support.scripted import STEP_TIME, Script, ScriptedSource


class _Lora(ScriptedSource):
    """Gives each request whose name ends with `+` an adapter."""

    def apply(self, event: Event) -> None:
        if isinstance(event, RequestArrived) and event.request_id.endswith("+"):
            event.lora = f"of {event.request_id}"
        super().apply(event)


@pytest.mark.parametrize(
    ("cause", "shares", "held"),
    [
        ("no_blocks", {"large+": 4 / 6, "small": 2 / 6}, 6 / 10),
        ("seq_limit", {"large+": 1 / 2, "small": 1 / 2}, 2 / 3),
        ("token_budget", {"large+": 60 / 80, "small": 20 / 80}, 80 / 100),
        ("lora_slots", {"large+": 1.0, "small": 0.0}, None),
        ("reserved_blocks", {"large+": 0.0, "small": 0.0}, None),
        ("paused", {"large+": 0.0, "small": 0.0}, None),
        ("unknown", {"large+": 0.0, "small": 0.0}, None),
    ],
)
def test_waits_are_charged_to_those_that_hold_what_is_waited_for(
    cause: WaitCause, shares: dict[str, float], held: float | None
) -> None:
    """Free amounts are held by the head of the queue for those behind it.

    `lora_slots` holds back the request itself, the other causes all behind it, too.
    """
    limits: dict[str, Any] = {"num_gpu_blocks": 10, "max_num_seqs": 3}
    script = Script(_Lora(), block_size=16, max_num_batched_tokens=100, **limits)
    for name, num_prompt in (("large+", 60), ("small", 20), ("next", 20), ("last", 20)):
        script.arrive(name, num_prompt=num_prompt)
    state = script.source.state
    before = max(script.time, state.blocked.until)
    script.step(prefill={"large+": 60, "small": 20}, waits=[wait_reason("next", cause)])
    seconds = state.time - before
    assert seconds == pytest.approx(STEP_TIME, abs=0.01)
    measured = {name: state.requests[name].harm or 0.0 for name in shares}
    both = seconds * (1.0 + (held or 0.0))
    assert measured == pytest.approx({name: both * share for name, share in shares.items()})
    leader = 0.0 if held is None else seconds * (1 - held)
    assert state.requests["next"].harm == pytest.approx(leader)
    assert state.requests["last"].harm == 0.0


class _Unnamed(ScriptedSource):
    """Uses two blocks that no table names."""

    def apply(self, event: Event) -> None:
        if isinstance(event, Step):
            event.stats.num_used_blocks += 2
            event.stats.num_free_blocks -= 2
        super().apply(event)


def test_nobody_is_charged_for_blocks_that_no_table_names() -> None:
    script = Script(_Unnamed(), block_size=16, num_gpu_blocks=10)
    for name, num_prompt in (("large", 60), ("small", 20), ("next", 20), ("last", 20)):
        script.arrive(name, num_prompt=num_prompt)
    state = script.source.state
    before = max(script.time, state.blocked.until)
    script.step(prefill={"large": 60, "small": 20}, waits=[wait_reason("next", "no_blocks")])
    seconds = state.time - before
    measured = {name: state.requests[name].harm for name in ("large", "small", "next", "last")}
    # The first waits for eight blocks that are used, and the last one for two more that are free.
    assert measured == pytest.approx(
        {
            "large": seconds * (4 / 8 + 4 / 10),
            "small": seconds * (2 / 8 + 2 / 10),
            "next": seconds * 2 / 10,
            "last": 0.0,
        }
    )


def _decoding(num_steps: int = 60) -> Script:
    """Two requests that decode, while a third one computes a chunk in every second step."""
    script = Script(ScriptedSource(), max_num_batched_tokens=4_096)
    for name, num_prompt in (("a", 8), ("b", 8), ("long", 2_000)):
        script.arrive(name, num_prompt=num_prompt)
    script.step(prefill={"a": 8, "b": 8})
    for number in range(num_steps):
        chunk = 30 * (number % 2)
        script.step(prefill={"long": chunk} if chunk else {}, seconds=0.01 + 0.002 * chunk)
    return script


def test_steps_that_its_tokens_make_longer_are_estimated_from_the_costs_of_tokens() -> None:
    state = _decoding().source.state
    costs = state.step_costs
    assert costs.per_prefill_token == pytest.approx(0.002, rel=0.1)
    long, short = state.requests["long"], state.requests["a"]
    # A chunk delays two others; those in the first twenty steps are not estimated.
    assert long.harm_estimated == pytest.approx(20 * 2 * 30 * 0.002, rel=0.15)
    assert long.harm == 0.0
    assert short.harm_estimated < 0.2 * long.harm_estimated
    sequence = state.sequences[long.seq_ids[0]]
    assert parse("harm>2s").matches(long, sequence, state.time)
    assert not parse("harm>2s").matches(short, sequence, state.time)
    assert FIELDS["harm"].descending


def test_an_estimate_is_never_more_than_the_step_took() -> None:
    script = _decoding()
    request = script.source.state.requests["long"]
    before, begin = request.harm_estimated, script.source.state.time
    script.step(prefill={"long": 900}, seconds=0.001)
    elapsed = script.source.state.time - begin
    assert 0 < request.harm_estimated - before <= 2 * elapsed


def test_a_second_prefill_is_charged_to_the_request_that_was_preempted_for() -> None:
    script = _decoding()
    state = script.source.state
    script.step(preempt={"a": "b"})
    before = {name: state.requests[name].harm_estimated for name in "ab"}
    script.step(prefill={"a": 60}, seconds=0.13)
    after = {name: state.requests[name].harm_estimated for name in "ab"}
    assert after["b"] - before["b"] > 60 * 0.002 * 0.9
    assert after["a"] - before["a"] < 2 * 0.13


@pytest.mark.parametrize(
    ("status", "known"),
    [(SequenceStatus.WAITING, 0.0), (SequenceStatus.RUNNING, None)],
)
def test_the_harm_of_a_request_that_ran_before_it_was_observed_is_unknown(
    status: SequenceStatus, known: float | None
) -> None:
    arrival = RequestArrived("r", arrival_time=1.0, seq_ids=[1], num_prompt_tokens=3)
    update = events.update(1, status, 3)
    whole = RequestSnapshot(arrival, [SequenceSnapshot(update)])
    state = EngineState()
    state.apply(Snapshot(time=2.0, step=4, stats=None, requests=[whole]))
    request = state.requests["r"]
    assert harm(request) == known
    assert FIELDS["harm"].sort_value(request, state.sequences[1], 2.0) == known


def test_a_late_viewer_goes_on_from_the_harm_that_the_publisher_knows() -> None:
    state = _decoding(40).source.state
    late = EngineState()
    late.apply(snapshot.take(state))
    assert harm(late.requests["long"]) == harm(state.requests["long"]) != 0
    assert late.step_costs == state.step_costs


def test_alone_in_a_batch_a_request_would_have_taken_its_own_part_of_the_step() -> None:
    state = EngineState()
    for event in (events.engine_info(), events.arrival(1), events.arrival(2)):
        state.apply(event)
    state.step_costs = replace(
        state.step_costs, per_step=0.1, per_prefill_token=0.01, per_decode_token=0.2
    )
    groups = [events.full("req-1", 1, chunk=10), events.full("req-2", 2, chunk=30)]
    both = StepHarm(state, events.step(1, *groups))
    assert both.seconds == 0.5
    assert both.alone("req-1") == pytest.approx(0.2, abs=0.001)
    assert both.alone("req-2") == pytest.approx(0.4, abs=0.001)
    assert StepHarm(state, events.step(1, groups[0])).alone("req-1") == 0.5
