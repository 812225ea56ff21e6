"""The requests that miss their objectives, by the limit that they miss and by the cause.

The cause of a miss is the longest part of the time that the limit is on: the waits of the request,
by the cause that the scheduler gave, or the steps that computed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from seqtop.state.fields import queue_time
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.slo import FIGURES, Slo, missed
from seqtop.state.wait_causes import cause_in_words
from seqtop.state.waits import wait_until
from seqtop.text import format as fmt

PREFILL: Final = "its own prefill"
DECODE: Final = "its own decode steps"
_AWAY: Final = ("preempted", "swapped")
"""The kinds of spans in which a request does not run after its first token."""


class SloMisses(msgspec.Struct):
    """The requests that have missed an objective."""

    num_requests: int = 0
    """Requests that ended with an output, and unfinished ones that have missed one already."""
    num_missed: int = 0
    """Those of them that missed one."""
    causes: dict[str, Counter[str]] = {}
    """The requests that missed each limit, by cause."""


def split(state: EngineData, slo: Slo) -> SloMisses:
    """Returns the misses of all requests in a state, by limit and by cause.

    Args:
        state: The state, with unfinished requests and the finished ones that it keeps.
        slo: The objectives.
    """
    found = SloMisses(causes={key: Counter() for key in slo.limits})
    for request in state.requests.values():
        own: dict[str, str] = {}
        has_output = False
        for sequence in (state.sequences[seq_id] for seq_id in request.seq_ids):
            has_output |= bool(sequence.output_token_ids)
            for key in missed(slo, request, sequence, state.time).keys() - own.keys():
                own[key] = cause_of(state, request, sequence, key)
        if own or (has_output and request.finish_reason in ("stop", "length")):
            found.num_requests += 1
        found.num_missed += bool(own)
        for key, cause in own.items():
            found.causes[key][cause] += 1
    return found


def cause_of(state: EngineData, request: RequestState, sequence: SequenceState, figure: str) -> str:
    """Returns the longest part of what a figure measures, in words."""
    parts = _parts(state, request, sequence)
    within = {
        "queue": ("before",),
        "ttft": ("before", PREFILL),
        "itl": ("after", DECODE),
        "tpot": ("after", DECODE),
        "e2e": ("before", PREFILL, "after", DECODE),
    }[figure]
    longest = max(within, key=lambda name: parts[name])
    if longest in (PREFILL, DECODE):
        return longest
    by_cause = wait_until(state, request, state.time).by_cause
    cause = max(by_cause, key=lambda name: by_cause[name], default="unknown")
    word = cause_in_words(cause).label
    return f"preempted: {word}" if longest == "after" else word


def _parts(
    state: EngineData, request: RequestState, sequence: SequenceState
) -> Mapping[str, float]:
    """Returns the seconds of a request that it waited and computed, before and after its output."""
    metrics = request.metrics
    first = metrics.first_token_time
    end = state.time if metrics.finished_time is None else metrics.finished_time
    arrival = metrics.arrival_time
    queued = queue_time(request, sequence, state.time) or 0.0
    if first is None:
        return {"before": queued, PREFILL: end - arrival - queued, "after": 0.0, DECODE: 0.0}
    away = sum(
        max((end if span.end is None else span.end) - max(span.start, first), 0.0)
        for span in request.spans
        if span.kind in _AWAY
    )
    return {
        "before": queued,
        PREFILL: first - arrival - queued,
        "after": away,
        DECODE: end - first - away,
    }


def describe(misses: SloMisses, slo: Slo) -> list[str]:
    """Returns the misses as lines: their number, and for each limit the causes."""
    if not misses.num_requests:
        return ["No request has ended or missed a limit so far."]
    of = fmt.plural(misses.num_requests, "request")
    share = fmt.percent(misses.num_missed, misses.num_requests)
    lines = [
        f"{fmt.count(misses.num_missed)} of {of} that ended or are late miss a limit ({share})"
    ]
    for key, limit in slo.limits.items():
        causes = misses.causes[key]
        what = f"{FIGURES[key]} ≤ {fmt.seconds(limit)}"
        each = ", ".join(f"{cause} {fmt.count(n)}" for cause, n in causes.most_common())
        lines.append(f"  {what:<18}{fmt.count(causes.total()):>6}  {each}")
    return lines
