"""Headlines of a run: the drops and spikes of its throughput, with the causes that were observed.

Throughput is the number of tokens a step times the number of steps a second. So a change of it has
shares: that of the batch, and that of each part of the time from step to step
(`seqtop.state.step_costs.TIME_PARTS`). The shares are measured and add up to the change. The
requests to name are read from the steps of the change, and those that hold what others wait for
from the state after them (`seqtop.state.holdings`). Prefills are named for a longer step only if
the costs of their tokens explain it (`seqtop.state.step_costs`). Where nothing of that explains it,
the headline says so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Literal, TypeAlias, cast

import msgspec

from seqtop.history.step_series import Interval, StepSeries
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState, holdings
from seqtop.state.step_costs import TIME_PARTS, has_graph
from seqtop.state.wait_causes import CAUSES, head_reason
from seqtop.state.wait_graph import queue_head
from seqtop.text import format as fmt
from seqtop.wire import parsing
from seqtop.wire.batch import members
from seqtop.wire.errors import WireError
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import Preemption, Step
from seqtop.wire.snapshot import StepCosts

Direction: TypeAlias = Literal["fell", "rose"]

BATCH = "batch"
"""The share of the number of tokens a step."""
UNKNOWN = "unknown"
"""The share of time that no part takes."""
_DROP, _SPIKE = 0.7, 1.5
"""The throughput, as a share of that before, from which on it is a drop or a spike."""
_BEFORE = 3
"""The windows before a change that it is compared with."""
_MAX_WINDOWS = 120
_LEAST_WINDOW = 0.5
_STEPS_PER_WINDOW = 8
_LEAST_SHARE = 0.3
"""The share of a change from which on a cause is named."""
_SAME = 0.1
"""The relative difference of two throughputs that count as the same."""
_LIKE = 1.25
"""The ratio from which on a figure counts as larger."""
_BEND_TIMES = 200
"""The times at which the beginning of a change is looked for."""
_LEAST_EAGER = 0.5
"""The share of steps from which on they count as steps without a CUDA graph."""
_MAX_STEPS = 64
"""The steps that are read for the names of a change."""
_SHORTLY = 2.0
"""Seconds after the steps of a change in which a holder is that of its time."""
COMPARED_SECONDS = 600.0
"""The time between the windows that are compared for `compare`."""
_WINDOW_SECONDS = 60.0
_LEAST_COMPARED = 10.0

_PART_WORDS = {
    "scheduler": "the scheduler",
    "forward": "the forward pass",
    "execute": "the model's execution beside the forward pass",
    "rest": "the rest of a step",
    "host": "the host between steps",
    "paced": "waiting on purpose between steps",
    "idle": "time without any request",
}


class Change(msgspec.Struct, frozen=True):
    """A change of the throughput."""

    time: float
    """The time at which it begins, epoch seconds."""
    direction: Direction
    before: Interval
    after: Interval

    @property
    def shares(self) -> dict[str, float]:
        """The share of each cause in the change, the largest first; empty if there is none."""
        return change_shares(self.before, self.after)


class Observed(msgspec.Struct):
    """The requests that the steps of a change name."""

    step: int | None = None
    """The first of these steps."""
    prefills: Counter[str] = msgspec.field(default_factory=Counter)
    """Prefill tokens by request."""
    num_chunks: Counter[str] = msgspec.field(default_factory=Counter)
    preemption: Preemption | None = None
    """The first preemption."""
    preemption_step: int | None = None
    num_preemptions: int = 0
    waits: Counter[str] = msgspec.field(default_factory=Counter)
    """Steps by the cause for which the head of the queue waited."""
    graphs: Counter[bool] = msgspec.field(default_factory=Counter)
    """Steps with and without a CUDA graph, where the engine reports it."""
    graphs_before: Counter[bool] = msgspec.field(default_factory=Counter)
    """The same before the change."""
    num_tokens: int = 0
    """Tokens of the steps that `graphs` counts."""
    holder: str = ""
    """The largest holder of what the head of the queue waited for, with the amount."""
    costs: StepCosts = StepCosts()
    """The costs of tokens after the last of these steps."""


def find_changes(series: StepSeries, start: float, end: float) -> list[Change]:
    """Returns the drops and spikes of the throughput between two times, oldest first.

    Args:
        series: The steps.
        start: The start, epoch seconds.
        end: The end, epoch seconds.
    """
    start, end = max(start, series.start), min(end, series.end)
    length = end - start
    if not 0 < length < math.inf:
        return []
    window = max(_LEAST_WINDOW, _STEPS_PER_WINDOW * series.step_length(), length / _MAX_WINDOWS)
    # At multiples of the window, so that a change stays where it is while time passes.
    first = math.ceil(start / window)
    times = [window * number for number in range(first, math.floor(end / window) + 1)]
    sums = series.sums_at("generated", times)
    amounts = [later - earlier for earlier, later in itertools.pairwise(sums)]
    changes: list[Change] = []
    known_from = 0
    for index in range(_BEFORE, len(amounts)):
        if index - known_from < _BEFORE:
            continue
        usual = sum(amounts[index - _BEFORE : index]) / _BEFORE
        now = amounts[index]
        if not (now < _DROP * usual or now > _SPIKE * usual):
            continue
        bend = _bend(series, times[index] - window, times[index] + window)
        before = series.between(bend - _BEFORE * window, bend)
        at = bend + 2 * window / _BEND_TIMES  # surely after it
        until = min(at + window, end)
        # The largest gauges are those of the second half: the first still has what was before.
        gauges = series.between((at + until) / 2, until).gauges
        after = series.between(at, until)._replace(gauges=gauges)
        changes.append(Change(at, "fell" if now < usual else "rose", before, after))
        known_from = index
    return changes


def _bend(series: StepSeries, start: float, end: float) -> float:
    """Returns the time at which the sum of tokens has bent most between two times."""
    times = [start + (end - start) * number / _BEND_TIMES for number in range(_BEND_TIMES + 1)]
    sums = series.sums_at("generated", times)
    slope = (sums[-1] - sums[0]) / _BEND_TIMES
    distances = [abs(own - sums[0] - slope * number) for number, own in enumerate(sums)]
    return times[distances.index(max(distances))]


def change_shares(before: Interval, after: Interval) -> dict[str, float]:
    """Returns the share of each cause in the change of the throughput, the largest first.

    The shares add up to 1. Empty without a change, and if one of the intervals has no steps.
    """
    first, second = before.rate("generated"), after.rate("generated")
    steps = before.sums["steps"], after.sums["steps"]
    if min(first, second) <= 0 or min(steps) <= 0 or first == second:
        return {}
    total = math.log(second / first)
    batch = math.log((after.sums["generated"] / steps[1]) / (before.sums["generated"] / steps[0]))
    periods = before.seconds / steps[0], after.seconds / steps[1]
    shares = {BATCH: batch / total}
    longer = periods[1] - periods[0]
    if longer:
        of_time = 1.0 - shares[BATCH]
        left = longer
        for part in TIME_PARTS:
            more = after.sums[part] / steps[1] - before.sums[part] / steps[0]
            left -= more
            shares[part] = of_time * more / longer
        shares[UNKNOWN] = of_time * left / longer
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def observe(timeline: Timeline, change: Change, live: EngineState | None = None) -> Observed:
    """Reads whom the steps of a change name.

    Args:
        timeline: The timeline.
        change: The change.
        live: The state of an engine that runs. It stands for the state after the steps, as it takes
            half a second to restore that of 10,000 sequences; a holder is named only if it is of
            the time shortly after the steps. `None` to restore the state.
    """
    observed = Observed()
    index, end = timeline.index, change.time + change.after.seconds
    start, stop = index.at_time(change.time), index.at_time(end)
    last = start
    try:
        for position, payload in itertools.islice(_steps(timeline, start, stop), _MAX_STEPS):
            _add_step(observed, cast(Step, parsing.event(payload)))
            last = position
        state = timeline.at(last) if live is None else live
        observed.costs = state.step_costs
        if live is None or live.time <= end + _SHORTLY:
            observed.holder = _holder(state)
        start = index.at_time(change.time - change.before.seconds)
        for _, payload in _steps(timeline, start, index.at_time(change.time)):
            outline = parsing.step_outline(payload)
            if outline is not None and (has := has_graph(outline.stats)) is not None:
                observed.graphs_before[has] += 1
                if observed.graphs_before.total() >= _MAX_STEPS:
                    break
    except (RecordingError, WireError):
        pass  # what could not be read is not observed
    return observed


def _steps(timeline: Timeline, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yields the steps after `start` up to `stop`, encoded, with their positions."""
    for position, payload in timeline.payloads(start, stop):
        if payload is not None and tag(payload) == "Step":
            yield position, payload


