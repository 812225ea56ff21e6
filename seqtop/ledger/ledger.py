"""The accounts of the requests of a recorded run, and what one request costs the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from seqtop.explain.chain import IndexedStep
from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.ledger.account import Account, Charge
from seqtop.state import EngineState, RequestState
from seqtop.state.harm import StepHarm
from seqtop.state.verdict import of_whole
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step
from seqtop.wire.snapshot import StepCosts


class Harm(msgspec.Struct, frozen=True):
    """Seconds by which one request delayed another."""

    request_id: str
    """The request that was delayed."""
    charges: list[Charge]
    """The charges to the other one in its account, the largest first."""

    @property
    def seconds(self) -> float:
        """The sum of the charges."""
        return sum(charge.seconds for charge in self.charges)


class HarmTotal(msgspec.Struct, frozen=True):
    """The seconds by which one request delayed all others, as the column *Harm* has them."""

    request_id: str
    seconds: float
    """The charges to it in the accounts of the others."""
    estimated_seconds: float
    """The estimated part of it."""
    waited_seconds: float
    """The seconds that it waited itself."""


class Ledger(Reader):
    """The accounts of requests, from a pass over a recording.

    Args:
        is_wanted: Whether a request gets an account.
        only: The other request whose charges are wanted; `None` for all.
        with_end: Returns a request with its final metrics, as far as they are known.
    """

    def __init__(
        self,
        is_wanted: Callable[[RequestState], bool],
        only: str | None = None,
        with_end: Callable[[RequestState], RequestState] = lambda request: request,
    ) -> None:
        self.accounts: list[Account] = []
        """Those that are complete."""
        self.state = EngineState()
        """The state after the last event."""
        self._with_end = with_end
        self._is_wanted = is_wanted
        self._only = only
        self._open: dict[str, Account] = {}
        self._step: tuple[StepHarm, IndexedStep] | None = None
        """The step that is read."""

    @property
    def open(self) -> list[Account]:
        """The accounts of requests that have not ended."""
        return list(self._open.values())

    def start(self, position: int, state: EngineState) -> None:
        """Starts from a state, or continues from one that the events so far do not lead to."""
        self.state = state
        for name, account in list(self._open.items()):
            request = state.requests.get(name)
            if request is None or request.metrics.arrival_time != account.chain.arrival_time:
                self._close(name)  # it ended in the gap, or with the engine, nobody knows when
                continue
            account.enter(None)
            account.chain.follow(state)
            account.chain.resume(request, state.time)
            if request.finish_reason is not None:
                self._close(name)
        for request in state.requests.values():
            if (begun := self._start(request)) is not None:
                begun.chain.resume(request, state.time)

    def before(self, event: Event) -> None:
        """Reads who holds what before a step."""
        self._step = None
        if isinstance(event, Step):
            self._step = StepHarm(self.state, event), IndexedStep(event)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Charges the time up to the end of an event, which is at `position`."""
        state = self.state
        if self._step is not None:
            delays, indexed = self._step
            delays.holdings.end(state)
            for account in self._open.values():
                account.enter(delays)
                account.chain.apply_step(position, indexed)
            return
        if isinstance(event, RequestArrived):
            request = state.requests.get(event.request_id)
            if request is not None:
                self._start(request)
        for account in self._open.values():
            account.enter(None)
            account.chain.apply(position, event)
        if isinstance(event, RequestFinished):
            ended = self._open.get(event.request_id)
            if ended is not None:
                if ended.chain.finished_time is None:
                    ended.chain.finished_time = event.metrics.finished_time
                ended.chain.end()
                self._close(event.request_id)

    def end(self) -> None:
        """Charges the time of unfinished requests up to the last event."""
        for account in self._open.values():
            account.enter(None)
            account.chain.close(self.state.time)
        self.accounts += self._open.values()
        self._open = {}

    def _close(self, request_id: str) -> None:
        self.accounts.append(self._open.pop(request_id))

    def _start(self, request: RequestState) -> Account | None:
        """Opens an account, unless the request has one, has ended or is not wanted."""
        is_new = request.request_id not in self._open and request.finish_reason is None
        if not is_new or not self._is_wanted(request):
            return None
        account = Account(self._with_end(request), self._only)
        account.chain.follow(self.state)
        self._open[request.request_id] = account
        return account


