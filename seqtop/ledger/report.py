"""Accounts as a table and as JSON."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from seqtop.explain import chain
from seqtop.ledger import account
from seqtop.ledger.account import Charge
from seqtop.ledger.ledger import Blame, HarmTotal
from seqtop.sequence import latency
from seqtop.state.wait_causes import cause_in_words
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.wire.snapshot import StepCosts

_MAX_REQUESTS = 12
"""Other requests that a table names."""
_MAX_TOTALS = 30
_MAX_CAUSES = 3
_TITLES = {
    "itself": "itself",
    "settings": "settings",
    "host": "host",
    "unexplained": "unexplained",
}
_CAUSES = {
    account.SHARED_STEP: "shared steps",
    account.QUEUE_HEAD: "ahead in the queue",
    account.UNNAMED_BLOCKS: "blocks in use that are in no block table",
    account.STEP_TIME: "difference of shared steps and their estimates",
    account.NO_ESTIMATE: "shared steps, before there were enough for estimates",
    chain.RECOMPUTE: "recomputation",
    chain.NOT_RECORDED: "steps that are not recorded",
    "prefill": "prefill",
    "decode": "decode",
}
"""The causes that are not causes of waiting, in words."""


class Row(msgspec.Struct, frozen=True):
    """All that is charged to one request, or to one thing."""

    title: str
    charges: list[Charge]

    def seconds(self, *evidence: str) -> float:
        """Returns the sum of the charges, or of those with such evidence."""
        return sum(
            charge.seconds for charge in self.charges if not evidence or charge.evidence in evidence
        )


def rows(charges: Iterable[Charge]) -> list[Row]:
    """Returns the charges by request or thing, the largest first, and what is unexplained last."""
    by_title: dict[tuple[bool, str], list[Charge]] = {}
    for charge in charges:
        is_unexplained = charge.charged_to == "unexplained"
        by_title.setdefault((is_unexplained, _title(charge)), []).append(charge)
    listed = [(key[0], Row(key[1], items)) for key, items in by_title.items()]
    return [row for _, row in sorted(listed, key=lambda item: (item[0], -item[1].seconds()))]


def _title(charge: Charge) -> str:
    if charge.charged_to == "request":
        return charge.request_id if charge.request_id is not None else "other requests"
    return _TITLES[charge.charged_to]


def cause_label(cause: str) -> str:
    """Returns the cause of a charge in a few words."""
    return _CAUSES.get(cause) or cause_in_words(cause).label


def as_text(blame: Blame) -> str:
    """Returns tables of what delayed a request, and of those that it delayed."""
    request, own, harms, costs, verdict = blame
    metrics = request.metrics
    first, end = latency.ttft(metrics), latency.e2e_latency(metrics)
    ttft = "no first token" if first is None else f"TTFT {fmt.seconds(first)}"
    total = (
        f"{fmt.seconds(own.seconds)} since its arrival"
        if end is None
        else f"end to end {fmt.seconds(end)} ({request.finish_reason})"
    )
    charged = [
        ("time", "share", "measured", "estimated", "charged to"),
        *_cells(rows(own.charges()), own.seconds),
        (fmt.seconds(own.seconds), "100%"),
    ]
    lines = [
        f"{own.request_id}: {ttft}, {total}",
        f"The run: {verdict}.",
        *table(charged, left=(4,)),
        "",
    ]
    if harms:
        delayed = [
            ("time", "", "measured", "estimated", "delayed by it"),
            *_cells([Row(harm.request_id, harm.charges) for harm in harms], None),
        ]
        seconds = fmt.seconds(sum(harm.seconds for harm in harms))
        delayed.append((seconds, "", "", "", f"all of {fmt.plural(len(harms), 'request')}"))
        lines += table(delayed, left=(4,))
    else:
        lines.append("It delayed no other request.")
    return plain([*lines, "", _knowledge(costs)])


def _cells(listed: list[Row], total: float | None) -> list[tuple[str, ...]]:
    cells = [_row(row, total) for row in listed[:_MAX_REQUESTS]]
    rest = listed[_MAX_REQUESTS:]
    # What is no request is always listed.
    named = set(_TITLES.values())
    others = [row for row in rest if total is None or row.title not in named]
    if others:
        title = f"{fmt.plural(len(others), 'other request')}"
        merged = Row(title, [charge for row in others for charge in row.charges])
        cells.append(_row(merged, total))
    return cells + [_row(row, total) for row in rest if row not in others]


def _row(row: Row, total: float | None) -> tuple[str, ...]:
    seconds = row.seconds()
    share = fmt.percent(seconds, total) if total else ""
    known = (_or_blank(row.seconds(evidence)) for evidence in ("measured", "estimated"))
    return (signed(seconds), share, *known, f"{row.title}: {causes(row)}")


def causes(row: Row) -> str:
    """Returns the causes of the charges of a row, those of the most seconds first."""
    by_cause: dict[str, float] = {}
    for charge in row.charges:
        by_cause[charge.cause] = by_cause.get(charge.cause, 0.0) + charge.seconds
    ordered = sorted(by_cause.items(), key=lambda item: -abs(item[1]))
    if len(ordered) == 1:
        return cause_label(ordered[0][0])
    words = [f"{cause_label(name)} {signed(value)}" for name, value in ordered[:_MAX_CAUSES]]
    more = len(ordered) - _MAX_CAUSES
    return ", ".join(words) + (f" and {more} more" if more > 0 else "")


def signed(seconds: float) -> str:
    """Returns seconds as text, which may be negative."""
    return f"-{fmt.seconds(-seconds)}" if seconds < 0 else fmt.seconds(seconds)


def _or_blank(seconds: float) -> str:
    return signed(seconds) if seconds else ""


def _knowledge(costs: StepCosts) -> str:
    """Describes the costs of tokens that the estimates are made of, or that there are none."""
    if costs.per_step is None:
        verb = "is" if costs.num_steps == 1 else "are"
        return f"Nothing is estimated: {fmt.plural(costs.num_steps, 'step')} {verb} too few."
    graph = costs.without_graph
    return (
        f"Estimated from the costs of tokens after {fmt.plural(costs.num_steps, 'step')}:"
        f" {fmt.seconds(costs.per_step)} a step,"
        f" {fmt.seconds(costs.per_prefill_token)} a prefill token,"
        f" {fmt.seconds(costs.per_decode_token)} a decode token"
        + (f", {fmt.seconds(graph)} more without a CUDA graph." if graph else ".")
    )


class HarmDocument(msgspec.Struct):
    """The time of another request that is charged to this one, as JSON."""

    request_id: str
    seconds: float
    charges: list[Charge]


class StepCostsDocument(msgspec.Struct, kw_only=True):
    """The costs of steps and tokens that estimates are made of, as JSON; all are seconds."""

    per_step_seconds: float
    per_prefill_token_seconds: float
    per_decode_token_seconds: float
    without_graph_seconds: float
    """The seconds by which a step is longer without a CUDA graph."""
    num_steps: int
    """The steps that they follow from."""


class BlameDocument(msgspec.Struct, kw_only=True):
    """The time of a request by who is charged with it, as JSON."""

    request_id: str
    arrival_time: float
    """Epoch seconds."""
    ttft_seconds: float | None
    e2e_seconds: float | None
    finish_reason: str | None
    seconds: float
    """The time that is charged."""
    verdict: str
    """A sentence on the run; empty if nothing limits it."""
    harmed_by: list[Charge]
    harm_done: list[HarmDocument]
    step_costs: StepCostsDocument | None
    """`None` if the steps are too few."""


class HarmTotalsDocument(msgspec.Struct):
    """The requests that delayed others, the worst first, as JSON."""

    requests: list[HarmTotal]
    step_costs: StepCostsDocument | None


def as_json(blame: Blame) -> str:
    """Returns the same as JSON."""
    request, own, harms, costs, verdict = blame
    metrics = request.metrics
    return indented_json(
        BlameDocument(
            request_id=own.request_id,
            arrival_time=metrics.arrival_time,
            ttft_seconds=latency.ttft(metrics),
            e2e_seconds=latency.e2e_latency(metrics),
            finish_reason=request.finish_reason,
            seconds=own.seconds,
            verdict=verdict,
            harmed_by=own.charges(),
            harm_done=[HarmDocument(harm.request_id, harm.seconds, harm.charges) for harm in harms],
            step_costs=_costs(costs),
        )
    )


def totals_as_text(costs: StepCosts, totals: list[HarmTotal]) -> str:
    """Returns a table of the requests that delayed others most."""
    rows = [("harm", "estimated", "waited", "request")]
    rows += [
        (
            fmt.seconds(total.seconds),
            _or_blank(total.estimated_seconds),
            fmt.seconds(total.waited_seconds),
            total.request_id,
        )
        for total in totals[:_MAX_TOTALS]
    ]
    more = len(totals) - _MAX_TOTALS
    others = [f"and {more:,} more"] if more > 0 else []
    return plain([*table(rows, left=(3,)), *others, "", _knowledge(costs)])


def totals_as_json(costs: StepCosts, totals: list[HarmTotal]) -> str:
    """Returns what all requests cost the others as JSON."""
    return indented_json(HarmTotalsDocument(totals, _costs(costs)))


def _costs(costs: StepCosts) -> StepCostsDocument | None:
    if costs.per_step is None:
        return None
    return StepCostsDocument(
        per_step_seconds=costs.per_step,
        per_prefill_token_seconds=costs.per_prefill_token,
        per_decode_token_seconds=costs.per_decode_token,
        without_graph_seconds=costs.without_graph,
        num_steps=costs.num_steps,
    )
