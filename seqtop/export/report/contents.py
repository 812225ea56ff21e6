"""The contents of a report: what is read from a recording, before it is written as a page."""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from seqtop.checks.report import sentence
from seqtop.checks.rules import RULES
from seqtop.checks.stream_checker import StreamChecker
from seqtop.explain.explanation import Explanation, ExplanationsReader, finished_request
from seqtop.explain.report import headline, share_of
from seqtop.export.lifecycle import EngineRun, RecordedStep, RequestLifecycle, RunsReader
from seqtop.history import FileStore
from seqtop.history.event_index import EventKind
from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.step_series import Interval, SeriesReader, StepSeries
from seqtop.sequence import RequestMetrics, SequenceStatus, latency
from seqtop.state import EngineState, RequestState
from seqtop.state.fields import waited
from seqtop.state.groups import PREFIX, Group, group_by
from seqtop.state.model import EngineData
from seqtop.state.slo import Slo, missed
from seqtop.state.step_summary import describe_cause, describe_preemption
from seqtop.state.verdict import of_whole
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, RequestFinished, Step

NUM_INTERVALS = 300
"""The intervals into which the charts divide the recorded time."""
MAX_SLOW = 10
"""The slowest requests that are explained."""
MAX_UNFINISHED = 5
"""The unfinished requests that are explained: those that have waited longest."""
_LEAST_WAIT = 1.0
"""The seconds that they have waited, at least."""
MAX_PREEMPTIONS = 20
MAX_FINDINGS = 20
MAX_GROUPS = 30
MAX_CHECKED = 10_000
"""The first events of a recording, which are checked: about three seconds."""
_MAX_PARTS = 4
"""The longest parts of a slow request's time that are described."""
_SERVED = frozenset({"stop", "length"})
"""The finish reasons of requests with a complete output."""
_MAX_ROWS = 1_000_000
"""The rows of the series of steps: three for a step, 110 MB."""


class ExplainedRequest(msgspec.Struct):
    """One of the slowest requests, with sentences on its time."""

    lifecycle: RequestLifecycle
    seconds: float
    """Its end-to-end latency, or the time since its arrival if it has not ended."""
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
    unfinished: list[ExplainedRequest]
    """The requests without an end that have waited longest, the longest wait first."""
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

    def num_without(self, figure: str) -> int:
        """Returns the number of requests that had not ended, nor come so far as a figure needs."""
        metrics = [
            lifecycle.request.metrics
            for lifecycle in self.lifecycles
            if lifecycle.request.finish_reason is None
        ]
        known: dict[str, Callable[[RequestMetrics], float | None]] = {
            "ttft": lambda own: own.first_token_time,
            "queue": lambda own: own.first_scheduled_time,
            "tpot": lambda _: None,
            "e2e": lambda _: None,
        }
        return sum(known[figure](own) is None for own in metrics) if figure in known else 0

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
    return lifecycle.request.finish_reason in _SERVED and any(
        sequence.status is not SequenceStatus.FINISHED_IGNORED
        for sequence in lifecycle.sequences[:1]  # none, if all were removed
    )


