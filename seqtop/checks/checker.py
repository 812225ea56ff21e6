"""One engine, followed by all rules."""

from __future__ import annotations

from collections.abc import Iterator

from seqtop.checks.block_rules import BlockRules
from seqtop.checks.finding import Finding
from seqtop.checks.lifecycle_rules import LifecycleRules
from seqtop.checks.scheduling_rules import SchedulingRules
from seqtop.checks.time_rules import TimeRules
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step


class Checker:
    """Reports what cannot be right; `apply` takes the place of `EngineState.apply`.

    Args:
        state: Where to begin: a snapshot, or (by default) an engine that is about to start.
        starvation_time: Seconds that a request may wait while later ones overtake it.
    """

    def __init__(self, state: EngineState | None = None, *, starvation_time: float = 60.0) -> None:
        self.state = state or EngineState()
        self._blocks = BlockRules(self.state)
        self._lives = LifecycleRules(self.state)
        self._scheduling = SchedulingRules(self.state, starvation_time=starvation_time)
        self._times = TimeRules(self.state)

    def apply(self, event: Event) -> list[Finding]:
        """Apply `event` to the state; return what it shows to be wrong."""
        findings = list(self._blocks.before(event))
        before = self._lives.remember(event)
        late = self._lives.late(event)
        findings += late
        # Those are anomalies, too, which have been told of thereby.
        num_anomalies = self.state.num_anomalies + len(late)
        touched = list(self.state.apply(event))
        if self.state.num_anomalies > num_anomalies:
            findings.append(self._lives.finding("unknown", self.state.last_anomaly or ""))
        findings += self._blocks.after(event, touched)
        if isinstance(event, Step):
            findings += self._times.step(event)
            findings += self._scheduling.step(event)
            findings += self._lives.step(event, before)
            findings += self._ran(event)
        elif isinstance(event, RequestArrived):
            if request := self.state.requests.get(event.request_id):
                self._scheduling.arrived(request)
        elif isinstance(event, RequestFinished):
            findings += self._lives.finished(event)
            if request := self.state.requests.get(event.request_id):
                self._scheduling.finished(request)
                findings += self._times.request(request)
        return findings

    def check_pool(self) -> Iterator[Finding]:
        """Hold the pool's figures against the tables, as of the last step; call it at the end."""
        return self._blocks.pool()

    def _ran(self, step: Step) -> Iterator[Finding]:
        """Look at the requests that were in a step's batch."""
        for group in step.execute.seq_group_metadata_list:
            if request := self.state.requests.get(group.request_id):
                yield from self._request(request)
        for seq_id in step.decodes.seq_ids if step.decodes else ():
            if sequence := self.state.sequences.get(seq_id):
                yield from self._lives.decoded(sequence)
                if not SequenceStatus.is_finished(sequence.status):
                    yield from self._request(self.state.requests[sequence.request_id])

    def _request(self, request: RequestState) -> Iterator[Finding]:
        yield from self._times.request(request)
        yield from self._scheduling.scheduled(request)
