"""Seconds by which requests delayed others, added up with each step.

The seconds that others wait in a step are divided among the requests in its batch, in proportion
to what each holds of what the head of the queue waits for: blocks, sequence slots, tokens of the
step's budget or adapters. This is measured. The tokens of a request make its steps longer for the
others in the batch, by as much as a token costs: this is estimated, from a fit to the last thousand
steps or so, and never more than the step took. A prefill after a preemption is charged to the
request that the preemption made room for.

A step costs O(1), and O(1) for each request in its batch. So there is no account of whom a request
delayed, nor of requests that would have fitted into the step if those before them in the queue had
not been there; `seqtop.ledger` has both, from the recorded steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state.least_squares import solve_non_negative
from seqtop.state.model import EngineData, RequestState
from seqtop.state.wait_causes import head_reason
from seqtop.wire.batch import num_scheduled_requests, scheduled_requests
from seqtop.wire.messages import Step, WaitCause
from seqtop.wire.snapshot import StepCosts

_MIN_STEPS = 20
"""Steps that a fit needs."""
_FADE = 0.999
"""The weight of a step's sums after each further step."""
_MAX_STEPS_BETWEEN_FITS = 500
_HELD: tuple[WaitCause, ...] = ("no_blocks", "seq_limit", "token_budget", "lora_slots")
"""The causes of waiting for something that others hold."""


class Delays(NamedTuple):
    """Seconds by which the batch of a step delays the others in it, as estimated."""

    per_prefill_token: float
    """The seconds of a prefill token, times the other requests."""
    per_decode_token: float
    """The seconds of a decode token, times the other requests."""


NO_DELAYS = Delays(0.0, 0.0)


def delays(state: EngineData, step: Step) -> Delays:
    """Returns the delays in a step that has not been applied, except for the time before it."""
    costs, stats = state.step_costs, step.stats
    num_others = num_scheduled_requests(step) - 1
    if costs.per_step is None or num_others < 1:
        return NO_DELAYS
    prefill, decode = costs.per_prefill_token, costs.per_decode_token
    predicted = prefill * stats.num_prefill_tokens + decode * stats.num_decode_tokens
    elapsed = _elapsed(state, step)
    if predicted <= 0:
        return NO_DELAYS
    scale = num_others * min(elapsed / predicted, 1.0)
    return Delays(scale * prefill, scale * decode)


def charge_prefill(
    state: EngineData, request: RequestState, num_tokens: int, caused: Delays
) -> None:
    """Charges the tokens of a prefill to the request, or to the one that it was preempted for."""
    request.harm_estimated += caused.per_prefill_token * num_tokens
    if request.last_preemption_mode != "recompute":
        return
    other = state.requests.get(request.preempted_for or "")
    costs = state.step_costs
    if (
        other is not None
        and other is not request
        and other.finish_reason is None  # states share finished requests
        and costs.per_step is not None
    ):
        other.harm_estimated += costs.per_step + costs.per_prefill_token * num_tokens


def charge_waits(state: EngineData, step: Step) -> None:
    """Charges the waits in a step to the requests in its batch; before the wait causes advance."""
    elapsed, stats = _elapsed(state, step), step.stats
    if not step.wait_reasons or not elapsed:
        return
    waiting = Counter(reason.cause for reason in step.wait_reasons)
    if (head := head_reason(step.wait_reasons)) is not None:
        num_waiting = stats.num_waiting + (stats.num_swapped or 0)
        waiting[head.cause] += max(num_waiting - len(step.wait_reasons), 0)
    batch = [
        request
        for request in map(state.requests.get, scheduled_requests(step))
        if request is not None and request.finish_reason is None
    ]
    for cause in _HELD:
        if not waiting[cause]:
            continue
        amounts = list(_amounts(state, cause, batch))
        total = max(sum(amounts), _in_use(cause, step))
        if total > 0:
            per_unit = elapsed * waiting[cause] / total
            for request, amount in zip(batch, amounts, strict=True):
                if request.harm is not None:
                    request.harm += per_unit * amount


def count_step(state: EngineData, step: Step) -> None:
    """Adds a step to those that the costs of tokens are fitted to."""
    costs, stats, elapsed = state.step_costs, step.stats, _elapsed(state, step)
    prefill, decode = float(stats.num_prefill_tokens), float(stats.num_decode_tokens)
    if not elapsed or not 0 < prefill + decode < math.inf:
        return
    more = [
        *(1.0, prefill, decode, prefill * prefill, prefill * decode, decode * decode),
        *(elapsed, elapsed * prefill, elapsed * decode),
    ]
    if len(costs.products) == len(more):
        more = [a * _FADE + b for a, b in zip(costs.products, more, strict=True)]
    costs = replace(costs, products=more, num_steps=costs.num_steps + 1)
    wait = min(costs.num_fitted // 10 + 1, _MAX_STEPS_BETWEEN_FITS)
    if costs.num_steps >= max(_MIN_STEPS, costs.num_fitted + wait):
        costs = _fitted(costs)
    state.step_costs = costs


def _fitted(costs: StepCosts) -> StepCosts:
    one, p, d, pp, pd, dd, t, tp, td = costs.products
    best = solve_non_negative([[one, p, d], [p, pp, pd], [d, pd, dd]], [t, tp, td])
    return replace(
        costs,
        per_step=best.get(0, 0.0),
        per_prefill_token=best.get(1, 0.0),
        per_decode_token=best.get(2, 0.0),
        num_fitted=costs.num_steps,
    )


def _amounts(state: EngineData, cause: str, batch: list[RequestState]) -> Iterator[float]:
    """Yields the amount that each request of a batch holds of what is waited for."""
    sequences = state.sequences
    for request in batch:
        own = [sequences[seq_id] for seq_id in request.seq_ids]
        match cause:
            case "no_blocks":
                yield sum(
                    len(sequence.block_table) + sum(map(len, sequence.group_block_tables))
                    for sequence in own
                )
            case "seq_limit":
                yield sum(sequence.status is SequenceStatus.RUNNING for sequence in own)
            case "token_budget":
                yield request.token_chunk_size
            case _:
                yield bool(request.lora)


def _in_use(cause: str, step: Step) -> int:
    """Returns the amount that is in use, whoever holds it."""
    stats = step.stats
    match cause:
        case "no_blocks":
            return stats.num_used_blocks
        case "seq_limit":
            return stats.num_running
        case "token_budget":
            return stats.num_prefill_tokens + stats.num_decode_tokens
        case _:
            return 0


def _elapsed(state: EngineData, step: Step) -> float:
    """Returns the seconds of a step after the last one; 0 if a clock cannot have measured them."""
    elapsed = step.time - state.blocked.until
    return elapsed if 0 < elapsed < math.inf else 0.0
