"""The seconds of waits by cause: those of the live state are those of an explained latency.

`seqtop.state.waits` adds them up at each step, for each request and for all together.
`seqtop.explain.chain` has them as parts with positions.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from seqtop.explain.chain import Chain
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.limits import sums_at
from seqtop.state.wait_causes import CAUSES, IN_PROGRESS
from seqtop.state.waits import WAITED, wait_until
from seqtop.wire import parsing
from seqtop.wire.messages import Event, RequestFinished, Step, WaitCause
from tests.support.events import preemption, update, wait_reason
from tests.support.recordings import encoded
from tests.support.reducer_events import arrived, delta, full, metrics, step

WAITS = ("queued", "preempted", "swapped")
STATUSES = ("", "PREEMPTED", "WAITING_FOR_REMOTE_KVS", "FROZEN")
REQUESTS = {"a": 1, "b": 2, "c": 3}


def assert_equal_waits(events: Sequence[Event]) -> int:
    """Compares the waits of all requests at the end of `events`, and returns their number."""
    state = EngineState(max_finished=len(events))
    for event in events:
        state.apply(event)
    until = max(state.blocked.until, state.limits.until)
    total: Counter[str] = Counter()
    for request in state.requests.values():
        total.update(wait_until(state, request, until).by_cause)
        chain = Chain(request)
        for position, event in enumerate(events):
            if isinstance(event, RequestFinished) and event.request_id == request.request_id:
                chain.end()
            elif not chain.is_finished:
                chain.apply(position, event)
        last = None if chain.is_finished else chain.open_part(state.time)
        seconds: defaultdict[str, float] = defaultdict(float)
        for part in (*chain.parts, *([last] if last else [])):
            if part.kind in WAITS:
                seconds[part.cause] += part.seconds
        wait = wait_until(state, request, state.time)
        assert sum(seconds.values()) == pytest.approx(wait.total, abs=1e-6)
        explained = {cause: time for cause, time in seconds.items() if cause != "unknown"}
        for cause in {*explained, *wait.by_cause}:
            assert explained.get(cause, 0.0) == pytest.approx(
                wait.by_cause.get(cause, 0.0), abs=1e-6
            ), cause
    together, known = sums_at(state, until), 0.0
    for cause in given_by_engine({*total, *(key.removeprefix(WAITED) for key in together)}):
        more = together.get(WAITED + cause, 0.0) - total[cause]
        assert more > -1e-5, cause
        known += more
    # All together wait for the same as before since the last step, up to an abort.
    assert known <= total[IN_PROGRESS] + 1e-5
    return len(state.requests)


def given_by_engine(causes: set[str]) -> set[str]:
    """Returns the causes that a scheduler or an engine's own status gives."""
    return {cause for cause in causes if cause in CAUSES or cause in STATUSES} - {"unknown", ""}


@st.composite
def steps(draw: st.DrawFn) -> list[Event]:
    """Steps in which requests are admitted, preempted and left waiting, with any causes."""
    events: list[Event] = [arrived(name, seq_id) for name, seq_id in REQUESTS.items()]
    running: set[str] = set()
    computed = dict.fromkeys(REQUESTS, 0)
    now = 10.0
    for number in range(draw(st.integers(1, 12))):
        gap, paced = draw(st.sampled_from((0.0, 0.25, 1.0))), draw(st.sampled_from((0.0, 0.5)))
        end, start = now, now + gap
        now = start + draw(st.sampled_from((0.125, 0.5)))
        preempted = draw(st.sets(st.sampled_from(sorted(running)))) if running else set()
        waiting = sorted(REQUESTS.keys() - running | preempted)
        admitted = draw(st.sets(st.sampled_from(waiting))) if waiting else set()
        waiting = [name for name in draw(st.permutations(waiting)) if name not in admitted]
        updates, groups = [], []
        for name in sorted(running - preempted | admitted):
            seq_id = REQUESTS[name]
            computed[name] += 1
            is_new = name in admitted
            groups.append(
                full(name, seq_id, [seq_id], chunk=3)
                if is_new
                else delta(name, seq_id, [5], computed[name])
            )
            updates.append(update(seq_id, SequenceStatus.RUNNING, computed[name]))
        for name in waiting:
            status = draw(st.sampled_from(STATUSES))
            if name in preempted or status:
                computed[name] = 0
                updates.append(
                    update(REQUESTS[name], SequenceStatus.WAITING, 0, engine_status=status)
                )
        reasons = [
            wait_reason(name, draw(st.sampled_from(get_args(WaitCause))))
            for name in waiting
            if draw(st.booleans())
        ]
        event: Step = step(
            number,
            *groups,
            sequences=updates,
            wait_reasons=reasons,
            preemptions=[preemption(name) for name in sorted(preempted)],
        )
        stats = replace(event.stats, paced_time=paced)
        late = draw(st.sampled_from((None, 0.0, 0.125, 0.75)))
        if late is not None and number and late <= gap:
            events.append(replace(arrived(f"late {number}", 10 + number), arrival_time=end + late))
        events.append(replace(event, start_time=start, time=now, stats=stats))
        running = running - preempted | admitted
    name, end = draw(st.sampled_from(sorted(REQUESTS))), now + 0.25
    if draw(st.booleans()):
        aborted, times = SequenceStatus.FINISHED_ABORTED, metrics(finished_time=end)
        times.first_token_time = None
        events.append(RequestFinished(request_id=name, time=end, status=aborted, metrics=times))
    return events


@given(steps())
def test_with_any_causes(events: list[Event]) -> None:
    assert assert_equal_waits(events) >= len(REQUESTS)


@pytest.mark.parametrize(
    "seeds",
    [range(10), pytest.param(range(10, 300), marks=pytest.mark.release("many seeds"))],
    ids=["few", "many"],
)
def test_of_scripted_engines(seeds: range) -> None:
    """They swap, fork, and admit requests in the step that preempts them."""
    for seed in seeds:
        events = [parsing.event(payload) for payload in encoded(seed, 80, num_blocks=24)]
        assert assert_equal_waits(events) > 5
