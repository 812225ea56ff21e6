"""The contents of a report: what is read from a recording, before it is written as a page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from seqtop.checks.report import sentence
from seqtop.checks.rules import RULES
from seqtop.checks.stream_checker import StreamChecker
from seqtop.explain.explanation import explain
from seqtop.explain.report import describe, headline
from seqtop.export.lifecycle import EngineRun, RecordedStep, RequestLifecycle, read_runs
from seqtop.history import FileStore
from seqtop.history.replay import Replay
from seqtop.history.step_series import Interval, StepSeries
from seqtop.sequence import latency
from seqtop.state.groups import PREFIX, Group, group_by
from seqtop.state.model import EngineData
from seqtop.state.slo import Slo, missed
from seqtop.state.step_summary import describe_cause, describe_preemption
from seqtop.state.verdict import of_whole
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo

NUM_INTERVALS = 300
"""The intervals into which the charts divide the recorded time."""
MAX_SLOW = 10
"""The slowest requests that are explained: each is read again from its arrival on."""
MAX_PREEMPTIONS = 20
MAX_FINDINGS = 20
MAX_GROUPS = 30
MAX_CHECKED = 10_000
"""The first events of a recording, which are checked: about three seconds."""
_MAX_PARTS = 4
"""The longest parts of a slow request's time that are described."""
_MAX_ROWS = 1_000_000
"""The rows of the series of steps: three for a step, 110 MB."""


class ExplainedRequest(msgspec.Struct):
    """One of the slowest requests, with sentences on its time."""

    lifecycle: RequestLifecycle
    seconds: float
    """Its end-to-end latency."""
    headline: str
    parts: list[str]
    """The longest parts of its time, the longest first."""


class RecordedPreemption(msgspec.Struct):
    """A preemption in a sentence."""

    time: float
    """The start of its step, epoch seconds."""
    step: int
    text: str
    num_lost_tokens: int


class GroupTable(msgspec.Struct):
    """The groups of the requests of the last run."""

    key: str
    groups: list[Group]
    """The groups, those with the most blocks first.

    Blocks, and running and waiting sequences, are those after `step`; the rest is of the whole
    run."""
    step: int | None
    """The step after which most blocks were in use; `None` without any step."""
    num_used_blocks: int | None
    """The blocks that were in use then."""


class Share(msgspec.Struct):
    """The part of the steps whose batch was limited by one cause."""

    label: str
    num_steps: int
    seconds: float
    """The sum of the durations of these steps."""


class CheckSummary(msgspec.Struct):
    """The findings of the rules of `seqtop.checks` in the first events."""

    num_steps: int
    """The steps that were checked."""
    is_whole: bool
    """True if these are all steps of the recording."""
    counts: list[tuple[str, int]]
    """The violation of each broken rule in a sentence, with its number."""
    sentences: list[str]
    """The first findings."""
    problem: str | None
    """A sentence on what could not be read; `None` if everything could."""


