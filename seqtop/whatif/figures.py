"""The figures of a run, counted from its messages as they come."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import msgspec

from seqtop.sequence import RequestMetrics, SequenceStatus, latency
from seqtop.state.percentiles import percentile
from seqtop.state.slo import Slo
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step, WaitCause

PERCENTILES = (50, 90, 99)


class Distribution(msgspec.Struct, frozen=True):
    """Percentiles of a figure; `None` if nothing was counted."""

    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class RunFigures(msgspec.Struct, kw_only=True):
    """The figures of a run."""

    num_steps: int = 0
    makespan: float = 0.0
    """Seconds from the start of the first step to the end of the last."""
    num_requests: int = 0
    """Requests that ended, except aborted ones."""
    num_ignored: int = 0
    """Those of them that the engine ended without an output, such as too long ones."""
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_lost_tokens: int = 0
    """Computed tokens that preemptions discarded, and that were computed twice."""
    num_hit_tokens: int = 0
    """Tokens found in the prefix cache."""
    queue_steps: Distribution = Distribution()
    """Steps that began without the request after its arrival, until one computed it."""
    ttft: Distribution = Distribution()
    """This and the following ones in seconds."""
    itl: Distribution = Distribution()
    """Gaps between two tokens of a sequence; several tokens in a step count with their mean."""
    tpot: Distribution = Distribution()
    """Means from the first to the last token of finished requests."""
    e2e: Distribution = Distribution()
    num_within: dict[str, int] = {}
    """Requests that met each objective, by figure."""
    blocked: dict[WaitCause, int] = {}
    """Steps in which the first request that waited had each cause."""
    num_within_slo: int | None = None
    """Requests that met all objectives; `None` without objectives."""

    @property
    def throughput(self) -> float | None:
        """Output tokens per second."""
        return self.num_output_tokens / self.makespan if self.makespan > 0 else None

    def share_within(self, objective: str) -> float | None:
        """Returns the share of the requests that met one objective."""
        if objective not in self.num_within or not self.num_requests:
            return None
        return self.num_within[objective] / self.num_requests

    @property
    def share_within_slo(self) -> float | None:
        """The share of the requests that met all objectives."""
        if self.num_within_slo is None or not self.num_requests:
            return None
        return self.num_within_slo / self.num_requests


class FigureCounter:
    """Counts the figures of a run.

    Args:
        slo: The objectives of requests.
        num_hits_before: Tokens found in the prefix cache before the first message.
    """

    def __init__(self, slo: Slo | None = None, *, num_hits_before: int = 0) -> None:
        self._slo = slo or Slo()
        self._num_hits_before = num_hits_before
        self._run = RunFigures(num_within_slo=0 if self._slo else None)
        self._start_time: float | None = None
        self._end_time = 0.0
        self._ttft, self._itl, self._e2e = array("d"), array("d"), array("d")
        self._tpot = array("d")
        self._sequences: dict[int, tuple[int, float]] = {}
        """The number of tokens and the time of the last one, by sequence."""
        self._has_ttft: set[str] = set()
        """Unfinished requests whose TTFT is counted."""
        self._seq_ids: dict[str, list[int]] = {}
        """The sequences with which a request arrived."""
        self._queue_steps = array("d")
        self._queued: dict[str, int] = {}
        """The steps before the arrival of each request that was not scheduled yet."""

    def count(self, event: Event) -> None:
        """Counts a message."""
        match event:
            case Step():
                self._step(event)
            case RequestArrived():
                self._seq_ids[event.request_id] = event.seq_ids
                self._queued[event.request_id] = self._run.num_steps
            case RequestFinished():
                self._finish(event)
            case _:
                pass

    def figures(self) -> RunFigures:
        """Returns the figures so far."""
        start = self._end_time if self._start_time is None else self._start_time
        return msgspec.structs.replace(
            self._run,
            makespan=max(self._end_time - start, 0.0),
            queue_steps=distribution(self._queue_steps),
            ttft=distribution(self._ttft),
            itl=distribution(self._itl),
            tpot=distribution(self._tpot),
            e2e=distribution(self._e2e),
        )

    def _step(self, step: Step) -> None:
        run, sequences, now = self._run, self._sequences, step.time
        if self._start_time is None:
            self._start_time = step.start_time
        self._end_time = max(self._end_time, now)
        for request_id, metrics in step.metrics.items():
            self._count_ttft(request_id, metrics)
            if metrics.first_scheduled_time is not None and request_id in self._queued:
                self._queue_steps.append(run.num_steps - self._queued.pop(request_id))
        run.num_steps += 1
        run.num_hit_tokens = max(step.stats.prefix_cache_hits - self._num_hits_before, 0)
        if step.wait_reasons:
            cause = step.wait_reasons[0].cause
            run.blocked[cause] = run.blocked.get(cause, 0) + 1
        for preemption in step.preemptions:
            run.num_preemptions += 1
            run.num_lost_tokens += preemption.num_lost_tokens
        for update in step.sequences:
            if not (count := len(update.new_token_ids)):
                continue
            run.num_output_tokens += count
            num_before, last = sequences.get(update.seq_id, (0, now))
            sequences[update.seq_id] = num_before + count, now
            if num_before:
                self._itl.extend([(now - last) / count] * count)
            if update.is_removed:
                del sequences[update.seq_id]

    def _count_ttft(self, request_id: str, metrics: RequestMetrics) -> None:
        if request_id not in self._has_ttft and (ttft := latency.ttft(metrics)) is not None:
            self._has_ttft.add(request_id)
            self._ttft.append(ttft)

    def _finish(self, event: RequestFinished) -> None:
        seq_ids = event.seq_ids or self._seq_ids.get(event.request_id, [])
        self._seq_ids.pop(event.request_id, None)
        self._queued.pop(event.request_id, None)
        ended = [self._sequences.pop(seq_id, (0, 0.0)) for seq_id in seq_ids]
        self._count_ttft(event.request_id, event.metrics)
        self._has_ttft.discard(event.request_id)
        if event.status is SequenceStatus.FINISHED_ABORTED:
            return
        self._run.num_requests += 1
        if event.status is SequenceStatus.FINISHED_IGNORED:
            self._run.num_ignored += 1
            return
        if (e2e := latency.e2e_latency(event.metrics)) is not None:
            self._e2e.append(e2e)
        num_tokens = max((count for count, _ in ended), default=0)
        if (tpot := latency.itl(event.metrics, num_tokens)) is not None:
            self._tpot.append(tpot)
        if self._run.num_within_slo is not None:
            missed = missed_objectives(self._slo, event.metrics, num_tokens)
            self._run.num_within_slo += not missed
            for key in self._slo.limits:
                self._run.num_within[key] = self._run.num_within.get(key, 0) + (key not in missed)


def missed_objectives(slo: Slo, metrics: RequestMetrics, num_tokens: int) -> set[str]:
    """Returns the objectives that a finished request missed, as `seqtop.state.slo` measures it."""
    figures = {
        "ttft": latency.ttft(metrics),
        "itl": latency.itl_so_far(metrics, num_tokens),
        "tpot": latency.itl(metrics, num_tokens),
        "queue": metrics.time_in_queue,
        "e2e": latency.e2e_latency(metrics),
    }
    return {
        key
        for key, limit in slo.limits.items()
        if (value := figures[key]) is not None and value > limit
    }


def distribution(values: Sequence[float]) -> Distribution:
    """Returns the percentiles of values, of which those that are not finite are left out."""
    known = sorted(value for value in values if math.isfinite(value))
    return Distribution(*(percentile(known, percent) for percent in PERCENTILES))
