"""The accounts of the requests of a recorded run, and what one request costs the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from seqtop.explain.chain import IndexedStep
from seqtop.history.step_time import StepTime, StepTimeError, fit
from seqtop.history.timed_steps import TimedStep, TimedSteps
from seqtop.history.timeline import Timeline
from seqtop.ledger.account import Account, Charge
from seqtop.ledger.contention import Contention
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState, RequestState
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


class Run:
    """A whole recorded run: the model of its steps' times, and the ends of its requests.

    Args:
        timeline: The recording, which is read once from its beginning to its end.

    Raises:
        RecordingError: A part of the recording cannot be read.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.step_time: StepTime | None = None
        """The model of the times of steps, fitted to all recorded steps; `None` if they are too
        few."""
        self.no_step_time = ""
        """One sentence that says why there is no model; empty if there is one."""
        self._ends: dict[tuple[str, float], RequestMetrics] = {}
        """The final metrics by id and arrival."""
        try:
            self.step_time = fit(self._read())
        except StepTimeError as error:
            self.no_step_time = str(error)

    def with_end(self, request: RequestState) -> RequestState:
        """Returns a request with its final metrics, as far as they are recorded."""
        metrics = self._ends.get((request.request_id, request.metrics.arrival_time))
        return request if metrics is None else msgspec.structs.replace(request, metrics=metrics)

    def _read(self) -> list[TimedStep]:
        """Stores the ends of requests, and returns the steps."""
        timeline, reader = self.timeline, TimedSteps()
        for _, event in timeline.events(timeline.first, timeline.last):
            reader.read(event)
            if isinstance(event, RequestFinished):
                self._ends[event.request_id, event.metrics.arrival_time] = event.metrics
        reader.end()
        return reader.steps


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
        self._with_end = with_end
        self._is_wanted = is_wanted
        self._only = only
        self._state = state
        self._open: dict[str, Account] = {}
        self._previous_end = state.time
        """The end of the last step, epoch seconds."""
        for request in state.requests.values():
            if request.finish_reason is None and (account := self._start(request)) is not None:
                account.chain.resume(request, state.time)

    @property
    def open(self) -> list[Account]:
        """The accounts of requests that have not ended."""
        return list(self._open.values())

    @property
    def time(self) -> float:
        """The engine's clock at the last event, epoch seconds."""
        return self._state.time

    def resume(self, state: EngineState) -> None:
        """Continues from a state that the events so far do not lead to; it is changed."""
        self._state = state
        for name, account in self._open.items():
            account.enter(None, None)
            account.chain.resume(state.requests.get(name), state.time)

    def apply(self, position: int, event: Event) -> None:
        """Charges the time up to the end of an event, which is at `position`."""
        state = self._state
        contention = indexed = None
        if isinstance(event, Step):
            indexed = IndexedStep(event)
            self._begin(indexed)
            contention = Contention(state, event, self._previous_end, self._holders)
            self._previous_end = event.time
        state.apply(event)
        if contention is not None:
            contention.end(state)
        if isinstance(event, RequestArrived):
            request = state.requests.get(event.request_id)
            if request is not None:
                self._start(request)
        self._charge(position, event, indexed, contention)
        if isinstance(event, RequestFinished):
            ended = self._open.pop(event.request_id, None)
            if ended is not None:
                ended.chain.end()
                self.accounts.append(ended)

    def end(self) -> None:
        """Charges the time of unfinished requests up to the last event."""
        for account in self._open.values():
            account.enter(None, None)
            account.chain.close(self._state.time)
        self.accounts += self._open.values()
        self._open = {}

    @property
    def _holders(self) -> Collection[str] | None:
        """The requests that may hold blocks or slots; `None` for all."""
        return None

    def _begin(self, indexed: IndexedStep) -> None:
        """Prepares the accounts for a step, which is not in the state yet."""

    def _charge(
        self,
        position: int,
        event: Event,
        indexed: IndexedStep | None,
        contention: Contention | None,
    ) -> None:
        """Charges the time up to the end of an event to each account."""
        for name, account in self._open.items():
            account.enter(contention, self._state.requests.get(name))
            if indexed is None:
                account.chain.apply(position, event)
            else:
                account.chain.apply_step(position, indexed)

    def _new_account(self, request: RequestState) -> Account:
        return Account(request, self._only)

    def _start(self, request: RequestState) -> Account | None:
        if not self._is_wanted(request):
            return None
        account = self._new_account(self._with_end(request))
        account.chain.last_end = self._state.blocked.until or -math.inf
        if (other := self._open.pop(request.request_id, None)) is not None:
            self.accounts.append(other)  # the id arrived again, although it had not ended
        self._open[request.request_id] = account
        return account


def charge_all(run: Run) -> list[Account]:
    """Returns the accounts of all requests of a run.

    Raises:
        RecordingError: The recording cannot be read.
    """
    return _read(run, run.timeline.first, lambda _: True, lambda _: False)


def charge(run: Run, request: RequestState) -> Account:
    """Returns the account of one request of a run, as it is at its end.

    Raises:
        RecordingError: The recording cannot be read.
    """
    arrival = request.metrics.arrival_time
    return _read(
        run,
        _position_before(run, request),
        lambda other: _key(other) == (request.request_id, arrival),
        lambda ledger: bool(ledger.accounts),
    )[0]


def harm_done(run: Run, request: RequestState) -> list[Harm]:
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
            and ledger.time > end
            and not any(account.owes_recompute(name) for account in ledger.open)
        )

    first = _position_before(run, request)
    accounts = _read(run, first, lambda other: other.request_id != name, is_over, only=name)
    harms: list[Harm] = []
    for account in accounts:
        charges = account.charges(run.step_time)
        own = [charge for charge in charges if charge.request_id == name]
        if own:
            harms.append(Harm(account.request_id, own))
    return sorted(harms, key=lambda harm: -harm.seconds)


def _key(request: RequestState) -> tuple[str, float]:
    return request.request_id, request.metrics.arrival_time


def _position_before(run: Run, request: RequestState) -> int:
    """Returns the position of the last step before the arrival of a request."""
    index = run.timeline.index
    before = index.previous_step(index.at_time(request.metrics.arrival_time))
    return run.timeline.first if before is None else max(before, run.timeline.first)


def _read(
    run: Run,
    first: int,
    is_wanted: Callable[[RequestState], bool],
    is_over: Callable[[Ledger], bool],
    only: str | None = None,
) -> list[Account]:
    """Reads the recording from a position until nothing more is wanted."""
    timeline = run.timeline
    ledger = Ledger(timeline.at(first), is_wanted, only, run.with_end)
    for position, event in timeline.events(first, timeline.last):
        if event is None:
            ledger.resume(timeline.at(position))
        else:
            ledger.apply(position, event)
        if is_over(ledger):
            break
    ledger.end()
    return ledger.accounts
