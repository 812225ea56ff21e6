"""Explanations as sentences, as a table and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.explain import chain
from seqtop.explain.chain import BlockHolder, Part
from seqtop.explain.explanation import Explanation
from seqtop.explain.outliers import Outliers
from seqtop.sequence import latency
from seqtop.state.step_summary import preemption_cause
from seqtop.state.wait_causes import CAUSES, OUTSIDE_STEPS, cause_in_words
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.wire.messages import Preemption, PreemptionMode

_MAX_NAMED = 4
_MAX_SLOW = 10
"""Slow requests that a text names."""
_SLOW_STEP = 10
"""A step is named that took so many times as long as the others of its part on average, and at
least one so-manieth of the part."""
_SLOW_SCHEDULER = 0.25
"""The share of a part from which on the scheduler's time is named."""
_NO_WAIT_CAUSES = {
    chain.MIXED_BATCH: "in one batch with prefills of others",
    chain.NO_CUDA_GRAPH: "in steps without a CUDA graph",
    chain.RECOMPUTE: "again after the preemption",
    chain.NOT_RECORDED: "its steps are not recorded",
}
"""The causes of parts in which the request does not wait, in words."""


def describe(part: Part, request_id: str) -> str:
    """Describes the cause of a part of the time of a request in a few words."""
    clauses: list[str] = []
    if part.preemption is not None:
        cause = preemption_cause(request_id, part.preemption.for_request_id)
        lost = part.preemption.num_lost_tokens
        loss = f", {fmt.plural(lost, 'computed token')} lost" if lost else ""
        clauses.append(f"preempted{cause}{loss}")
    if part.kind == "host":
        clauses.append("between steps")
    if part.cause:
        cause = _describe_cause(part)
        if part.is_behind:
            cause = f"behind {_names(part) or 'others'} in the queue: {cause}"
        elif part.others:
            cause = f"{cause}: {_names(part)}"
        clauses.append(cause)
    if part.holder is not None:
        clauses.append(_describe_holder(part.holder))
    if part.num_tokens:
        clauses.append(f"{fmt.plural(part.num_tokens, 'token')}")
    if part.num_steps > 1:
        clauses.append(fmt.plural(part.num_steps, "step"))
    if part.scheduler >= _SLOW_SCHEDULER * part.seconds > 0:
        clauses.append(f"the scheduler took {fmt.percent(part.scheduler, part.seconds)} of it")
    return "; ".join(clauses) + _describe_longest(part)


def share_of(part: Part, seconds: float, request_id: str) -> str:
    """Returns a sentence on a part of a time of so many seconds, with its share."""
    text = describe(part, request_id)
    share = fmt.percent(part.seconds, seconds)
    return f"{fmt.seconds(part.seconds)} ({share}) {part.kind}" + (f": {text}" if text else "")


def _describe_longest(part: Part) -> str:
    """Names the step that the longest pause delayed, or one that took much longer than others."""
    if part.longest_step is None or part.longest >= part.seconds:
        return ""
    step, longest = f"step {part.longest_step:,}", fmt.seconds(part.longest)
    if not part.num_steps:
        return f", the longest {longest} before {step}"
    others = (part.seconds - part.longest) / max(part.num_steps - 1, 1)
    is_slow = part.longest >= _SLOW_STEP * others and part.longest >= part.seconds / _SLOW_STEP
    return f", of which {step}: {longest}" if is_slow else ""


def _describe_cause(part: Part) -> str:
    if part.cause in _NO_WAIT_CAUSES:
        return _NO_WAIT_CAUSES[part.cause]
    cause = cause_in_words(part.cause)
    detail = "" if part.cause in OUTSIDE_STEPS else part.cause
    if part.cause in CAUSES:
        detail = cause.missing(part.num_missing)
    return cause.limited(None) + (f" ({detail})" if detail else "")


def _names(part: Part) -> str:
    names = [name for name, _ in part.others.most_common(_MAX_NAMED)]
    more = len(part.others) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _describe_holder(holder: BlockHolder) -> str:
    admitted = (
        f"admitted at step {holder.admitted_step:,}"
        if holder.admitted_step is not None
        else "admitted at a step that is not recorded"
    )
    return (
        f"{holder.request_id} held the most, {holder.num_blocks:,} of {holder.num_used_blocks:,}"
        f" used, {admitted} with a prompt of {fmt.plural(holder.num_prompt_tokens, 'token')}"
    )


def headline(explanation: Explanation) -> str:
    """Returns the TTFT and the end-to-end latency of a request, as far as they are known."""
    metrics = explanation.metrics
    first, end = latency.ttft(metrics), latency.e2e_latency(metrics)
    ttft = "no first token" if first is None else f"TTFT {fmt.seconds(first)}"
    if end is None:
        since = fmt.seconds(explanation.now - metrics.arrival_time)
        return f"{ttft}{' yet' if first is None else ''}, {since} since its arrival"
    return f"{ttft}, end to end {fmt.seconds(end)} ({explanation.finish_reason})"


