"""The seconds that each request of a run cost all others, in one pass over the recording.

The sums are those of all accounts. What many requests have in common is charged once for all of
them: a wait in the queue behind its head, and a step that was shared by all that ran in it. So a
step costs O(1) for each request in its batch and for each length of those that wait, where accounts
would cost the product of both.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection

import msgspec

from seqtop.explain.chain import IndexedStep, Piece
from seqtop.history.step_time import StepTime
from seqtop.ledger.account import Account, ChargedTo, cost
from seqtop.ledger.contention import Contention, shares
from seqtop.ledger.ledger import Ledger, Run
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState
from seqtop.state.wait_causes import head_reason
from seqtop.wire.batch import Member
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    StreamingUpdate,
)

MAX_COUNTED = 50_000
"""The most requests of which it is known who delayed whom: their sets take up to 160 MB."""


class HarmTotal(msgspec.Struct):
    """The seconds that one request cost all others, and they it."""

    request_id: str
    seconds: float = 0.0
    """The charges to it in the accounts of the others."""
    estimated: float = 0.0
    """The estimated part of it."""
    num_delayed: int | None = 0
    """The others with such a charge; `None` in a run of more than `MAX_COUNTED` requests."""
    harmed_by_others: float = 0.0
    """The charges to others in its own account."""


def harm_totals(run: Run, max_counted: int = MAX_COUNTED) -> list[HarmTotal]:
    """Returns what each request of a run cost all others, the most first.

    Args:
        run: The run.
        max_counted: The most requests of which it is known who delayed whom.

    Raises:
        RecordingError: The recording cannot be read.
    """
    timeline = run.timeline
    ledger = TotalsLedger(timeline.at(timeline.first), run, max_counted)
    for position, event in timeline.events(timeline.first, timeline.last):
        if event is None:
            ledger.resume(timeline.at(position))
        else:
            ledger.apply(position, event)
    ledger.end()
    return ledger.totals()


class _Sums:
    """The sums of the charges to each request, and the sets of those that are charged.

    A set is a number with a bit for each account.
    """

    def __init__(self) -> None:
        self.totals: dict[str, HarmTotal] = {}
        self.delayed: defaultdict[str, int] = defaultdict(int)

    def of(self, request_id: str) -> HarmTotal:
        return self.totals.setdefault(request_id, HarmTotal(request_id))

    def add(self, request_id: str, seconds: float, delayed: int, *, estimated: bool) -> None:
        """Adds seconds that the accounts in a set are charged together."""
        total = self.of(request_id)
        total.seconds += seconds
        if estimated:
            total.estimated += seconds
        if delayed:
            self.delayed[request_id] |= delayed


class _Account(Account):
    """An account of which only the sums of charges to others are wanted.

    Args:
        request: The request, with its metrics as far as they are known.
        sums: The sums of all accounts.
        shared: By account, its share of the present step; filled by all accounts.
        bits: The set of the accounts for which this one stands.
        num_accounts: The number of them.
    """

    def __init__(
        self,
        request: RequestState,
        sums: _Sums,
        shared: dict[_Account, float],
        bits: int,
        num_accounts: int = 1,
    ) -> None:
        super().__init__(request)
        self.bits, self.num_accounts = bits, num_accounts
        self.harm = 0.0
        """The seconds that each of the accounts is charged to others."""
        self.is_behind = False
        """True if its chain lacks the steps in which it only decoded since."""
        metrics = request.metrics
        self.finished_time = metrics.finished_time
        self.will_run = metrics.first_scheduled_time is not None or self.finished_time is None
        self._sums, self._shared = sums, shared

    def close(self, step_time: StepTime | None) -> None:
        """Adds what depends on the model of the times of steps."""
        if step_time is not None:
            for name, (tokens, steps) in self._recomputed.items():
                seconds = step_time.per_step * steps + cost(step_time, tokens)
                self._blame(name, seconds, estimated=True)

    def _add_others(self, contention: Contention, share: float) -> None:
        self._shared[self] = self._shared.get(self, 0.0) + share

    def _divide(
        self,
        cause: str,
        seconds: float,
        amounts: dict[str, float],
        num_unnamed: float,
        otherwise: ChargedTo,
    ) -> None:
        by_request, _ = shares(amounts, num_unnamed)
        for name, share in by_request.items():
            self._blame(name, seconds * share)

    def _add(self, to: ChargedTo, name: str | None, cause: str, seconds: float) -> None:
        if to == "request":
            self._blame(name, seconds)

    def _blame(self, name: str | None, seconds: float, *, estimated: bool = False) -> None:
        if seconds and name is not None:
            total = seconds * self.num_accounts
            self._sums.add(name, total, self.bits, estimated=estimated)
        self.harm += seconds


class _Queued:
    """Requests of one length that wait for the first time, and for what the head waits for."""

    def __init__(self) -> None:
        self.bits: dict[str, int] = {}
        """By request, the set of its account."""
        self.all_bits = 0
        self.harm = 0.0
        """The seconds that a request would be charged to others that had always been here."""


class TotalsLedger(Ledger):
    """The sums of the charges to each request, fed with the events of a recording in order.

    Args:
        state: The state before the first event; it is changed.
        run: The run.
        max_counted: The most requests of which it is known who delayed whom.
    """

    def __init__(self, state: EngineState, run: Run, max_counted: int = MAX_COUNTED) -> None:
        self._max_counted = max_counted
        self._step_time = run.step_time
        self._sums = _Sums()
        self._shared: dict[_Account, float] = {}
        self._num_accounts = 0
        self._single: dict[str, _Account] = {}
        """The open accounts that are charged one by one: all but those in `_queued`."""
        self._queued: dict[str, tuple[int, float]] = {}
        """Of a request that is in the queue, the length, and `_Queued.harm` when it came."""
        self._by_length: dict[int, _Queued] = {}
        self._lengths: list[int] = []
        """The keys of `_by_length`, in order."""
        self._last_start = self._last_end = 0.0
        """Those of the last step, epoch seconds."""
        self._last_sharing: tuple[int, set[str]] = 0, set()
        super().__init__(state, lambda _: True, with_end=run.with_end)

    def totals(self) -> list[HarmTotal]:
        """Returns the sums, the most first."""
        is_counted = self._num_accounts <= self._max_counted
        for name, total in self._sums.totals.items():
            total.num_delayed = self._sums.delayed[name].bit_count() if is_counted else None
        return sorted(self._sums.totals.values(), key=lambda total: -total.seconds)

    def resume(self, state: EngineState) -> None:
        """Continues from a state that the events so far do not lead to; it is changed."""
        self._empty_queue()
        super().resume(state)

    def apply(self, position: int, event: Event) -> None:
        """Charges the time up to the end of an event, which is at `position`."""
        if isinstance(event, RequestArrived | RequestFinished | StreamingUpdate):
            self._leave_queue(event.request_id)
            if (account := self._single.get(event.request_id)) is not None:
                self._catch_up(account)
        super().apply(position, event)
        if isinstance(event, RequestFinished):
            self._single.pop(event.request_id, None)
        while self.accounts:
            self._close(self.accounts.pop())

    def end(self) -> None:
        """Charges the time of unfinished requests up to the last event."""
        self._empty_queue()
        super().end()
        while self.accounts:
            self._close(self.accounts.pop())

    @property
    def _holders(self) -> Collection[str]:
        return self._single

    def _new_account(self, request: RequestState) -> Account:
        self._num_accounts += 1
        is_counted = self._num_accounts <= self._max_counted
        bits = 1 << self._num_accounts if is_counted else 0
        account = _Account(request, self._sums, self._shared, bits)
        self._single[request.request_id] = account
        return account

    def _close(self, account: Account) -> None:
        assert isinstance(account, _Account)
        account.close(self._step_time)
        self._sums.of(account.request_id).harmed_by_others += account.harm

    def _charge(
        self,
        position: int,
        event: Event,
        indexed: IndexedStep | None,
        contention: Contention | None,
    ) -> None:
        if isinstance(event, EngineInfo):
            for each in self._open.values():
                each.chain.apply(position, event)
        elif isinstance(event, RequestArrived | RequestFinished | StreamingUpdate):
            name = event.request_id
            if (account := self._single.get(name)) is not None:
                account.enter(None, self._state.requests.get(name))
                account.chain.apply(position, event)
        if indexed is None or contention is None:
            return
        step = indexed.step
        for name, account in self._single.items():
            own = indexed.members.get(name)
            if own is not None and self._only_decodes(account, own, indexed, contention):
                account.is_behind = True
                if len(contention.tokens) > 1:
                    self._shared[account] = 1.0
                continue
            self._catch_up(account)
            account.enter(contention, self._state.requests.get(name))
            account.chain.apply_step(position, indexed)
        self._charge_queued(step, contention)
        self._charge_shared(contention)
        self._queue_others(indexed)
        self._last_start, self._last_end = step.start_time, step.time

    def _only_decodes(
        self,
        account: _Account,
        own: list[Member],
        indexed: IndexedStep,
        contention: Contention,
    ) -> bool:
        """Returns whether a request did nothing but decode, during all of a step."""
        name, end, update = account.request_id, account.finished_time, own[0].update
        return (
            len(own) == 1
            and not own[0].is_prompt
            and own[0].status is SequenceStatus.RUNNING
            and (update is None or not update.engine_status)
            and len(indexed.seq_ids.get(name, ())) <= 1
            and name not in indexed.preemptions
            and (end is None or end >= indexed.step.time)
            and contention.seconds > 0
            and (account.is_behind or account.chain.is_in_batch(self._last_end))
        )

    def _catch_up(self, account: _Account) -> None:
        if account.is_behind:
            account.is_behind = False
            account.chain.skip(self._last_end)

    def _charge_queued(self, step: Step, contention: Contention) -> None:
        """Charges a step to those that wait behind the head of the queue."""
        head = head_reason(step.wait_reasons)
        if head is None or not self._lengths:
            return
        first = bisect_left(self._lengths, True, key=lambda n: not self._fits(n, contention))
        piece = Piece("queued", head.cause, contention.seconds, head.request_id, None)
        for lengths in (self._lengths[:first], self._lengths[first:]):
            groups = [self._by_length[length] for length in lengths]
            if not groups:
                continue
            request = self._state.requests[next(iter(groups[0].bits))]
            bits, number = 0, sum(len(group.bits) for group in groups)
            for group in groups:
                bits |= group.all_bits
            account = _Account(request, self._sums, self._shared, bits, number)
            account.enter(contention, request)
            account.charge(piece)
            for group in groups:
                group.harm += account.harm

    def _fits(self, length: int, contention: Contention) -> bool:
        name = next(iter(self._by_length[length].bits))
        return contention.fits(self._state.requests[name])

    def _charge_shared(self, contention: Contention) -> None:
        """Charges a step to all that ran in it together."""
        shared, step_time = self._shared, self._step_time
        if shared and step_time is not None:
            costs = {name: cost(step_time, item) for name, item in contention.tokens.items()}
            total, num_shares, bits = sum(costs.values()), sum(shared.values()), 0
            by_name = {account.request_id: account for account in shared}
            for account, share in shared.items():
                bits |= account.bits
                account.harm += share * (total - costs.get(account.request_id, 0.0))
            costly = {name for name, seconds in costs.items() if seconds > 0}
            is_known = self._last_sharing == (bits, costly)
            self._last_sharing = bits, costly
            for name in costly:
                own = by_name.get(name)
                others = num_shares - (shared[own] if own is not None else 0.0)
                if others <= 0:
                    continue
                own_bits = own.bits if own is not None else 0
                seconds = costs[name] * others
                self._sums.add(name, seconds, 0 if is_known else bits & ~own_bits, estimated=True)
        shared.clear()

    def _begin(self, indexed: IndexedStep) -> None:
        """Takes the requests that a step names out of the queue."""
        step = indexed.step
        if step.time <= self._last_end or step.start_time < self._last_start:
            self._empty_queue()  # by clocks that go backwards, nothing can be left out
        if not self._queued:
            return
        names = {*indexed.members, *indexed.preemptions, *indexed.reasons, *indexed.seq_ids}
        for seq_id in indexed.statuses:
            sequence = self._state.sequences.get(seq_id)
            if sequence is not None:
                names.add(sequence.request_id)
        for name in names & self._queued.keys():
            self._leave_queue(name)

    def _empty_queue(self) -> None:
        for name in [*self._queued]:
            self._leave_queue(name)
        for account in self._single.values():
            self._catch_up(account)

    def _leave_queue(self, name: str) -> None:
        """Takes a request out of the queue, if it is there."""
        if name not in self._queued:
            return
        length, harm = self._queued.pop(name)
        group, account = self._by_length[length], self._open[name]
        assert isinstance(account, _Account)
        account.harm += group.harm - harm
        account.chain.skip(self._last_end)
        self._single[name] = account
        group.all_bits &= ~group.bits.pop(name)
        if not group.bits:
            del self._by_length[length]
            del self._lengths[bisect_left(self._lengths, length)]

    def _queue_others(self, indexed: IndexedStep) -> None:
        """Puts the requests into the queue that wait there for what its head waits for."""
        for name, account in [*self._single.items()]:
            if name in indexed.members or not account.chain.is_in_queue(indexed.step):
                continue
            request = self._state.requests.get(name)
            if request is None or request.lora or len(request.seq_ids) != 1:
                continue
            sequence = self._state.sequences.get(request.seq_ids[0])
            if (
                account.will_run
                and sequence is not None
                and sequence.status is SequenceStatus.WAITING
                and not sequence.block_table
                and not any(sequence.group_block_tables)
            ):
                del self._single[name]
                length = sequence.num_tokens
                if length not in self._by_length:
                    self._by_length[length] = _Queued()
                    insort(self._lengths, length)
                group = self._by_length[length]
                group.bits[name] = account.bits
                group.all_bits |= account.bits
                self._queued[name] = length, group.harm
