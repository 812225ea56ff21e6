"""Rules on the size of a step, and on the order in which requests are scheduled."""

from collections.abc import Iterator, Sequence

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.sequence import SequenceGroupMetadata, SequenceGroupMetadataLike
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire import decode_rows
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step


class SchedulingRules(RuleGroup):
    """Rules on steps, and on requests in order of arrival.

    Args:
        state: The state of the engine.
        starvation_time: Seconds that a request may wait while later ones overtake it.
    """

    def __init__(self, state: EngineState, *, starvation_time: float) -> None:
        super().__init__(state)
        self._starvation_time = starvation_time
        self._waiting: dict[int, dict[str, None]] = {}
        """The ids of requests that have not been scheduled, by priority, in order of arrival."""
        self._starved: set[str] = set()
        for request in state.requests.values():
            self._add_waiting(request)

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks a step against the engine's limits, and records arrivals and ends."""
        if isinstance(event, Step):
            yield from self._budget(event)
        if not isinstance(event, RequestArrived | RequestFinished):
            return
        request = self.state.requests.get(event.request_id)
        if request is None:
            return
        if isinstance(event, RequestArrived):
            self._add_waiting(request)
        else:
            self._waiting.get(request.priority, {}).pop(request.request_id, None)
            self._starved.discard(request.request_id)

    def ran(self, request: RequestState) -> Iterator[Finding]:
        """Checks whether an earlier request still waits."""
        yield from self._starvation(request)

    @rule("budget", "a step computed more tokens, or ran more sequences, than its limits allow")
    def _budget(self, step: Step) -> Iterator[Finding]:
        info, stats = self.state.info, step.stats
        if info is None:
            return
        tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        if tokens > info.max_num_batched_tokens:
            yield self.of_engine(
                f"{tokens} tokens were computed, the budget is {info.max_num_batched_tokens}"
            )
        num_seqs = decode_rows.num_decodes(step)
        num_seqs += sum(_num_seqs(group) for group in step.execute.seq_group_metadata_list)
        if num_seqs > info.max_num_seqs:
            yield self.of_engine(f"{num_seqs} sequences ran, the limit is {info.max_num_seqs}")

    @rule("starvation", "a request waits while later requests of no higher priority are scheduled")
    def _starvation(self, request: RequestState) -> Iterator[Finding]:
        """Checks the request that has waited longest when one is scheduled for the first time."""
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
            yield self.of_engine(
                f"it has waited {waited:.1f} s while {request.request_id}, which arrived"
                f" {arrived - first.metrics.arrival_time:.1f} s later, is scheduled",
                request_id=first.request_id,
            )

    def _add_waiting(self, request: RequestState) -> None:
        if request.metrics.first_scheduled_time is None and request.finish_reason is None:
            self._waiting.setdefault(request.priority, {})[request.request_id] = None


def _num_seqs(group: SequenceGroupMetadataLike) -> int:
    if isinstance(group, SequenceGroupMetadata):
        return len(group.seq_data)
    return len(group.seq_data_delta)
