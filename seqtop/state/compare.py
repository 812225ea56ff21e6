"""The differences between two states of an engine, as data and as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.state.fields import sequence_name, status_word
from seqtop.state.miss_causes import MISS_LABELS
from seqtop.state.model import EngineData
from seqtop.state.percentiles import is_better
from seqtop.state.step_summary import preemption_cause
from seqtop.text import format as fmt
from seqtop.text.tables import table

MAX_LISTED = 50
"""The most requests of one kind that the text lists; the others are counted."""
_LINE = 68
"""The characters of a line of ids."""
FIRST_TOTAL = "finished requests"
"""The figure from which on all are totals since the engine's start."""
_NOTABLE = 0.05
"""The change from which on a rate or a latency is named first, relative and as a logarithm."""


class FigureChange(msgspec.Struct, frozen=True):
    """A figure at two moments; `None` where it is unknown."""

    name: str
    before: int | None
    after: int | None


class Rate(NamedTuple):
    """A rate or a time at one moment."""

    value: float | None
    """`None` if it is unknown."""
    format: Callable[[float | None], str]
    """Returns it as text, with its unit."""
    better: int = 0
    """1 if more is better, -1 if less is, and 0 if neither."""
    is_least: bool = False
    """True if it may be higher: some requests still wait."""

    def __str__(self) -> str:
        return f"{'≥' if self.is_least and self.value is not None else ''}{self.format(self.value)}"


class ComparedLine(NamedTuple):
    """A line of a comparison."""

    text: str
    is_better: bool | None = None
    """True if the change at its end is one to the better, False if to the worse."""


class SequenceDifference(msgspec.Struct, frozen=True):
    """The changes of a sequence that is unfinished at both moments."""

    name: str
    status_before: str
    status_after: str
    output_tokens: int
    """Tokens generated in between."""
    computed_tokens: int
    """Change of the tokens in the KV cache; negative after a preemption."""
    blocks: int
    """Change of the number of its blocks."""
    preemptions: int
    preempted_for: str | None
    """The request that the last of these preemptions made room for."""


class Ended(msgspec.Struct, frozen=True):
    """A request that ended in between."""

    request_id: str
    reason: str | None
    """`stop`, `length` or `abort`; `None` if the later state no longer has the request."""


class StateComparison(msgspec.Struct, frozen=True):
    """The differences from an earlier moment A to a later moment B."""

    steps: tuple[int, int]
    times: tuple[float, float]
    """Epoch seconds."""
    same_incarnation: bool
    """True if both moments are of the same run of the engine. If not, only figures are compared."""
    figures: list[FigureChange]
    came: list[str] = []
    """Ids of the requests that arrived in between, in order of arrival."""
    ended: list[Ended] = []
    changed: list[SequenceDifference] = []
    """Sequences that are unfinished at both moments and differ."""
    num_unchanged: int = 0
    """Sequences that are unfinished at both moments and do not differ."""
    blocks_taken: int = 0
    """Blocks of the device that no table named at A, and some table names at B."""
    blocks_released: int = 0
    blocks_with_other_owners: int = 0
    """Blocks that tables name at both moments, but those of other sequences."""


def compare(one: EngineData, other: EngineData) -> StateComparison:
    """Compares two states of an engine; the earlier one is A."""
    a, b = (one, other) if (one.time, one.step) <= (other.time, other.step) else (other, one)
    same = _incarnation(a) == _incarnation(b)
    comparison = StateComparison((a.step, b.step), (a.time, b.time), same, list(_figures(a, b)))
    if not same:
        return comparison
    changed, num_unchanged = _changes(a, b)
    taken, released, moved = _blocks(a, b)
    return msgspec.structs.replace(
        comparison,
        came=[request_id for request_id in b.requests if request_id not in a.requests],
        ended=list(_ended(a, b)),
        changed=changed,
        num_unchanged=num_unchanged,
        blocks_taken=taken,
        blocks_released=released,
        blocks_with_other_owners=moved,
    )


def describe(
    comparison: StateComparison, rates: Sequence[tuple[str, Rate, Rate]] = ()
) -> list[ComparedLine]:
    """Returns a comparison as lines, the verdict first. Titles end with a colon.

    Args:
        comparison: The comparison.
        rates: Further figures that stand before the others: names, and the values at A and at B.
    """
    steps, times = comparison.steps, comparison.times
    later = fmt.seconds(times[1] - times[0])
    lines = [
        *_verdict(comparison, rates),
        f"A: {_step(steps[0])}, {fmt.clock(times[0])}",
        f"B: {_step(steps[1])}, {fmt.clock(times[1])}, {later} later",
        "",
    ]
    rows = [("Figures:", "A", "B", "B - A")]
    rows += [(f"  {name}", str(a), str(b), _rate_change(a, b)) for name, a, b in rates]
    for own in comparison.figures:
        if own.name == FIRST_TOTAL:
            rows.append(("Totals since the engine's start:", "", "", ""))
        rows.append((f"  {own.name}", fmt.count(own.before), fmt.count(own.after), _change(own)))
    better = dict(enumerate((_is_better(a, b) for _, a, b in rates), 1))
    figures = [
        ComparedLine(line, better.get(number)) for number, line in enumerate(table(rows, left=(0,)))
    ]
    rest = [ComparedLine(line) for line in ("", *_requests(comparison))]
    return [*map(ComparedLine, lines), *figures, *rest]