class Contents(msgspec.Struct):
    """All that a report shows of one recording. Times are epoch seconds."""

    name: str
    """The file's name, without its directory."""
    info: EngineInfo | None
    """The engine at its last start."""
    runs: list[EngineRun]
    """The recorded requests and steps, by starts of the engine."""
    start: float
    """The start of the first recorded step."""
    end: float
    intervals: list[Interval]
    gaps: list[tuple[float, str]]
    """The time of each gap, and a sentence on it."""
    damage: str | None
    slowest: list[ExplainedRequest]
    preemptions: list[RecordedPreemption]
    """All recorded preemptions, those that lost most tokens first."""
    findings: CheckSummary
    verdict: str
    """A sentence on what limited the engine in the last run, and who."""
    groups: GroupTable
    slo: Slo
    num_met: int
    """Finished requests that met all objectives of `slo`."""

    @property
    def lifecycles(self) -> list[RequestLifecycle]:
        """All requests, in the order of their arrivals."""
        return sorted(
            (lifecycle for run in self.runs for lifecycle in run.requests.values()),
            key=lambda lifecycle: lifecycle.request.metrics.arrival_time,
        )

    @property
    def steps(self) -> list[RecordedStep]:
        """All recorded steps."""
        return [step for run in self.runs for step in run.steps]

    @property
    def duration(self) -> float:
        """Seconds from the start of the first recorded step to the end of the last one.

        0 if no clock can have measured them.
        """
        seconds = self.end - self.start
        return seconds if 0 < seconds < math.inf else 0.0

    def limits(self) -> list[Share]:
        """Returns the shares of the steps by what limited their batches, the largest first."""
        shares: dict[str, Share] = {}
        for step in self.steps:
            label = describe_cause(step.limited_by)
            share = shares.setdefault(label, Share(label, 0, 0.0))
            share.num_steps += 1
            share.seconds += _duration(step)
        return sorted(shares.values(), key=lambda share: -share.num_steps)

    def outcomes(self) -> Counter[str]:
        """Returns the number of requests by finish reason, and of those that are `unfinished`."""
        return Counter(
            lifecycle.request.finish_reason or "unfinished"
            for run in self.runs
            for lifecycle in run.requests.values()
        )

    def samples(self) -> dict[str, list[float]]:
        """Returns sorted samples in seconds by figure, a key of `seqtop.state.slo.FIGURES`.

        The ITL has a sample for each gap between two tokens, the others one for each request for
        which they are known. TPOT and E2E are of requests that ended by `stop` or `length`.
        """
        samples: dict[str, list[float]] = {
            "ttft": [],
            "itl": [],
            "tpot": [],
            "queue": [],
            "e2e": [],
        }
        for lifecycle in self.lifecycles:
            request, metrics = lifecycle.request, lifecycle.request.metrics
            samples["ttft"] += _known(latency.ttft(metrics))
            samples["queue"] += _known(metrics.time_in_queue)
            if is_served(lifecycle):
                num_tokens = len(lifecycle.sequences[0].output_token_ids)
                samples["tpot"] += _known(latency.itl(metrics, num_tokens))
                samples["e2e"] += _known(latency.e2e_latency(request.metrics))
        for run in self.runs:
            samples["itl"] += [gap for gap in run.token_gaps if 0 <= gap < math.inf]
        return {key: sorted(values) for key, values in samples.items()}

    def lengths(self) -> dict[str, list[float]]:
        """Returns the sorted numbers of tokens of prompts and of outputs of finished requests."""
        lifecycles = self.lifecycles
        prompts = [float(lifecycle.request.num_prompt_tokens) for lifecycle in lifecycles]
        outputs = [
            float(len(sequence.output_token_ids))
            for lifecycle in lifecycles
            if is_served(lifecycle)
            for sequence in lifecycle.sequences
        ]
        return {"prompt": sorted(prompts), "output": sorted(outputs)}