def as_text(explanation: Explanation) -> str:
    """Returns a table of the parts of the time of a request."""
    parts = explanation.parts()
    total = sum(part.seconds for part in parts)
    rows: list[tuple[str, ...]] = [("from", "to", "step", "time", "share", "part")]
    has_first_token = not any(part.before_first_token for part in parts)
    for part in parts:
        if not part.before_first_token and not has_first_token:
            ttft = fmt.seconds(latency.ttft(explanation.metrics))
            rows.append((ttft, "", "", "", "", "first token"))
            has_first_token = True
        step = fmt.UNKNOWN if part.step is None else f"{part.step:,}"
        share, text = fmt.percent(part.seconds, total), describe(part, explanation.request_id)
        times = fmt.seconds(part.start), fmt.seconds(part.end), step, fmt.seconds(part.seconds)
        rows.append((*times, share, part.kind, text))
    title = f"{explanation.request_id}: {headline(explanation)}"
    return plain([title, *table(rows, left=(5, 6))])


class PreemptionDocument(msgspec.Struct, kw_only=True):
    """A preemption, as JSON."""

    request_id: str
    mode: PreemptionMode
    num_lost_tokens: int
    """Computed tokens that have to be computed again; 0 for a swap."""
    for_request_id: str | None
    """The request that needed the blocks."""


class PartDocument(msgspec.Struct, kw_only=True):
    """A part of the time of a request, as JSON."""

    kind: str
    cause: str | None
    start_seconds: float
    """The start, since the arrival."""
    end_seconds: float
    seconds: float
    step: int | None
    """The step in which it began; `None` between steps."""
    num_steps: int
    num_tokens: int
    scheduler_seconds: float
    longest_seconds: float
    """The longest wait for one step of it."""
    longest_step: int | None
    before_first_token: bool
    is_behind: bool
    """True if another request of the queue was named by the scheduler."""
    requests: list[str]
    """The ids of the requests that it was shared with or due to, the most frequent first."""
    num_missing: int
    """The amount that was missing for the admission: blocks, tokens or sequences."""
    preemption: PreemptionDocument | None
    """The preemption that began the wait."""
    holder: BlockHolder | None
    """The request that held the most blocks when a wait for blocks began."""
    text: str
    """A sentence."""


class ExplanationDocument(msgspec.Struct, kw_only=True):
    """The parts of the time of a request, as JSON."""

    request_id: str
    arrival_time: float
    """Epoch seconds."""
    ttft_seconds: float | None
    e2e_seconds: float | None
    since_arrival_seconds: float
    """Up to the end of the request, or of what is known."""
    finish_reason: str | None
    parts: list[PartDocument]


def as_json(explanation: Explanation) -> str:
    """Returns the parts of the time of a request as JSON."""
    metrics = explanation.metrics
    end = metrics.finished_time
    return indented_json(
        ExplanationDocument(
            request_id=explanation.request_id,
            arrival_time=metrics.arrival_time,
            ttft_seconds=latency.ttft(metrics),
            e2e_seconds=latency.e2e_latency(metrics),
            since_arrival_seconds=(explanation.now if end is None else end) - metrics.arrival_time,
            finish_reason=explanation.finish_reason,
            parts=[_part(part, explanation.request_id) for part in explanation.parts()],
        )
    )


def _part(part: Part, request_id: str) -> PartDocument:
    return PartDocument(
        kind=part.kind,
        cause=part.cause or None,
        start_seconds=part.start,
        end_seconds=part.end,
        seconds=part.seconds,
        step=part.step,
        num_steps=part.num_steps,
        num_tokens=part.num_tokens,
        scheduler_seconds=part.scheduler,
        longest_seconds=part.longest,
        longest_step=part.longest_step,
        before_first_token=part.before_first_token,
        is_behind=part.is_behind,
        requests=[name for name, _ in part.others.most_common(_MAX_NAMED)],
        num_missing=part.num_missing,
        preemption=_preemption(part.preemption),
        holder=part.holder,
        text=describe(part, request_id),
    )


def _preemption(preemption: Preemption | None) -> PreemptionDocument | None:
    if preemption is None:
        return None
    return PreemptionDocument(**msgspec.structs.asdict(preemption))


def outliers_as_text(outliers: Outliers) -> str:
    """Returns the slow requests, and tables of the fields in which they differ."""
    num_slow = len(outliers.slow)
    num_all = num_slow + outliers.num_others + outliers.num_open
    more = f" ({outliers.num_open:,} others have not ended)" if outliers.num_open else ""
    lines = [f"{fmt.plural(num_slow, 'slow request')} of {num_all:,}{more}: {outliers.rule}"]
    lines += [
        f"  {request.request_id}: {fmt.seconds(request.seconds)}"
        + (f" so far, and {request.activity}" if request.activity else "")
        for request in outliers.slow[:_MAX_SLOW]
    ]
    if num_slow > _MAX_SLOW:
        lines.append(f"  and {num_slow - _MAX_SLOW:,} more")
    if outliers.verdict:
        lines.append(f"The run: {outliers.verdict}.")
    if not outliers.differences:
        lines.append("No field differs by more than chance, and by enough to matter.")
    for title, is_cause in (("possible cause", True), ("result", False)):
        fields = [field for field in outliers.differences if field.is_cause is is_cause]
        rows = [  # names come last, as some are sentences
            (fmt.percent(field.distance), field.slow, field.others, field.title) for field in fields
        ]
        if rows:
            lines += table([("differ", "slow", "others", title), *rows], left=(1, 2, 3))
    return plain(lines)


def outliers_as_json(outliers: Outliers) -> str:
    """Returns the slow requests and the fields in which they differ as JSON."""
    return indented_json(outliers)