def read(
    recording: FileStore, slo: Slo, by: str = PREFIX, progress: ShowProgress = no_progress
) -> Contents:
    """Reads a recording.

    Args:
        recording: The recording.
        slo: The objectives.
        by: What requests are grouped by: one of `LASTING_KEYS`, or an expression.
        progress: Shows the part that has been read.

    Raises:
        RecordingError: The recording cannot be read.
        GroupKeyError: There is no such key.
    """
    reader = RunsReader(recording)
    series = SeriesReader(recording, max_rows=_MAX_ROWS)
    checker = _FirstEvents(recording)
    fullest = _FullestStep(recording)
    slowest, unfinished = (
        [(seconds, Explanation(recording, request, recording.last)) for seconds, request in found]
        for found in (_slowest(recording), _longest_waiting(recording))
    )
    explanations = ExplanationsReader([own for _, own in (*slowest, *unfinished)])
    readers = [reader, series, checker, fullest, explanations]
    Replay(recording, readers, max_finished=sys.maxsize).run(progress)
    reader.end()
    explanations.end()
    runs = reader.runs
    lifecycles = [lifecycle for run in runs for lifecycle in run.requests.values()]
    return Contents(
        name=Path(recording.path).name,
        info=next((run.info for run in reversed(runs) if run.info), None),
        runs=runs,
        start=series.series.start,
        end=series.series.end,
        intervals=list(_intervals(series.series)),
        gaps=[(recording.index[gap.position].time, str(gap)) for gap in recording.gaps],
        damage=recording.damage,
        unfinished=list(_explained(unfinished, lifecycles)),
        slowest=list(_explained(slowest, lifecycles)),
        preemptions=sorted(
            _preemptions(lifecycles),
            key=lambda preemption: (-preemption.num_lost_tokens, preemption.time),
        ),
        findings=checker.summary(),
        verdict=of_whole(reader.state).sentence,
        groups=_groups(fullest, runs[-1], by),
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


def _slowest(recording: FileStore) -> list[tuple[float, RequestState]]:
    """Returns the requests with the largest end-to-end latencies in seconds, the largest first.

    The ends of requests are read ahead of the pass that explains these.
    """
    requests: dict[tuple[str, float], RequestState] = {}

    def add(*ended: RequestState) -> None:
        for request in ended:
            requests[request.request_id, request.metrics.arrival_time] = request

    for position in (recording.first, *(gap.position for gap in recording.gaps)):
        state = recording.at(position)
        add(*(state.requests[request_id] for request_id in state.finished))
    for position, payload in recording.payloads(recording.first, recording.last):
        if payload is not None and tag(payload) == "RequestFinished":
            event = recording.peek(position, payload)
            if isinstance(event, RequestFinished):
                add(finished_request(event))
    times = [
        (seconds, request)
        for request in requests.values()
        if request.finish_reason in _SERVED
        for seconds in _known(latency.e2e_latency(request.metrics))
    ]
    return heapq.nlargest(MAX_SLOW, times, key=itemgetter(0))


def _longest_waiting(recording: FileStore) -> list[tuple[float, RequestState]]:
    """Returns the requests without an end that have waited longest, with the times since arrival.

    The longest wait is first. The events after the last keyframe are read ahead of the pass that
    explains these.
    """
    keyframe = recording.keyframe_before(recording.last)
    state = recording.at(keyframe)
    for position, payload in recording.payloads(keyframe, recording.last):
        if payload is not None:
            state.apply(recording.peek(position, payload))
    waits = [
        (wait, request)
        for request in state.requests.values()
        if request.finish_reason is None
        for wait in _known(waited(request, state.time))
        if wait >= _LEAST_WAIT
    ]
    longest = heapq.nlargest(MAX_UNFINISHED, waits, key=itemgetter(0))
    return [(state.time - request.metrics.arrival_time, request) for _, request in longest]


def _explained(
    slowest: Iterable[tuple[float, Explanation]], lifecycles: Iterable[RequestLifecycle]
) -> Iterator[ExplainedRequest]:
    """Yields requests with sentences on their time."""
    by_arrival = {
        (lifecycle.request.request_id, lifecycle.request.metrics.arrival_time): lifecycle
        for lifecycle in lifecycles
    }
    for seconds, explanation in slowest:
        name = explanation.request_id
        lifecycle = by_arrival.get((name, explanation.metrics.arrival_time))
        if lifecycle is None:
            continue
        parts = sorted(explanation.parts(), key=lambda part: -part.seconds)[:_MAX_PARTS]
        sentences = [share_of(part, seconds, name) for part in parts]
        yield ExplainedRequest(lifecycle, seconds, headline(explanation), sentences)


def _preemptions(lifecycles: Iterable[RequestLifecycle]) -> Iterator[RecordedPreemption]:
    for lifecycle in lifecycles:
        for time, (step, preemption) in lifecycle.observations.preemptions.items():
            text = describe_preemption(preemption)
            yield RecordedPreemption(time, step, text, preemption.num_lost_tokens)


class _FullestStep(Reader):
    """Finds the step of the last run after which most blocks were in use.

    Args:
        recording: The recording.
    """

    def __init__(self, recording: FileStore) -> None:
        self.state: EngineData | None = None
        """The unfinished requests after it; `None` without any step."""
        self._recording = recording
        self._state = EngineState()
        self._unfinished: dict[str, None] = {}

    def start(self, position: int, state: EngineState) -> None:
        if self._recording.index[position].kind & EventKind.RESTART:
            self.state = None
        self._state = state
        ended = {*state.finished}
        self._unfinished = dict.fromkeys(name for name in state.requests if name not in ended)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        if isinstance(event, RequestArrived):
            self._unfinished[event.request_id] = None
        elif isinstance(event, RequestFinished):
            self._unfinished.pop(event.request_id, None)
        elif isinstance(event, Step):
            stats = self.state.stats if self.state is not None else None
            if stats is None or event.stats.num_used_blocks > stats.num_used_blocks:
                self.state = self._copy()

    def _copy(self) -> EngineData:
        state = self._state
        copied = EngineData(step=state.step, stats=state.stats, time=state.time)
        for name in self._unfinished:
            if (request := state.requests.get(name)) is None:
                continue
            copied.requests[name] = request
            for seq_id in request.seq_ids:
                sequence = state.sequences[seq_id]
                table = sequence.block_table.copy()  # the list itself goes on changing
                copied.sequences[seq_id] = replace(sequence, block_table=table)
        return copied


def _groups(fullest: _FullestStep, run: EngineRun, key: str) -> GroupTable:
    ended = EngineData()
    for lifecycle in run.requests.values():
        ended.requests[lifecycle.request.request_id] = lifecycle.request
        ended.sequences |= {sequence.seq_id: sequence for sequence in lifecycle.sequences}
        ended.time = max(ended.time, lifecycle.until)
    groups = {group.name: group for group in group_by(ended, key)}
    for group in groups.values():
        group.num_blocks = group.num_running = group.num_waiting = 0
    state = fullest.state
    if state is None:
        return GroupTable(key, [*groups.values()], None, None)
    for then in group_by(state, key):
        if (known := groups.get(then.name)) is not None:
            known.num_blocks = then.num_blocks
            known.num_running, known.num_waiting = then.num_running, then.num_waiting
    ranked = sorted(
        groups.values(), key=lambda group: (-group.num_blocks, -group.num_output_tokens, group.name)
    )
    num_used = None if state.stats is None else state.stats.num_used_blocks
    return GroupTable(key, ranked, state.step, num_used)


class _FirstEvents(StreamChecker):
    """Checks the first `MAX_CHECKED` events of a recording.

    Args:
        recording: The recording.
    """

    def __init__(self, recording: FileStore) -> None:
        super().__init__(stored="first")
        self.last_position = recording.first + MAX_CHECKED
        self._is_whole = recording.last <= self.last_position

    def summary(self) -> CheckSummary:
        """Returns what was found."""
        if self._is_whole:
            self.end()
        counts = [(f"{RULES[rule].violation} ({rule})", n) for rule, n in self.counts().items()]
        sentences = [sentence(located.finding) for located in self.findings()[:MAX_FINDINGS]]
        return CheckSummary(self.num_steps, self._is_whole, counts, sentences)


def _duration(step: RecordedStep) -> float:
    seconds = step.time - step.start_time
    return seconds if 0 <= seconds < math.inf else 0.0


def _known(seconds: float | None) -> list[float]:
    """Returns a list of a duration, or an empty one if no clock can have measured it."""
    return [seconds] if seconds is not None and 0 <= seconds < math.inf else []