class Blame(NamedTuple):
    """The time of a request, and what it cost others."""

    request: RequestState
    """The request, as it is at its end."""
    own: Account
    """Its account."""
    harms: list[Harm]
    """The seconds that it cost each other one, the largest first."""
    costs: StepCosts
    """The costs of all steps."""
    verdict: str
    """A sentence on what limited the engine in the whole run, such as steps without a CUDA graph,
    which the costs of tokens do not tell apart."""


def charge_all(timeline: Timeline) -> list[Account]:
    """Returns the accounts of all requests of a run.

    Raises:
        RecordingError: The recording cannot be read.
    """
    ledger = Ledger(lambda _: True)
    Replay(timeline, [ledger]).run()
    ledger.end()
    return ledger.accounts


def find_blame(
    timeline: Timeline, request: RequestState, progress: ShowProgress = no_progress
) -> Blame:
    """Returns what delayed a request of a run, as it is at its end, and what it cost others.

    Raises:
        RecordingError: The recording cannot be read.
    """
    name = request.request_id
    own = Ledger(lambda other: _key(other) == _key(request), with_end=lambda _: request)
    others = Ledger(lambda other: other.request_id != name, only=name)
    Replay(timeline, [own, others], first=_position_before(timeline, request)).run(progress)
    own.end()
    others.end()
    harms: list[Harm] = []
    for account in others.accounts:
        charges = [charge for charge in account.charges() if charge.request_id == name]
        if charges:
            harms.append(Harm(account.request_id, charges))
    harms.sort(key=lambda harm: -harm.seconds)
    if request.finish_reason is None:
        request = own.state.requests.get(name, request)
    account = own.accounts[0] if own.accounts else Account(request)  # it ran where nothing is read
    verdict = of_whole(own.state).sentence
    return Blame(request, account, harms, own.state.step_costs, verdict)


class HarmTotals(Reader):
    """Reads what each request of a run cost all others.

    These are the sums of the state. A request whose harm is unknown, as it ran before the recording
    began, is left out.
    """

    def __init__(self) -> None:
        self.state = EngineState()
        """The state after the last event."""
        self._totals: dict[tuple[str, float], HarmTotal] = {}

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after a gap."""
        self._note()
        self.state = state

    def before(self, event: Event) -> None:
        """Notes the sums before the oldest requests leave the state."""
        state = self.state
        if isinstance(event, RequestFinished) and len(state.finished) >= state.max_finished:
            self._note()

    def totals(self) -> list[HarmTotal]:
        """Returns the sums so far, the largest first."""
        self._note()
        return sorted(self._totals.values(), key=lambda total: -total.seconds)

    def _note(self) -> None:
        for request in self.state.requests.values():
            if request.harm is not None:
                seconds, estimated = request.harm + request.harm_estimated, request.harm_estimated
                waited = request.wait.total
                total = HarmTotal(request.request_id, seconds, estimated, waited)
                self._totals[_key(request)] = total


def harm_totals(timeline: Timeline, progress: ShowProgress = no_progress) -> HarmTotals:
    """Returns what each request of a run cost all others.

    Raises:
        RecordingError: The recording cannot be read.
    """
    totals = HarmTotals()
    Replay(timeline, [totals]).run(progress)
    return totals


def _key(request: RequestState) -> tuple[str, float]:
    return request.request_id, request.metrics.arrival_time


def _position_before(timeline: Timeline, request: RequestState) -> int:
    """Returns the position of the last step before the arrival of a request."""
    index = timeline.index
    before = index.previous_step(index.at_time(request.metrics.arrival_time))
    return timeline.first if before is None else before