def _add_step(observed: Observed, step: Step) -> None:
    if observed.step is None:
        observed.step = step.step
    for member in members(step):
        if member.is_prompt:
            observed.prefills[member.request_id] += member.num_tokens
            observed.num_chunks[member.request_id] += 1
    if step.stats.cuda_graph is not None:
        observed.graphs[bool(has_graph(step.stats))] += 1
        observed.num_tokens += step.stats.cuda_graph.num_tokens
    if step.preemptions and observed.preemption is None:
        observed.preemption, observed.preemption_step = step.preemptions[0], step.step
    observed.num_preemptions += len(step.preemptions)
    if (head := head_reason(step.wait_reasons)) is not None:
        observed.waits[head.cause] += 1


def _holder(state: EngineState) -> str:
    """Returns the largest holder of what the head of the queue waits for, with the amount."""
    head = queue_head(state)
    request = None if head is None else head.request
    if request is None or request.wait_reason is None:
        return ""
    cause = request.wait_reason.cause
    held = holdings.amounts(state, cause, request.lora) if cause in holdings.HELD else {}
    held.pop(request.request_id, None)
    for name, amount in held.items():
        unit = CAUSES[cause].unit or "sequence slot"
        return f"{name} held {fmt.plural(amount, unit)}"
    return ""