def _step(number: int) -> str:
    return f"step {fmt.count(number)}" if number >= 0 else "before the first step"


def _requests(comparison: StateComparison) -> list[str]:
    """Returns lines on the requests and blocks that changed in between."""
    lines: list[str] = []
    if not comparison.same_incarnation:
        return ["The engine was restarted in between: its requests are others."]
    by_reason: dict[str, list[str]] = {}
    for request in comparison.ended:
        by_reason.setdefault(request.reason or "no longer known", []).append(request.request_id)
    came = _folded(comparison.came)
    ended = (
        line
        for reason, request_ids in by_reason.items()
        for line in _folded(request_ids, f"{reason}: ")
    )
    changed = (f"  {change.name}  {_describe_change(change)}" for change in comparison.changed)
    lines += _section("Arrived", came, len(comparison.came))
    lines += _section("Ended", ended, len(comparison.ended))
    lines += _section("Changed", _listed(changed, len(comparison.changed)), len(comparison.changed))
    unchanged = fmt.plural(comparison.num_unchanged, "unfinished sequence")
    blocks = (
        f"{fmt.count(comparison.blocks_taken)} taken,"
        f" {fmt.count(comparison.blocks_released)} released,"
        f" {fmt.count(comparison.blocks_with_other_owners)} with other owners"
    )
    return [*lines, f"Unchanged: {unchanged}", f"Blocks: {blocks}"]


def _verdict(comparison: StateComparison, rates: Sequence[tuple[str, Rate, Rate]]) -> Iterator[str]:
    """Yields what came of the requests, and the rate and the latency that changed most."""
    if not comparison.same_incarnation:
        return
    waiting = next(own for own in comparison.figures if own.name == "waiting")
    ended, came = len(comparison.ended), len(comparison.came)
    parts = [
        f"{fmt.plural(ended, 'request')} ended and {fmt.count(came)} arrived in between",
        f"{fmt.count(waiting.before)} waited at A, {fmt.count(waiting.after)} at B",
    ]
    for better in (1, -1):
        changes = [
            (abs(math.log(b.value / a.value)), f"{name} {b.value / a.value - 1:+.0%} ({a} → {b})")
            for name, a, b in rates
            if a.better == better and a.value and b.value and a.value > 0 and b.value > 0
        ]
        largest = max(changes, default=(0.0, ""))
        if largest[0] > _NOTABLE:
            parts.append(largest[1])
    yield from textwrap.wrap(f"{'; '.join(parts)}.", _LINE)
    yield ""


def _is_better(a: Rate, b: Rate) -> bool | None:
    """Returns whether B is better than A; `None` if that is not known."""
    return is_better(a.value, b.value, a.better, a_is_least=a.is_least, b_is_least=b.is_least)


def _incarnation(state: EngineData) -> str:
    return state.info.incarnation if state.info else ""


def _figures(a: EngineData, b: EngineData) -> Iterator[FigureChange]:
    for status, name in (
        (SequenceStatus.RUNNING, "running"),
        (SequenceStatus.WAITING, "waiting"),
        (SequenceStatus.SWAPPED, "swapped"),
    ):
        yield FigureChange(name, a.num_by_status[status], b.num_by_status[status])
    yield from _of_stats(
        a,
        b,
        ("used blocks", "num_used_blocks"),
        ("cached blocks", "num_cached_blocks"),
        ("free blocks", "num_free_blocks"),
    )
    yield FigureChange(FIRST_TOTAL, a.num_finished, b.num_finished)
    yield FigureChange("prompt tokens", a.num_prefill_tokens, b.num_prefill_tokens)
    yield FigureChange("output tokens", a.num_output_tokens, b.num_output_tokens)
    yield from _of_stats(
        a,
        b,
        ("preemptions", "num_preemptions"),
        ("prefix queries, tokens", "prefix_cache_queries"),
        ("prefix hits, tokens", "prefix_cache_hits"),
    )
    for cause in a.num_missed_tokens | b.num_missed_tokens:
        yield FigureChange(
            f"missed tokens: {MISS_LABELS[cause]}",
            a.num_missed_tokens.get(cause, 0),
            b.num_missed_tokens.get(cause, 0),
        )


