"""The accounts of the requests of a recorded run, and what one request costs the others."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from seqtop.explain.chain import IndexedStep
from seqtop.history.timeline import Timeline
from seqtop.ledger.account import Account, Charge
from seqtop.state import EngineState, RequestState
from seqtop.state.harm import StepHarm
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step


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
    estimated: float
    """The estimated part of it."""
    waited: float
    """The seconds that it waited itself."""


class Ledger:
    """The accounts of requests, fed with the events of a recording in order.

    Args:
        state: The state before the first event; it is changed.
        is_wanted: Whether a request gets an account.
        only: The other request whose charges are wanted; `None` for all.
        with_end: Returns a request with its final metrics, as far as they are known.
    """

    def __init__(
        self,
        state: EngineState,
        is_wanted: Callable[[RequestState], bool],
        only: str | None = None,
        with_end: Callable[[RequestState], RequestState] = lambda request: request,
    ) -> None:
        self.accounts: list[Account] = []
        """Those that are complete."""
        self.state = state
        """The state after the last event."""
        self._with_end = with_end
        self._is_wanted = is_wanted
        self._only = only
        self._open: dict[str, Account] = {}
        for request in state.requests.values():
            if request.finish_reason is None and (account := self._start(request)) is not None:
                account.chain.resume(request, state.time)

    @property
    def open(self) -> list[Account]:
        """The accounts of requests that have not ended."""
        return list(self._open.values())

    def resume(self, state: EngineState) -> None:
        """Continues from a state that the events so far do not lead to; it is changed."""
        self.state = state
        for name, account in self._open.items():
            account.enter(None)
            account.chain.resume(state.requests.get(name), state.time)

    def apply(self, position: int, event: Event) -> None:
        """Charges the time up to the end of an event, which is at `position`."""
        state = self.state
        if isinstance(event, Step):
            delays, indexed = StepHarm(state, event), IndexedStep(event)
            state.apply(event)
            delays.holdings.end(state)
            for account in self._open.values():
                account.enter(delays)
                account.chain.apply_step(position, indexed)
            return
        state.apply(event)
        if isinstance(event, RequestArrived):
            request = state.requests.get(event.request_id)
            if request is not None:
                self._start(request)
        for account in self._open.values():
            account.enter(None)
            account.chain.apply(position, event)
        if isinstance(event, RequestFinished):
            ended = self._open.pop(event.request_id, None)
            if ended is not None:
                if ended.chain.finished_time is None:
                    ended.chain.finished_time = event.metrics.finished_time
                ended.chain.end()
                self.accounts.append(ended)

    def end(self) -> None:
        """Charges the time of unfinished requests up to the last event."""
        for account in self._open.values():
            account.enter(None)
            account.chain.close(self.state.time)
        self.accounts += self._open.values()
        self._open = {}

    def _start(self, request: RequestState) -> Account | None:
        if not self._is_wanted(request):
            return None
        account = Account(self._with_end(request), self._only)
        account.chain.last_end = self.state.blocked.until or -math.inf
        if (other := self._open.pop(request.request_id, None)) is not None:
            self.accounts.append(other)  # the id arrived again, although it had not ended
        self._open[request.request_id] = account
        return account


def charge_all(timeline: Timeline) -> list[Account]:
    """Returns the accounts of all requests of a run.

    Raises:
        RecordingError: The recording cannot be read.
    """
    return _read(timeline, timeline.first, lambda _: True, lambda _: False)


def charge(timeline: Timeline, request: RequestState) -> Account:
    """Returns the account of one request of a run, as it is at its end.

    Raises:
        RecordingError: The recording cannot be read.
    """
    return _read(
        timeline,
        _position_before(timeline, request),
        lambda other: _key(other) == _key(request),
        lambda ledger: bool(ledger.accounts),
        with_end=lambda _: request,
    )[0]


def harm_done(timeline: Timeline, request: RequestState) -> list[Harm]:
    """Returns what one request cost each other one, the largest first.

    Raises:
        RecordingError: The recording cannot be read.
    """
    name = request.request_id
    end = request.metrics.finished_time

    def is_over(ledger: Ledger) -> bool:
        """Returns whether nothing more can be charged to the request."""
        return (
            end is not None
            and ledger.state.time > end
            and name not in ledger.state.holders
            and not any(account.owes_recompute(name) for account in ledger.open)
        )

    first = _position_before(timeline, request)
    accounts = _read(timeline, first, lambda other: other.request_id != name, is_over, only=name)
    harms: list[Harm] = []
    for account in accounts:
        own = [charge for charge in account.charges() if charge.request_id == name]
        if own:
            harms.append(Harm(account.request_id, own))
    return sorted(harms, key=lambda harm: -harm.seconds)


def harm_totals(timeline: Timeline) -> list[HarmTotal]:
    """Returns what each request of a run cost all others, the most first.

    These are the sums of the state. A request whose harm is unknown, as it ran before the recording
    began, is left out.

    Raises:
        RecordingError: The recording cannot be read.
    """
    totals: dict[tuple[str, float], HarmTotal] = {}
    state = timeline.at(timeline.first)

    def note() -> None:
        for request in state.requests.values():
            if request.harm is not None:
                seconds, estimated = request.harm + request.harm_estimated, request.harm_estimated
                waited = request.wait.total
                total = HarmTotal(request.request_id, seconds, estimated, waited)
                totals[_key(request)] = total

    for position, event in timeline.events(timeline.first, timeline.last):
        if event is None:
            note()
            state = timeline.at(position)
            continue
        if isinstance(event, RequestFinished) and len(state.finished) >= state.max_finished:
            note()  # the oldest ones leave the state
        state.apply(event)
    note()
    return sorted(totals.values(), key=lambda total: -total.seconds)


def _key(request: RequestState) -> tuple[str, float]:
    return request.request_id, request.metrics.arrival_time


def _position_before(timeline: Timeline, request: RequestState) -> int:
    """Returns the position of the last step before the arrival of a request."""
    index = timeline.index
    before = index.previous_step(index.at_time(request.metrics.arrival_time))
    return timeline.first if before is None else max(before, timeline.first)


def _read(
    timeline: Timeline,
    first: int,
    is_wanted: Callable[[RequestState], bool],
    is_over: Callable[[Ledger], bool],
    only: str | None = None,
    with_end: Callable[[RequestState], RequestState] = lambda request: request,
) -> list[Account]:
    """Reads the recording from a position until nothing more is wanted."""
    ledger = Ledger(timeline.at(first), is_wanted, only, with_end)
    for position, event in timeline.events(first, timeline.last):
        if event is None:
            ledger.resume(timeline.at(position))
        else:
            ledger.apply(position, event)
        if is_over(ledger):
            break
    ledger.end()
    return ledger.accounts
