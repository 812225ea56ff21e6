"""The checker: applies events to a state and runs every rule."""

from collections.abc import Iterator, Sequence

from seqtop.checks.block_rules import BlockRules
from seqtop.checks.block_tables import BlockTables
from seqtop.checks.figure_rules import FigureRules
from seqtop.checks.finding import Finding
from seqtop.checks.lifecycle_rules import LifecycleRules
from seqtop.checks.limit_rules import LimitRules
from seqtop.checks.liveness_rules import LivenessRules
from seqtop.checks.message_rules import MessageRules
from seqtop.checks.outside_waits import OutsideWaits
from seqtop.checks.pool_rules import PoolRules
from seqtop.checks.prefix_cache_rules import PrefixCacheRules
from seqtop.checks.rules import RuleGroup
from seqtop.checks.scheduling_rules import SchedulingRules
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.checks.time_rules import TimeRules
from seqtop.checks.wait_graph_rules import WaitGraphRules
from seqtop.checks.wait_rules import WaitRules
from seqtop.checks.waste_rules import WasteRules
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire.batch import members, scheduled_requests
from seqtop.wire.messages import Event, Step

__all__ = ["Checker", "Finding"]


class Checker:
    """Checks a stream of events without gaps; `apply` replaces `EngineState.apply`.

    Args:
        state: The state to start from; by default, that of an engine about to start.
        thresholds: The thresholds of the rules.
    """

    def __init__(
        self, state: EngineState | None = None, *, thresholds: Thresholds = DEFAULT_THRESHOLDS
    ) -> None:
        self.state = state or EngineState()
        self._tables = BlockTables(self.state)
        self._outside = OutsideWaits(self.state, thresholds)
        self._groups: tuple[RuleGroup, ...] = (
            MessageRules(self.state),
            FigureRules(self.state),
            PoolRules(self.state, self._tables),  # first: it is about the step before
            BlockRules(self.state, self._tables),
            PrefixCacheRules(self.state, self._tables),
            LifecycleRules(self.state),
            SchedulingRules(self.state),
            LivenessRules(self.state, thresholds, self._outside),
            WaitRules(self.state, thresholds),
            WaitGraphRules(self.state, self._outside),
            LimitRules(self.state, thresholds, self._outside),
            WasteRules(self.state, thresholds, self._outside),
            TimeRules(self.state),
        )
        self._before: list[Finding] = []
        # The hooks of the groups that have them: an event costs a call of each.
        self._checks_before = [
            group.before for group in self._groups if type(group).before is not RuleGroup.before
        ]
        self._checks_after = [
            group.after for group in self._groups if type(group).after is not RuleGroup.after
        ]
        self._checks_of_running = [
            group.ran for group in self._groups if type(group).ran is not RuleGroup.ran
        ]

    def apply(self, event: Event) -> list[Finding]:
        """Applies `event` to the state and returns the findings."""
        return list(self.findings(event))

    def findings(self, event: Event) -> Iterator[Finding]:
        """Applies `event` to the state before the first of the findings, which may be a million."""
        self.before(event)
        yield from self.after(event, [*self.state.apply(event)])

    def before(self, event: Event) -> None:
        """Checks the state before an event is applied; the findings are the first of `after`."""
        batch = list(members(event)) if isinstance(event, Step) else []
        for group in self._groups:
            group.members = batch
        self._before = [finding for check in self._checks_before for finding in check(event)]

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Yields the findings about an event after it was applied to the state.

        Args:
            event: The event.
            touched: The ids of the sequences that it changed.
        """
        self._tables.update(touched)
        self._outside.update(event)
        yield from self._before
        for check_after in self._checks_after:
            yield from check_after(event, touched)
        if isinstance(event, Step):
            for request in self._batch(event):
                for check in self._checks_of_running:
                    yield from check(request)

    def end(self) -> list[Finding]:
        """Returns the findings that show only after the last event."""
        return [finding for group in self._groups for finding in group.end()]

    def _batch(self, step: Step) -> Iterator[RequestState]:
        """Yields the requests in the batch of a step."""
        for request_id in scheduled_requests(step):
            if request := self.state.requests.get(request_id):
                yield request
