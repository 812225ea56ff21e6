"""The explanation of one request's latency together with its account, read in slices."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.explain.explanation import Explanation
from seqtop.history.timeline import Timeline
from seqtop.ledger.account import Account, Charge
from seqtop.ledger.ledger import Ledger
from seqtop.state import EngineState, RequestState
from seqtop.state.wait_causes import IN_PROGRESS
from seqtop.wire.messages import Event


class ChargedExplanation(Explanation):
    """An explanation that also charges the time of the request.

    Args:
        timeline: The timeline; it may grow.
        request: The request, as it is at `position`.
        position: The position up to which its time is explained.
    """

    needs_state = True

    def __init__(self, timeline: Timeline, request: RequestState, position: int) -> None:
        super().__init__(timeline, request, position)
        self._request = request
        self._ledger = Ledger(self._is_it, with_end=lambda _: self._request)
        self._account: Account | None = None

    def charges(self) -> list[Charge]:
        """Returns the charges of what is read, the largest first; none before its arrival."""
        if self._account is None:
            return []
        charges = self._account.charges()
        last = self._chain.open_part(self.now) if self.is_complete else None
        if last is not None:
            charges.append(Charge("unexplained", None, IN_PROGRESS, "unexplained", last.seconds))
        return charges

    def start(self, position: int, state: EngineState) -> None:
        """Begins with a state, or continues from one."""
        super().start(position, state)
        self._ledger.start(position, state)
        self._find_account()

    def before(self, event: Event) -> None:
        """Reads who holds what before a step."""
        self._ledger.before(event)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Explains and charges the time up to the end of an event."""
        super().apply(position, event, touched)
        self._ledger.apply(position, event, touched)
        self._find_account()

    def _is_it(self, request: RequestState) -> bool:
        wanted = self._request
        is_same = request.metrics.arrival_time == wanted.metrics.arrival_time
        return request.request_id == wanted.request_id and is_same

    def _find_account(self) -> None:
        if self._account is None:
            self._account = next(iter(self._ledger.open), None)
