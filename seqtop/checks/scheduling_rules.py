"""How much a step may run, and who may be kept waiting."""

from __future__ import annotations

from collections.abc import Iterator

from seqtop.checks.finding import Finding, Rules
from seqtop.sequence import SequenceGroupMetadata, SequenceGroupMetadataLike
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire import decode_rows
from seqtop.wire.messages import Step


class SchedulingRules(Rules):
    """Of steps, and of requests in the order in which they arrive.

    Args:
        starvation_time: Seconds that a request may wait while later ones overtake it.
    """

    def __init__(self, state: EngineState, *, starvation_time: float) -> None:
        super().__init__(state)
        self._starvation_time = starvation_time
        self._waiting: dict[int, dict[str, None]] = {}
        """By priority, the ids of requests never scheduled so far, in order of arrival."""
        self._starved: set[str] = set()
        for request in state.requests.values():
            self.arrived(request)

    def arrived(self, request: RequestState) -> None:
        """From now on it may be overtaken."""
        if request.metrics.first_scheduled_time is None and request.finish_reason is None:
            self._waiting.setdefault(request.priority, {})[request.request_id] = None

    def scheduled(self, request: RequestState) -> Iterator[Finding]:
        """Look who of its rank has waited longer, if `request` is scheduled for the first time."""
        queue = self._waiting.get(request.priority, {})
        if request.request_id not in queue:
            return
        del queue[request.request_id]
        first = self.state.requests.get(next(iter(queue), ""))
        arrived = request.metrics.arrival_time
        if first is None or first.request_id in self._starved:
            return
        waited = self.state.time - first.metrics.arrival_time
        if first.metrics.arrival_time < arrived and waited > self._starvation_time:
            self._starved.add(first.request_id)
            yield self.finding(
                "starvation",
                f"it has waited {waited:.1f} s while {request.request_id}, which arrived"
                f" {arrived - first.metrics.arrival_time:.1f} s later, is scheduled",
                request_id=first.request_id,
            )

    def finished(self, request: RequestState) -> None:
        """It cannot be overtaken any more."""
        self._waiting.get(request.priority, {}).pop(request.request_id, None)
        self._starved.discard(request.request_id)

    def step(self, step: Step) -> Iterator[Finding]:
        """Hold a step against the engine's limits."""
        info, stats = self.state.info, step.stats
        if info is None:
            return
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens > info.max_num_batched_tokens:
            yield self.finding(
                "budget",
                f"{tokens} tokens were computed, the budget is {info.max_num_batched_tokens}",
            )
        num_seqs = decode_rows.num_decodes(step)
        num_seqs += sum(_num_seqs(group) for group in step.execute.seq_group_metadata_list)
        if num_seqs > info.max_num_seqs:
            yield self.finding(
                "budget", f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}"
            )


def _num_seqs(group: SequenceGroupMetadataLike) -> int:
    if isinstance(group, SequenceGroupMetadata):
        return len(group.seq_data)
    return len(group.seq_data_delta)