def headline(change: Change, observed: Observed) -> str:
    """Returns a sentence on a change: the figures, and the cause as far as it was observed."""
    before, after = change.before.rate("generated"), change.after.rate("generated")
    return (
        f"Output {change.direction} from {fmt.rate(before)} to {fmt.rate(after)} tok/s:"
        f" {_cause(change, observed)}."
    )


def _cause(change: Change, observed: Observed) -> str:
    shares = change.shares
    if not change.after.sums["steps"]:
        return "no step ended"
    if not change.after.sums["generated"]:
        prefills = _prefills(observed)
        return f"no step generated a token{f'; {prefills}' if prefills else ''}"
    if not shares:
        return "nothing had been generated before"
    main = next(iter(shares))
    if shares[main] < _LEAST_SHARE or main == UNKNOWN:
        return "cause not observed"
    share = fmt.percent(min(shares[main], 1.0))
    if main == BATCH:
        return f"{_batch(change, observed)}; this makes {share} of the change"
    return f"{_part(change, main, observed)}; this makes {share} of the change"


def _batch(change: Change, observed: Observed) -> str:
    """Describes the number of tokens a step, and why it has changed."""
    first, second = (
        own.sums["generated"] / own.sums["steps"] for own in (change.before, change.after)
    )
    text = f"{second:.1f} tokens a step, {first:.1f} before"
    ran, runs = (own.gauges.get("running") for own in (change.before, change.after))
    if change.direction == "fell":
        if observed.preemption is not None:
            own = observed.preemption
            by = f" for {own.for_request_id}" if own.for_request_id else ""
            more = observed.num_preemptions - 1
            others = f" and {more} more" if more else ""
            return f"{text}; {own.request_id} was preempted{by}{others}"
        prefills = _prefills(observed)
        if prefills and change.after.rate("prefill") > _LIKE * change.before.rate("prefill"):
            return f"{text}; {prefills}"
        if ran is not None and runs is not None and runs < ran:
            return f"{text}; {_fewer(observed, ran, runs)}"
        if observed.waits:
            return f"{text}; {_waiting(observed)}"
    elif ran is not None and runs is not None and runs > ran:
        return f"{text}; {_ran(ran, runs)}"
    return f"{text}; cause not observed"


def _fewer(observed: Observed, before: float, after: float) -> str:
    text = _ran(before, after)
    return f"{text}, and {_waiting(observed)}" if observed.waits else f"{text}, and none waited"


def _ran(before: float, after: float) -> str:
    return f"{fmt.plural(int(after), 'sequence')} ran, {before:,.0f} before"


def _waiting(observed: Observed) -> str:
    cause, _ = observed.waits.most_common(1)[0]
    holder = f"; {observed.holder}" if observed.holder else ""
    return f"others waited ({CAUSES[cause].label}{holder})"