def is_served(lifecycle: RequestLifecycle) -> bool:
    """Returns whether a request ended with a complete output."""
    return lifecycle.request.finish_reason in {"stop", "length"} and bool(lifecycle.sequences)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Returns the smallest of sorted values that at least `percent` percent do not exceed."""
    return values[max(math.ceil(len(values) * percent / 100) - 1, 0)] if values else None


def read(recording: FileStore, slo: Slo, by: str = PREFIX) -> Contents:
    """Reads a recording.

    Args:
        recording: The recording.
        slo: The objectives.
        by: What requests are grouped by: one of `LASTING_KEYS`, or an expression.

    Raises:
        RecordingError: The recording cannot be read.
        GroupKeyError: There is no such key.
    """
    runs = read_runs(recording)
    series = StepSeries(recording, max_rows=_MAX_ROWS)
    while not series.update():
        pass
    lifecycles = [lifecycle for run in runs for lifecycle in run.requests.values()]
    return Contents(
        name=Path(recording.path).name,
        info=next((run.info for run in reversed(runs) if run.info), None),
        runs=runs,
        start=series.start,
        end=series.end,
        intervals=list(_intervals(series)),
        gaps=[(recording.index[gap.position].time, str(gap)) for gap in recording.gaps],
        damage=recording.damage,
        slowest=_slowest(recording, lifecycles),
        preemptions=sorted(
            _preemptions(lifecycles),
            key=lambda preemption: (-preemption.num_lost_tokens, preemption.time),
        ),
        findings=_check(recording),
        verdict=of_whole(
            recording.at(recording.last), recording.index[recording.first].time
        ).sentence,
        groups=_groups(recording, runs[-1], by),
        slo=slo,
        num_met=sum(_met(lifecycle, slo) for lifecycle in lifecycles),
    )


def _met(lifecycle: RequestLifecycle, slo: Slo) -> bool:
    """Returns whether a request got a complete output and missed no objective."""
    return is_served(lifecycle) and not any(
        missed(slo, lifecycle.request, sequence, lifecycle.until)
        for sequence in lifecycle.sequences
    )


def _intervals(series: StepSeries) -> Iterator[Interval]:
    length = (series.end - series.start) / NUM_INTERVALS
    for number in range(NUM_INTERVALS if 0 < length < math.inf else 0):
        start = series.start + number * length
        yield series.between(start, start + length)


def _slowest(
    recording: FileStore, lifecycles: Iterable[RequestLifecycle]
) -> list[ExplainedRequest]:
    """Returns the finished requests with the largest end-to-end latencies, explained."""
    times = [
        (seconds, lifecycle)
        for lifecycle in lifecycles
        if is_served(lifecycle)
        for seconds in _known(latency.e2e_latency(lifecycle.request.metrics))
    ]
    times.sort(key=lambda pair: -pair[0])
    slowest = []
    for seconds, lifecycle in times[:MAX_SLOW]:
        explanation = explain(recording, lifecycle.request, recording.last)
        parts = sorted(explanation.parts(), key=lambda part: -part.seconds)[:_MAX_PARTS]
        sentences = [
            f"{fmt.seconds(part.seconds)} ({fmt.percent(part.seconds, seconds)}) {part.kind}"
            + (f": {text}" if (text := describe(part, lifecycle.request.request_id)) else "")
            for part in parts
        ]
        slowest.append(ExplainedRequest(lifecycle, seconds, headline(explanation), sentences))
    return slowest


def _preemptions(lifecycles: Iterable[RequestLifecycle]) -> Iterator[RecordedPreemption]:
    for lifecycle in lifecycles:
        for time, (step, preemption) in lifecycle.observations.preemptions.items():
            text = describe_preemption(preemption)
            yield RecordedPreemption(time, step, text, preemption.num_lost_tokens)


def _groups(recording: FileStore, run: EngineRun, key: str) -> GroupTable:
    ended = EngineData()
    for lifecycle in run.requests.values():
        ended.requests[lifecycle.request.request_id] = lifecycle.request
        ended.sequences |= {sequence.seq_id: sequence for sequence in lifecycle.sequences}
        ended.time = max(ended.time, lifecycle.until)
    groups = {group.name: group for group in group_by(ended, key)}
    for group in groups.values():
        group.num_blocks = group.num_running = group.num_waiting = 0
    if not run.steps:
        return GroupTable(key, [*groups.values()], None, None)
    fullest = max(run.steps, key=lambda step: step.stats.num_used_blocks)
    state = recording.at(recording.index.at_step(fullest.step, near=recording.last))
    for then in group_by(state, key):
        if (known := groups.get(then.name)) is not None:
            known.num_blocks = then.num_blocks
            known.num_running, known.num_waiting = then.num_running, then.num_waiting
    ranked = sorted(
        groups.values(), key=lambda group: (-group.num_blocks, -group.num_output_tokens, group.name)
    )
    num_used = None if state.stats is None else state.stats.num_used_blocks
    return GroupTable(key, ranked, state.step, num_used)


def _check(recording: FileStore) -> CheckSummary:
    last = recording.first + MAX_CHECKED
    checker = StreamChecker(stored="first")
    replay = Replay(recording, [checker], last=last)
    replay.advance(math.inf)
    is_whole = recording.last <= last
    if is_whole:
        checker.end()
    counts = [(f"{RULES[rule].violation} ({rule})", n) for rule, n in checker.counts().items()]
    sentences = [sentence(located.finding) for located in checker.findings()[:MAX_FINDINGS]]
    problem = next(iter(replay.errors), None)
    return CheckSummary(checker.num_steps, is_whole, counts, sentences, problem)


def _duration(step: RecordedStep) -> float:
    seconds = step.time - step.start_time
    return seconds if 0 <= seconds < math.inf else 0.0


def _known(seconds: float | None) -> list[float]:
    """Returns a list of a duration, or an empty one if no clock can have measured it."""
    return [seconds] if seconds is not None and 0 <= seconds < math.inf else []
