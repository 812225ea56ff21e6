"""The summary of an engine: the figures by which it is shown and ranked among others.

A publisher makes it for viewers that show a list of engines without following each one, and a
viewer that follows an engine makes it of its own copy of the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from seqtop.sequence import SequenceStatus
from seqtop.state.latency import Latencies
from seqtop.state.model import EngineData
from seqtop.state.verdict import EngineVerdict, of_last_minute
from seqtop.wire.messages import EngineSummary, Event, Step
from seqtop.wire.snapshot import Snapshot

RATES: Final = ("generated", "prefill", "steps")
"""The names of the rates, as in `seqtop.history.step_series`."""
LEAST_SECONDS: Final = 0.5
"""The shortest time of which a publisher gives rates."""
MAX_LIMIT: Final = 80
"""The most characters of a verdict in a summary."""
MAX_REASON: Final = 200
"""The most characters of the reason why an engine stopped."""
_LIMITED_BY: Final = "limited by "


def summarize(
    state: EngineData,
    latencies: Latencies,
    rates: Mapping[str, float] | None,
    verdict: EngineVerdict,
) -> EngineSummary | None:
    """Returns the summary of an engine; `None` before its first `EngineInfo`.

    Args:
        state: Its newest state.
        latencies: Its latencies at that time.
        rates: `RATES`, per second; `None` if they are not known.
        verdict: What limited it in the last minute.
    """
    info, stats, counts = state.info, state.stats, state.num_by_status
    if info is None:
        return None
    ttft, itl = (latencies.windows[figure].figures() for figure in ("ttft", "itl"))
    return EngineSummary(
        time=state.time,
        engine_id=info.engine_id,
        model=info.model,
        data_parallel_rank=info.data_parallel_rank,
        kv_role=role if isinstance(role := info.scheduler_settings.get("kv_role"), str) else "",
        max_num_seqs=info.max_num_seqs,
        num_gpu_blocks=info.num_gpu_blocks,
        step=state.step,
        num_running=counts[SequenceStatus.RUNNING],
        num_waiting=counts[SequenceStatus.WAITING],
        num_swapped=counts[SequenceStatus.SWAPPED],
        num_parked=sum(state.num_parked.values()),
        num_used_blocks=None if stats is None else stats.num_used_blocks,
        num_free_blocks=None if stats is None else stats.num_free_blocks,
        num_prefill_tokens=None if stats is None else stats.num_prefill_tokens,
        num_decode_tokens=None if stats is None else stats.num_decode_tokens,
        num_preemptions=None if stats is None else stats.num_preemptions,
        oldest_wait=oldest_wait(state, latencies),
        ttft_p50=_known(ttft.p50),
        ttft_p99=_known(ttft.p99),
        itl_p50=_known(itl.p50),
        itl_p99=_known(itl.p99),
        generated_rate=None if rates is None else rates["generated"],
        prefill_rate=None if rates is None else rates["prefill"],
        step_rate=None if rates is None else rates["steps"],
        limit=_limit(verdict),
        is_limited=verdict.cause is not None,
        stopped=None if state.stopped is None else _cut(state.stopped, MAX_REASON),
    )


def group_of(summary: EngineSummary) -> tuple[str, str]:
    """Returns the group of an engine: those that serve the same model in the same role."""
    return summary.model, summary.kv_role


def oldest_wait(state: EngineData, latencies: Latencies) -> float:
    """Returns the longest time that a request now waits, or all wait for a step, in seconds."""
    is_busy = state.num_by_status[SequenceStatus.RUNNING] > 0 and state.blocked.until > 0
    since_step = state.time - state.blocked.until if is_busy else 0.0
    waits = latencies.oldest_wait, since_step
    return max([0.0, *(wait for wait in waits if math.isfinite(wait))])


def forms(limit: str) -> list[str]:
    """Returns the sentence of a summary on its limit and shorter forms of it, the longest first."""
    return [limit, limit.partition("; ")[0], limit.partition(": ")[0]]


def _limit(verdict: EngineVerdict) -> str:
    whole = [form.removeprefix(_LIMITED_BY) for form in verdict.forms()]
    short = next((form for form in whole if len(form) <= MAX_LIMIT), whole[-1] if whole else "")
    return _cut(short, MAX_LIMIT)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class Summarizer:
    """Makes the summaries of an engine from its events, in its publisher.

    Latencies and rates are those since it was created.
    """

    def __init__(self, state: EngineData) -> None:
        self._latencies = Latencies()
        self._latencies.observe(state, None)
        self._sums = dict.fromkeys(RATES, 0.0)
        self._before: tuple[float, dict[str, float]] | None = None
        """The time from which on the next rates are, and the sums at it."""
        self._rates: dict[str, float] | None = None

    def observe(
        self, state: EngineData, touched: Iterable[int] | None, event: Event | Snapshot
    ) -> None:
        """Counts an event that `state` has applied.

        Args:
            state: The state.
            touched: The sequences that changed; `None` means all.
            event: The event.
        """
        self._latencies.observe(state, None if isinstance(event, Snapshot) else touched)
        if isinstance(event, Step):
            self._sums["steps"] += 1
            self._sums["prefill"] += event.stats.num_prefill_tokens
            self._sums["generated"] += sum([len(own.new_token_ids) for own in event.sequences])

    def summary(self, state: EngineData) -> EngineSummary | None:
        """Returns the summary of a state; `None` before the first `EngineInfo`."""
        before = self._before
        if before is None or not 0 <= state.time - before[0] < LEAST_SECONDS:
            seconds = 0.0 if before is None else state.time - before[0]
            if before is not None and 0 < seconds < math.inf:
                self._rates = {key: (self._sums[key] - before[1][key]) / seconds for key in RATES}
            self._before = state.time, dict(self._sums)
        return summarize(state, self._latencies, self._rates, of_last_minute(state))