def _part(change: Change, part: str, observed: Observed) -> str:
    """Describes a part of the time from step to step, and what was in these steps."""
    first, second = (own.sums[part] / own.sums["steps"] for own in (change.before, change.after))
    text = f"{_PART_WORDS[part]} took {fmt.seconds(second)} a step, {fmt.seconds(first)} before"
    if part not in ("forward", "execute"):
        return text
    if graphs := _graphs(change, observed):
        return f"{text}, {graphs}"
    prefill = [own.sums["prefill"] / own.sums["steps"] for own in (change.before, change.after)]
    more = observed.costs.per_prefill_token * abs(prefill[1] - prefill[0])
    is_explained = observed.costs.per_step is None or more >= _LEAST_SHARE * abs(second - first)
    if is_explained and change.direction == "fell" and prefill[1] > _LIKE * prefill[0]:
        prefills = _prefills(observed)
        return f"{text}, with {prefills}" if prefills else text
    if is_explained and change.direction == "rose" and prefill[0] > _LIKE * prefill[1]:
        tokens = f"{fmt.rate(prefill[1])} prefill tokens a step, {fmt.rate(prefill[0])} before"
        return f"{text}, with {tokens}"
    return f"{text}; what made it so was not observed"


def _graphs(change: Change, observed: Observed) -> str:
    """Describes a change from steps with a CUDA graph to steps without, or back; else empty."""
    eager = [
        own[False] / own.total() if own.total() else None
        for own in (observed.graphs_before, observed.graphs)
    ]
    first, second = eager
    if first is None or second is None:
        return ""
    tokens = f"{observed.num_tokens / observed.graphs.total():.0f} tokens"
    if change.direction == "fell" and first < _LEAST_EAGER <= second:
        return f"without a CUDA graph for {tokens}, with one before"
    if change.direction == "rose" and second < _LEAST_EAGER <= first:
        return f"with a CUDA graph for {tokens}, without one before"
    return ""


def _prefills(observed: Observed) -> str:
    """Names the request with the most prefill tokens; empty without one."""
    if not observed.prefills:
        return ""
    name, tokens = observed.prefills.most_common(1)[0]
    others = len(observed.prefills) - 1
    chunks = fmt.plural(observed.num_chunks[name], "prefill chunk")
    more = f", and those of {others:,} more" if others else ""
    return f"{chunks} of {name} ({tokens:,} tokens{more})"


def compare(series: StepSeries, now: float) -> str:
    """Compares the throughput of the last minute with that of ten minutes ago, in a sentence.

    With the share of each cause in the difference. A run that is shorter is compared with its
    beginning. Empty if there is too little to compare.

    Args:
        series: The steps.
        now: The end of the last minute, epoch seconds.
    """
    end = min(now, series.end)
    recorded = end - series.start
    if not recorded >= 2 * _LEAST_COMPARED:
        return ""
    seconds = min(_WINDOW_SECONDS, recorded / 3)
    then = max(end - COMPARED_SECONDS, series.start + seconds)
    before, after = series.between(then - seconds, then), series.between(end - seconds, end)
    first, second = before.rate("generated"), after.rate("generated")
    ago = fmt.rough_time(end - then)
    figures = f"{fmt.rate(second)} tok/s in the last {fmt.rough_time(seconds)}, {fmt.rate(first)}"
    waiting = before.gauges.get("waiting"), after.gauges.get("waiting")
    queue = ""
    if None not in waiting and waiting[0] != waiting[1]:
        queue = f"; up to {waiting[1]:,.0f} waiting, {waiting[0]:,.0f} then"
    if not first:
        return f"{figures} {ago} before{queue}."
    ratio = second / first - 1
    if abs(ratio) <= _SAME:
        return f"The output is as it was {ago} ago: {figures} then{queue}."
    word = "slower" if ratio < 0 else "faster"
    shares = change_shares(before, after)
    causes, against = (
        [
            f"{_share_word(cause)} {fmt.percent(share)}"
            for cause, share in shares.items()
            if sign * share >= _SAME
        ]
        for sign in (1, -1)
    )
    why = f" (of the change: {', '.join(causes)}" if causes else ""
    why += f"; against it: {', '.join(against)}" if causes and against else ""
    return f"The output is {word} than {ago} ago: {figures} then{why}{')' if why else ''}{queue}."


def _share_word(cause: str) -> str:
    if cause == BATCH:
        return "tokens a step"
    return "unknown time" if cause == UNKNOWN else _PART_WORDS[cause]
