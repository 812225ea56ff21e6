"""Misses of the prefix cache in words, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from seqtop.misses.cache_misses import CacheMisses, Lookup, Totals
from seqtop.misses.nearest_prefix import PrefixDifference
from seqtop.state.miss_causes import MISS_LABELS
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.wire.messages import MissCause, PrefixMiss

_CAUSES: dict[MissCause, str] = {
    "new_tokens": "no request had had them",
    "evicted": "their blocks were taken for other requests",
    "not_stored": "another request had them, and had not computed them yet",
    "extra_keys": "cached for another LoRA adapter or another cache salt",
    "broken_prefix": "cached, behind tokens that are not",
    "partial_block": "always computed, since they fill no block",
    "not_cacheable": "of requests that need all tokens computed",
    "unknown": "the engine does not know why",
}
_SHOWN_PERCENT = (5, 10, 20, 30, 50, 100, 200, 400)
"""The sizes in the text; JSON has all."""
_MAX_LISTED = 8
_MAX_PARTS = 3


def describe(lookup: Lookup, *, with_text: bool) -> list[str]:
    """Describes the misses of one admission in sentences.

    Args:
        lookup: The admission.
        with_text: Whether the texts of the request and of another one are quoted.
    """
    found = f"{lookup.num_hit_tokens:,} of {fmt.plural(lookup.num_tokens, 'token')} found"
    again = " when it was recomputed" if lookup.is_again else ""
    sentences = [f"{found} in the prefix cache{again} at step {lookup.step:,}."]
    parts = [*_parts(lookup)]
    more = sum(miss.num_tokens for miss in lookup.misses[_MAX_PARTS:])
    if more:
        parts.append(f"{more:,} more")
    if parts:
        sentences.append(f"Missed: {'; '.join(parts)}.")
    if lookup.needed:
        sizes = [
            f"{fmt.plural(num_blocks, 'block')} (+{percent}%)"
            for num_blocks, percent in lookup.needed[:_MAX_PARTS]
        ]
        sentences.append(f"A larger pool would have had {', '.join(sizes)}.")
    if lookup.difference is not None:
        sentences.append(_describe_difference(lookup.difference, with_text=with_text))
    return sentences


def _parts(lookup: Lookup) -> Iterator[str]:
    misses = zip(lookup.misses, lookup.reused_after, strict=True)
    for miss, reused_after in [*misses][:_MAX_PARTS]:
        yield describe_miss(miss, reused_after)


def describe_miss(miss: PrefixMiss, reused_after: int | None) -> str:
    """Describes consecutive tokens that were not found.

    Args:
        miss: The tokens.
        reused_after: The blocks that were taken since their eviction, if that is known.
    """
    tokens = fmt.plural(miss.num_tokens, "token")
    if miss.cause != "evicted":
        by = f" ({miss.request_id})" if miss.request_id is not None else ""
        return f"{tokens} {MISS_LABELS[miss.cause]}{by}"
    at = f" at step {miss.step:,}" if miss.step is not None else ""
    room = f" to make room for {miss.request_id}" if miss.request_id is not None else ""
    later = (
        f", reused {fmt.plural(reused_after, 'block')} later" if reused_after is not None else ""
    )
    return f"{tokens} evicted{at}{room}{later}"


def _describe_difference(difference: PrefixDifference, *, with_text: bool) -> str:
    start = f"The nearest cached prefix, of {difference.request_id}, differs from token"
    start = f"{start} {difference.position:,} on"
    if not with_text:
        return f"{start}."
    if difference.text is None or difference.before is None or difference.other_text is None:
        ids = f"{difference.token_id} here, {difference.other_token_id} there"
        return f"{start}: its id is {ids}; the text is not known."
    own, other = _quoted(difference.text), _quoted(difference.other_text)
    return f"{start}: after {_quoted(difference.before)} comes {own} here, {other} there."


def _quoted(text: str) -> str:
    return f"“{text}”" if text else "the end"


def worst(misses: CacheMisses) -> list[Lookup]:
    """Returns the kept admissions with the most evicted tokens, the worst first."""
    evicted = [(evicted_tokens(lookup), lookup) for lookup in misses.until()]
    ranked = sorted((item for item in evicted if item[0]), key=lambda item: -item[0])
    return [lookup for _, lookup in ranked[:_MAX_LISTED]]


def evicted_tokens(lookup: Lookup) -> int:
    """Returns the tokens that an admission missed since they had been evicted."""
    return sum(miss.num_tokens for miss in lookup.misses if miss.cause == "evicted")


def ranked_causes(tokens: dict[MissCause, int]) -> list[tuple[MissCause, int]]:
    """Returns the causes and their tokens, the most first."""
    return sorted(tokens.items(), key=lambda item: -item[1])


def limits(misses: CacheMisses, totals: Totals) -> list[str]:
    """Returns sentences about what the misses, and those of larger pools, do not say."""
    sentences = []
    if misses.num_impossible:
        admissions = fmt.plural(misses.num_impossible, "admission")
        sentences.append(f"{admissions} left out, with impossible numbers of tokens.")
    if misses.reason:
        return [*sentences, misses.reason]
    if totals.num_new:
        share = fmt.percent(totals.num_new, max(sum(_classes(totals)), 1))
        sentences.append(f"{share} of the missed blocks had never been stored: no pool finds them.")
    if totals.num_unexplained:
        why = "they were stored before the first recorded step" if misses.starts_late else ""
        why = f": {why}" if why else ""
        blocks = fmt.plural(totals.num_unexplained, "missed block")
        sentences.append(f"Of {blocks} no size is known{why}; they count as missed by all pools.")
    if totals.num_differing:
        sentences.append(
            f"The repeated pool differs from the recorded one in {totals.num_differing:,} of"
            f" {totals.num_blocks:,} looked-up blocks."
        )
    if misses.rate < 1:
        sentences.append(
            f"Estimated from {misses.rate:.3g} of all blocks, sampled by their hashes."
        )
    return sentences


def _classes(totals: Totals) -> tuple[int, ...]:
    return totals.num_new, totals.num_larger, totals.num_unexplained, *totals.needed


def as_text(misses: CacheMisses, *, with_text: bool) -> str:
    """Returns the causes of misses, the misses of larger pools, and the worst admissions.

    Args:
        misses: The misses.
        with_text: Whether the texts of requests are quoted where they differ.
    """
    totals = misses.totals()
    lines = [*_summary(misses, totals), *_causes(totals)]
    curve = misses.curve(totals)
    if curve and totals.num_missed:
        rows = [("more", "blocks", "missed", "removed")]
        for point in curve:
            if point.percent in (0, *_SHOWN_PERCENT):
                removed = totals.num_missed_first - point.num_missed_blocks
                share = fmt.percent(removed, totals.num_missed_first) if point.percent else ""
                more = f"+{point.percent}%" if point.percent else "as is"
                numbers = f"{point.num_gpu_blocks:,}", f"{point.num_missed_blocks:,}"
                rows.append((more, *numbers, share))
        lines += ["", *table(rows)]
    lines += ["", *limits(misses, totals)]
    if curve:
        lines.append(
            "The schedule is that of the recording; `seqtop whatif` runs the scheduler, too."
        )
    if listed := worst(misses):
        lines += ["", "the most evicted tokens:"]
        for lookup in listed:
            sentences = " ".join(describe(lookup, with_text=with_text))
            lines.append(f"  {lookup.request_id}: {sentences}")
    return plain(lines)


def _summary(misses: CacheMisses, totals: Totals) -> list[str]:
    if not totals.num_lookups:
        return ["No admission with a lookup in the prefix cache."]
    admissions = fmt.plural(totals.num_lookups, "admission")
    if not totals.num_blocks:
        return [f"{admissions}"]
    found = fmt.percent(totals.num_hits, totals.num_blocks)
    again = f", {totals.num_again:,} of them after preemptions" if totals.num_again else ""
    blocks = f"{fmt.plural(totals.num_blocks, 'full block')} of {misses.block_size} tokens"
    return [f"{admissions} looked up {blocks}: {found} found, {totals.num_missed:,} missed{again}"]


def _causes(totals: Totals) -> Iterable[str]:
    all_tokens = sum(totals.tokens.values())
    if not all_tokens:
        return
    rows = [("tokens", "share", "missed since")]
    for cause, tokens in ranked_causes(totals.tokens):
        words = f"{MISS_LABELS[cause]}: {_CAUSES[cause]}"
        rows.append((f"{tokens:,}", fmt.percent(tokens, all_tokens), words))
    yield ""
    yield from table(rows, left=(2,))


class CurvePointDocument(msgspec.Struct):
    """The misses of a pool with more blocks, at the first admissions of requests, as JSON."""

    percent: int
    """Percent of the recorded blocks more."""
    num_gpu_blocks: int
    num_missed_blocks: int


class MissDocument(msgspec.Struct, kw_only=True):
    """Consecutive tokens that were not in the prefix cache, as JSON."""

    cause: MissCause
    num_tokens: int
    step: int | None
    """The step of the eviction."""
    request_id: str | None
    """The request that the cause is about."""
    reused_after_blocks: int | None
    """The blocks that were taken from the pool since the step of an eviction."""


class NeededDocument(msgspec.Struct):
    """Consecutive missed blocks that one size of the pool would have found, as JSON."""

    num_blocks: int
    percent: int
    """The smallest growth of the pool."""


class PrefixDifferenceDocument(msgspec.Struct):
    """The first difference between a sequence and the nearest cached prefix, as JSON.

    All but the first two are null without `--with-text`.
    """

    request_id: str
    """The request that stored the cached prefix."""
    position: int
    """The first token that differs, from 0."""
    token_id: int | None = None
    other_token_id: int | None = None
    before: str | None = None
    text: str | None = None
    other_text: str | None = None


class LookupDocument(msgspec.Struct, kw_only=True):
    """An admission of a sequence, as the prefix cache found it, as JSON."""

    step: int
    time: float
    """Epoch seconds."""
    request_id: str
    seq_id: int
    num_tokens: int
    num_hit_tokens: int
    misses: list[MissDocument]
    needed: list[NeededDocument]
    is_again: bool
    """True after a preemption."""
    difference: PrefixDifferenceDocument | None


class MissesDocument(msgspec.Struct, kw_only=True):
    """The misses of the prefix cache in a recording, as JSON. Blocks are full ones."""

    num_lookups: int
    block_size: int
    """Tokens of a block."""
    num_blocks: int
    num_hit_blocks: int
    num_missed_blocks: int
    num_missed_again: int
    num_missed_new: int
    num_unexplained: int
    num_differing: int
    num_missed_tokens: dict[MissCause, int]
    curve: list[CurvePointDocument]
    no_curve: str | None
    """The reason why there is no curve."""
    sample_rate: float
    lookups: list[LookupDocument]
    """The newest admissions with misses, the newest first."""


def as_json(misses: CacheMisses, *, with_text: bool) -> str:
    """Returns the same as JSON, with all sizes and all kept admissions."""
    totals = misses.totals()
    return indented_json(
        MissesDocument(
            num_lookups=totals.num_lookups,
            block_size=misses.block_size,
            num_blocks=totals.num_blocks,
            num_hit_blocks=totals.num_hits,
            num_missed_blocks=totals.num_missed,
            num_missed_again=totals.num_again,
            num_missed_new=totals.num_new,
            num_unexplained=totals.num_unexplained,
            num_differing=totals.num_differing,
            num_missed_tokens=totals.tokens,
            curve=[CurvePointDocument(*point) for point in misses.curve(totals)],
            no_curve=misses.reason or None,
            sample_rate=misses.rate,
            lookups=[_lookup(lookup, with_text=with_text) for lookup in misses.until()],
        )
    )


def _lookup(lookup: Lookup, *, with_text: bool) -> LookupDocument:
    difference = None
    if lookup.difference is not None:
        known = lookup.difference if with_text else lookup.difference[:2]
        difference = PrefixDifferenceDocument(*known)
    return LookupDocument(
        step=lookup.step,
        time=lookup.time,
        request_id=lookup.request_id,
        seq_id=lookup.seq_id,
        num_tokens=lookup.num_tokens,
        num_hit_tokens=lookup.num_hit_tokens,
        misses=[
            MissDocument(**msgspec.structs.asdict(miss), reused_after_blocks=reused_after)
            for miss, reused_after in zip(lookup.misses, lookup.reused_after, strict=True)
        ],
        needed=[NeededDocument(*needed) for needed in lookup.needed],
        is_again=lookup.is_again,
        difference=difference,
    )
