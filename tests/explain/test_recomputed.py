"""The parts of requests, compared with what each moment of their time is by the events alone."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest

from seqtop.explain.explanation import explain, find_request
from seqtop.state import RequestState
from seqtop.state.wait_causes import PASSED_OVER
from seqtop.wire.batch import members
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, RequestFinished, Step
from tests.explain.test_explanation import Recorded
from tests.support.random_runs import RandomRun


class Recomputed:
    """Tells what a request did at a moment, by a search through all events."""

    def __init__(self, events: Sequence[Event], request: RequestState) -> None:
        self.name = request.request_id
        arrived, ended = (
            next(
                index
                for index, event in enumerate(events)
                if isinstance(event, kind) and event.request_id == self.name
            )
            for kind in (RequestArrived, RequestFinished)
        )
        self.budget = next(event for event in events if isinstance(event, EngineInfo))
        self.steps = [event for event in events[:ended] if isinstance(event, Step)]
        before = [event.time for event in events[:arrived] if isinstance(event, Step)]
        self.joined = max([request.metrics.arrival_time, *before])

    def seconds(self, start: float, first_token: float | None, end: float) -> Counter[object]:
        times = {start, end} | {
            time for step in self.steps for time in (step.start_time, step.time)
        }
        times |= {first_token} if first_token is not None else set()
        seconds: Counter[object] = Counter()
        for begin, until in pairwise(sorted(time for time in times if start <= time <= end)):
            seconds[self.at((begin + until) / 2)] += until - begin  # type: ignore[assignment]
        return seconds

    def at(self, time: float) -> tuple[str, str]:
        wait, mode = "queued", ""
        for step in self.steps:
            if step.start_time > time:
                break
            for preemption in step.preemptions:
                if preemption.request_id == self.name:
                    mode = preemption.mode
                    wait = "swapped" if mode == "swap" else "preempted"
            if self._own(step):
                wait = ""
        now = [step for step in self.steps if step.start_time <= time < step.time]
        if now:
            return self._in_step(now[0], wait, mode)
        if all(step.time <= time for step in self.steps):
            return wait or "unknown", "in_progress"
        if not wait:
            return "host", ""
        if time < self.joined:
            return wait, "arriving"
        before = [step for step in self.steps if step.time <= time]
        cause = self._cause(before[-1]) if before else "unknown"
        return wait, cause if cause != "unknown" else "between_steps"

    def _own(self, step: Step) -> list[bool]:
        """By its sequences in the batch of a step: true if it computed a part of a prompt."""
        return [member.is_prompt for member in members(step) if member.request_id == self.name]

    def _in_step(self, step: Step, wait: str, mode: str) -> tuple[str, str]:
        if own := self._own(step):
            if own[0]:
                return "prefill", "recompute" if mode == "recompute" else ""
            has_prefills = any(member.is_prompt for member in members(step))
            return "decode", "mixed_batch" if has_prefills else ""
        if not wait:
            num_tokens = step.stats.num_prefill_tokens + step.stats.num_decode_tokens
            is_spent = num_tokens >= self.budget.max_num_batched_tokens
            return "unscheduled", "token_budget" if is_spent else "unknown"
        if step.start_time < self.joined:
            return wait, "arriving"
        return wait, self._cause(step)

    def _cause(self, step: Step) -> str:
        causes = {reason.request_id: reason.cause for reason in step.wait_reasons}
        heads = [cause for cause in causes.values() if cause not in PASSED_OVER]
        return causes.get(self.name, heads[0] if heads else "unknown")


@pytest.mark.parametrize(
    "seed",
    [0, 1, 2, *(pytest.param(n, marks=pytest.mark.release("many seeds")) for n in range(3, 50))],
)
def test_parts_are_those_of_each_moment(seed: int) -> None:
    run, viewer = RandomRun(seed), Recorded()
    viewer.publish(run.info())
    for _ in run.steps(viewer):
        pass
    history = viewer.history
    events = [event for _, event in history.events(0, history.last) if event is not None]
    assert viewer.state.finished
    for request in viewer.state.requests.values():
        located, metrics = find_request(history, request.request_id), request.metrics
        assert located is not None
        assert metrics.finished_time is not None
        expected = Recomputed(events, request).seconds(
            metrics.arrival_time, metrics.first_token_time, metrics.finished_time
        )
        seconds: Counter[object] = Counter()
        for part in explain(history, *located).parts():
            seconds[part.kind, part.cause] += part.seconds  # type: ignore[assignment]
        assert dict(seconds) == pytest.approx(dict(expected), abs=1e-6), request.request_id
