"""The rule on figures that cannot be, whatever the engine does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.text.format import plural
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    SequenceUpdate,
    Step,
    StepStats,
    StreamingUpdate,
)

_COUNTS = (
    "num_running",
    "num_waiting",
    "num_used_blocks",
    "num_free_blocks",
    "num_cached_blocks",
    "num_prefill_tokens",
    "num_decode_tokens",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "scheduler_time",
    "model_forward_time",
    "model_execute_time",
    "num_swapped",
    "num_free_cpu_blocks",
    "num_used_loras",
    "num_encoder_tokens",
    "num_used_encoder_slots",
    "paced_time",
)
"""The figures of a step, none of which can be negative."""
_TOTALS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
"""Those that are counted since the engine's start."""
_OF_SEQUENCE = (
    "num_computed_tokens",
    "num_cached_tokens",
    "num_external_tokens",
    "num_draft_tokens",
    "num_accepted_tokens",
)
_IMPOSSIBLE = rule(
    "impossible-figure",
    "a figure cannot be: it is negative, it falls although it is a total, it is larger than that of"
    " which it is a part, or it is not the number of what is there",
)


def has_impossible_pool(stats: StepStats, info: EngineInfo) -> bool:
    """Returns whether no sum of the numbers of blocks says anything."""
    numbers = stats.num_used_blocks, stats.num_free_blocks, stats.num_cached_blocks or 0
    return min(numbers) < 0 or stats.num_used_blocks > info.num_gpu_blocks


class FigureRules(RuleGroup):
    """The rule on the figures of steps, of sequences and of prompts."""

    _before: StepStats | None = None
    """The figures of the step before."""
    _impossible: frozenset[str] = frozenset()
    """The figures of the last step that cannot be, which are reported once."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the figures of an event."""
        if isinstance(event, EngineInfo):
            self._before = None
        elif isinstance(event, RequestArrived | StreamingUpdate):
            yield from self._of_prompt(event)
        elif isinstance(event, Step):
            yield from self._figures(event)
            for update in event.sequences:
                if _is_impossible(update):
                    yield from self._of_update(update)

    @_IMPOSSIBLE
    def _figures(self, step: Step) -> Iterator[Finding]:
        stats, before = step.stats, self._before
        self._before = stats
        found = dict(_impossible(stats, before, self.state.info))
        for name, message in found.items():
            if name not in self._impossible:
                yield self.of_engine(message)
        # What falls is a finding each time.
        self._impossible = frozenset(name for name in found if not name.startswith("fell "))

    @_IMPOSSIBLE
    def _of_prompt(self, event: RequestArrived | StreamingUpdate) -> Iterator[Finding]:
        number, num_known = event.num_prompt_tokens, len(event.prompt_token_ids)
        if number < 0 or (num_known and number != num_known):
            there = f", and the prompt has {plural(num_known, 'token')}" if num_known else ""
            yield self.of_engine(
                f"num_prompt_tokens is {number:,}{there}", request_id=event.request_id
            )

    @_IMPOSSIBLE
    def _of_update(self, update: SequenceUpdate) -> Iterator[Finding]:
        wrong = [
            f"{name} is {value:,}"
            for name in _OF_SEQUENCE
            if (value := getattr(update, name)) is not None and value < 0
        ]
        drafted, accepted = update.num_draft_tokens, update.num_accepted_tokens
        if drafted is not None and accepted is not None and accepted > drafted:
            wrong.append(f"num_accepted_tokens is {accepted:,} of {drafted:,} num_draft_tokens")
        cached, external = update.num_cached_tokens, update.num_external_tokens
        if cached is not None and external is not None and external > cached:
            wrong.append(f"num_external_tokens is {external:,} of {cached:,} num_cached_tokens")
        sequence = self.state.sequences.get(update.seq_id)
        for message in wrong:
            if sequence is None:
                yield self.of_engine(message)
            else:
                yield self.of_sequence(sequence, message)


def _is_impossible(update: SequenceUpdate) -> bool:
    """Returns whether an update has a figure that cannot be; most have none of these."""
    drafted, cached = update.num_draft_tokens, update.num_cached_tokens
    return (
        (update.num_computed_tokens or 0) < 0
        or (cached is not None and not 0 <= (update.num_external_tokens or 0) <= cached)
        or (drafted is not None and not 0 <= (update.num_accepted_tokens or 0) <= drafted)
    )


def _impossible(
    stats: StepStats, before: StepStats | None, info: EngineInfo | None
) -> Iterator[tuple[str, str]]:
    """Yields each figure of a step that cannot be, with a sentence."""
    for name in _COUNTS:
        value = getattr(stats, name)
        if value is not None and value < 0:
            yield name, f"{name} is {value:,}, and cannot be negative"
    if before is not None:
        for name in _TOTALS:
            value, last = getattr(stats, name), getattr(before, name)
            if value < last:
                yield (
                    f"fell {name}",
                    f"{name} fell from {last:,} to {value:,}, and counts since the engine's start",
                )
    for part, whole in _parts(stats, info):
        (name, value), (of, limit) = part, whole
        if value is not None and limit is not None and value > limit >= 0:
            yield f"part {name}", f"{name} is {value:,}, more than {of}, which is {limit:,}"


def _parts(
    stats: StepStats, info: EngineInfo | None
) -> Iterator[tuple[tuple[str, int | None], tuple[str, int | None]]]:
    """Yields pairs of a figure and of the one of which it is a part, each with its name."""
    yield (
        ("prefix_cache_hits", stats.prefix_cache_hits),
        ("prefix_cache_queries", stats.prefix_cache_queries),
    )
    if stats.cuda_graph is not None:
        graph = stats.cuda_graph
        yield (
            ("cuda_graph.num_tokens", graph.num_tokens),
            ("cuda_graph.num_padded_tokens", graph.num_padded_tokens),
        )
    if info is not None:
        yield (
            ("num_used_blocks", stats.num_used_blocks),
            ("the pool", info.num_gpu_blocks),
        )
        yield ("num_used_loras", stats.num_used_loras), ("max_loras", info.max_loras)
        yield (
            ("num_free_cpu_blocks", stats.num_free_cpu_blocks),
            ("num_cpu_blocks", info.num_cpu_blocks),
        )
