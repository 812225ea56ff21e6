"""Delays of requests by others in a step, and the sum of those that each request has caused.

This is the one place that charges delays. `StepHarm` has them for one step: the reducer adds them
up over those that are delayed, for the column *Harm*; `seqtop.ledger` divides the time of one
request by them.

The seconds that requests wait in a step are divided among those that hold what they wait for:
blocks, sequence slots, tokens of the step's budget or adapters, in proportion to the amounts
(`seqtop.state.holdings`). What is free is held by the head of the queue for those behind it. Before
a step without a batch, the time since the last step is part of such a wait: nothing could run, so
no host delayed it. This is measured. The tokens of a request make a step longer for the others in
its batch, by as much as a token costs: this is estimated, by a fit to the last thousand steps or
so, and a step and all of its tokens together never take longer than was measured. A prefill after a
preemption is charged to the request that the preemption made room for.

A step costs O(1) for each request in its batch and, if requests wait, for each holder.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import NamedTuple

from seqtop.state.holdings import HELD, Holding, Holdings, has_ended
from seqtop.state.model import EngineData, RequestState
from seqtop.state.step_costs import elapsed, has_graph, scheduling_time
from seqtop.state.wait_causes import head_reason
from seqtop.wire.batch import request_tokens
from seqtop.wire.messages import Step


class Shares(NamedTuple):
    """The parts of a wait that each holder is charged with; with `unnamed` they add up to 1."""

    by_request: dict[str, float]
    unnamed: float
    """The part of what is in use, but held by no request that is known."""
    withheld: float
    """The part of the head of the queue, for what is free and kept from those behind it."""


class StepHarm:
    """The delays in one step.

    Args:
        state: The state before the step, of which only what is needed is read now.
        step: The step.
    """

    def __init__(self, state: EngineData, step: Step) -> None:
        self.seconds = elapsed(max(step.start_time, state.blocked.until), step.time)
        """The duration, without the time in which the step before had not ended."""
        self.tokens = request_tokens(step)
        """The part of each request in its batch."""
        head = head_reason(step.wait_reasons)
        is_stalled = not self.tokens and head is not None and head.cause == state.blocked.cause
        self.last_end = state.blocked.until
        """The end of the last step, epoch seconds."""
        self.stalled = elapsed(self.last_end, step.start_time) if is_stalled else 0.0
        """The seconds since then, if nothing could run for the same reason as before."""
        self.late: set[str] = set()
        """The requests that wait for their turn from this step on, and did not before it."""
        if self.stalled:
            known = (state.sequences.get(update.seq_id) for update in step.sequences)
            names = {sequence.request_id for sequence in known if sequence is not None}
            self.late = names - state.in_queue.keys()
        self.holdings = Holdings(state, step, self.tokens)
        self.has_estimates = state.step_costs.per_step is not None
        """True if the costs of tokens are known."""
        costs = state.step_costs
        prefill = decode = 0
        for own in self.tokens.values():
            prefill += own.prefill
            decode += own.decode
        per_step = costs.per_step or 0.0
        if has_graph(step.stats) is False:
            per_step += costs.without_graph
        scheduling = scheduling_time(step, state.blocked.until, self.seconds)
        total = per_step + costs.per_prefill_token * prefill + costs.per_decode_token * decode
        scale = min((self.seconds - scheduling) / total, 1.0) if total > 0 else 0.0
        self._per_step = scheduling + scale * per_step
        self.per_prefill_token = scale * costs.per_prefill_token
        """Seconds by which a prefill token made it longer, as estimated."""
        self.per_decode_token = scale * costs.per_decode_token
        """Seconds by which another token made it longer, as estimated."""

    def delay(self, request_id: str) -> float:
        """Returns the seconds by which the tokens of a request made the step longer."""
        own = self.tokens.get(request_id)
        if own is None:
            return 0.0
        return self.per_prefill_token * own.prefill + self.per_decode_token * own.decode

    def alone(self, request_id: str) -> float:
        """Returns the seconds that the step would have taken with a request of its batch only."""
        if len(self.tokens) == 1:
            return self.seconds
        return min(self._per_step + self.delay(request_id), self.seconds)

    def shares(self, cause: str, lora: str = "", *, is_behind: bool = False) -> Shares:
        """Returns who is charged for a wait in the step.

        Args:
            cause: The cause of the wait; nobody is charged for one that is not in `HELD`.
            lora: The adapter of the request that waits.
            is_behind: Whether the cause was given for the head of the queue before it.
        """
        holding = self.holdings.of(cause, lora) if cause in HELD else Holding()
        withheld = holding.num_withheld if is_behind else 0.0
        total = sum(holding.amounts.values()) + holding.num_unnamed + withheld
        if total <= 0:
            return Shares({}, 0.0, 0.0)
        by_request = {name: amount / total for name, amount in holding.amounts.items()}
        return Shares(by_request, holding.num_unnamed / total, withheld / total)


def charge(state: EngineData, step: Step, own: StepHarm) -> list[int]:
    """Adds the delays in a step to the requests that cause them.

    Args:
        state: The state after the step, except for its time and figures.
        step: The step.
        own: Its delays, made before the step.

    Returns:
        The ids of the sequences of the requests charged.
    """
    own.holdings.end(state)
    if not own.seconds:
        return []
    touched: list[int] = []
    _charge_tokens(state, own, touched)
    if step.wait_reasons or spent_budget(state, step):
        _charge_waits(state, step, own, own.seconds, step.start_time, set(), touched)
        if own.stalled:
            _charge_waits(state, step, own, own.stalled, own.last_end, own.late, touched)
    return touched


def _charge_tokens(state: EngineData, own: StepHarm, touched: list[int]) -> None:
    """Charges the tokens of a batch, and prefills after preemptions."""
    requests, num_others = state.requests, len(own.tokens) - 1
    per_prefill = num_others * own.per_prefill_token
    per_decode = num_others * own.per_decode_token
    for request_id, tokens in own.tokens.items():
        request = requests.get(request_id)
        if request is None or request.finish_reason is not None:
            continue
        request.harm_estimated += per_prefill * tokens.prefill + per_decode * tokens.decode
        if tokens.prefill and recomputes_for(request) is not None:
            other = _charged(state, request.preempted_for or "", touched)
            if other is None or other.harm is None:
                continue
            if len(own.tokens) == 1:
                other.harm += own.seconds
            elif own.has_estimates:
                other.harm_estimated += own.alone(request_id)


def recomputes_for(request: RequestState) -> str | None:
    """Returns the other request that the prefills of a request are charged to, if any."""
    other = request.preempted_for
    is_for_other = request.last_preemption_mode == "recompute" and other != request.request_id
    return other if is_for_other else None


def _charge_waits(
    state: EngineData,
    step: Step,
    own: StepHarm,
    seconds: float,
    since: float,
    late: set[str],
    touched: list[int],
) -> None:
    """Charges those that hold what others wait for in a step.

    Args:
        state: The state after the step.
        step: The step.
        own: Its delays.
        seconds: The length of the wait.
        since: Its beginning, epoch seconds: later requests did not wait.
        late: Other requests that did not wait then.
        touched: The ids of sequences, to which those of requests that are charged are added.
    """
    head = head_reason(step.wait_reasons)
    named: dict[str, tuple[str, str]] = {}
    """The cause and the adapter of each request that waits for its turn, and has a reason."""
    for reason in step.wait_reasons:
        request = state.requests.get(reason.request_id)
        if request is not None and _waits(state, request, since, late):
            lora = request.lora if reason.cause == "lora_slots" else ""
            named[reason.request_id] = reason.cause, lora
    for key, number in Counter(named.values()).items():
        if key[0] in HELD:
            waiting = {name for name, other in named.items() if other == key}
            _divide(state, own.shares(*key), seconds, number, waiting, touched)
    if head is not None and head.cause in HELD:
        number, behind = _num_behind(state, step, since, late)
        shares = own.shares(head.cause, is_behind=True)
        _divide(state, shares, seconds, number, behind, touched)
        if number and shares.withheld:
            leader = _charged(state, head.request_id, touched)
            if leader is not None and leader.harm is not None:
                leader.harm += seconds * number * shares.withheld
    unscheduled = _unscheduled(state, step, own)
    if unscheduled:
        shares = own.shares("token_budget")
        _divide(state, shares, seconds, len(unscheduled), unscheduled, touched)


def _waits(state: EngineData, request: RequestState, since: float, late: set[str]) -> bool:
    """Returns whether a request waits for its turn, and did so by then."""
    name = request.request_id
    return name in state.in_queue and name not in late and request.metrics.arrival_time <= since


def _num_behind(
    state: EngineData, step: Step, since: float, late: set[str]
) -> tuple[int, set[str]]:
    """Returns the number of requests behind the head of the queue, and those that hold something.

    The requests in the queue are not looked at one by one, except for those that came too late.
    """
    reasons = {reason.request_id for reason in step.wait_reasons} | late
    number = len(state.in_queue) - sum(name in state.in_queue for name in reasons)
    for request in reversed(state.requests.values()):
        if request.metrics.arrival_time <= since:
            break
        number -= request.request_id in state.in_queue and request.request_id not in reasons
    holders = state.holders.keys() & state.in_queue.keys() - reasons
    return max(number, 0), {
        name for name in holders if _waits(state, state.requests[name], since, late)
    }


def _unscheduled(state: EngineData, step: Step, own: StepHarm) -> set[str]:
    """Returns the running requests that are not in a batch that used up the token budget."""
    if not spent_budget(state, step):
        return set()
    others = state.holders.keys() - own.tokens.keys()
    return {
        name
        for name in others
        if (request := state.requests.get(name)) and runs(request) and not has_ended(state, request)
    }


def spent_budget(state: EngineData, step: Step) -> bool:
    """Returns whether the batch of a step used up the token budget."""
    budget = None if state.info is None else state.info.max_num_batched_tokens
    num_tokens = step.stats.num_prefill_tokens + step.stats.num_decode_tokens
    return budget is not None and num_tokens >= budget


def runs(request: RequestState) -> bool:
    """Returns whether a request was last in a batch, and has not been preempted since."""
    return request.finish_reason is None and request.spans[-1].kind in ("prefill", "decode")


def _divide(
    state: EngineData,
    shares: Shares,
    seconds: float,
    num_waiting: int,
    waiting: set[str],
    touched: list[int],
) -> None:
    """Charges the seconds that so many requests waited; nobody in `waiting` delays itself."""
    for name, share in shares.by_request.items():
        number = num_waiting - (name in waiting)
        other = _charged(state, name, touched) if number > 0 else None
        if other is not None and other.harm is not None:
            other.harm += seconds * number * share


def _charged(state: EngineData, request_id: str, touched: list[int]) -> RequestState | None:
    """Returns a request that is charged; one that has ended as a copy, as states share these."""
    request = state.requests.get(request_id)
    if request is None:
        return None
    if request.finish_reason is not None:
        request = state.requests[request_id] = copy.copy(request)
    touched += request.seq_ids
    return request