def _of_stats(a: EngineData, b: EngineData, *figures: tuple[str, str]) -> Iterator[FigureChange]:
    for name, attribute in figures:
        before, after = (getattr(state.stats, attribute, None) for state in (a, b))
        yield FigureChange(name, before, after)


def _change(figure: FigureChange) -> str:
    if figure.before is None or figure.after is None:
        return fmt.UNKNOWN
    change = figure.after - figure.before
    return f"+{fmt.count(change)}" if change > 0 else fmt.count(change)


def _rate_change(before: Rate, after: Rate) -> str:
    if before.value is None or after.value is None or (before.is_least or after.is_least):
        return fmt.UNKNOWN
    change = after.value - before.value
    return f"{'-' if change < 0 else '+'}{after.format(abs(change))}" if change else "0"


def _ended(a: EngineData, b: EngineData) -> Iterator[Ended]:
    """Yields the requests that were unfinished or unknown at A and are finished at B."""
    for request_id, request in a.requests.items():
        if request.finish_reason is None and request_id not in b.requests:
            yield Ended(request_id, None)
    for request_id in b.finished:
        before = a.requests.get(request_id)
        if before is None or before.finish_reason is None:
            yield Ended(request_id, b.requests[request_id].finish_reason)


def _changes(a: EngineData, b: EngineData) -> tuple[list[SequenceDifference], int]:
    """Returns the changed sequences, and the number of the unchanged ones."""
    changed: list[SequenceDifference] = []
    num_unchanged = 0
    for seq_id, before in a.sequences.items():
        after = b.sequences.get(seq_id)
        if after is None or any(
            SequenceStatus.is_finished(sequence.status) for sequence in (before, after)
        ):
            continue
        old, new = a.requests[before.request_id], b.requests[after.request_id]
        preemptions = new.num_preemptions - old.num_preemptions
        difference = SequenceDifference(
            sequence_name(new, after),
            status_word(old, before),
            status_word(new, after),
            len(after.output_token_ids) - len(before.output_token_ids),
            after.num_computed_tokens - before.num_computed_tokens,
            len(after.block_table) - len(before.block_table),
            preemptions,
            new.preempted_for if preemptions else None,
        )
        differs = (
            difference.status_before != difference.status_after
            or difference.output_tokens
            or difference.computed_tokens
            or preemptions
            or after.block_table != before.block_table
        )
        if differs:
            changed.append(difference)
        else:
            num_unchanged += 1
    return changed, num_unchanged


def _blocks(a: EngineData, b: EngineData) -> tuple[int, int, int]:
    """Returns the numbers of blocks taken, released, and with other owners."""
    before, after = _owners(a), _owners(b)
    moved = sum(before[block] != after[block] for block in before.keys() & after.keys())
    return len(after.keys() - before.keys()), len(before.keys() - after.keys()), moved


def _owners(state: EngineData) -> dict[int, set[int]]:
    owners: dict[int, set[int]] = {}
    for sequence in state.sequences.values():
        for own in (sequence.block_table, *sequence.group_block_tables):
            for block in own:
                owners.setdefault(block, set()).add(sequence.seq_id)
    return owners


def _section(title: str, lines: Iterable[str], count: int) -> Iterator[str]:
    """Yields a title with a count, and the lines, if there are any."""
    if not count:
        return
    yield f"{title}: {fmt.count(count)}"
    yield from lines
    yield ""


def _listed(lines: Iterable[str], count: int) -> Iterator[str]:
    """Yields the first of the lines, and how many there are more."""
    for number, line in enumerate(lines):
        if number == MAX_LISTED:
            yield f"  …and {fmt.count(count - MAX_LISTED)} more"
            break
        yield line


def _folded(request_ids: Sequence[str], title: str = "") -> Iterator[str]:
    """Yields the first of the ids, several in a line, behind a title."""
    names = ", ".join(request_ids[:MAX_LISTED])
    if len(request_ids) > MAX_LISTED:
        names += f" and {fmt.count(len(request_ids) - MAX_LISTED)} more"
    yield from textwrap.wrap(
        title + names, _LINE, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
    )


def _describe_change(change: SequenceDifference) -> str:
    parts = [change.status_after]
    if change.status_before != change.status_after:
        parts = [f"{change.status_before} → {change.status_after}"]
    for number, noun in ((change.output_tokens, "output token"), (change.blocks, "block")):
        if number:
            parts.append(f"{'+' if number > 0 else ''}{fmt.plural(number, noun)}")
    if change.preemptions > 0:
        times = "" if change.preemptions == 1 else f" {change.preemptions} times"
        name = change.name.partition("/")[0]
        parts.append(f"preempted{times}{preemption_cause(name, change.preempted_for)}")
    elif change.computed_tokens and not change.output_tokens:
        parts.append(f"{change.computed_tokens:+,} computed tokens")
    return ", ".join(parts)
