"""Priority inversion: a request waits for what requests of lower priority hold."""

from __future__ import annotations

from seqtop.state import holdings
from seqtop.state.model import EngineData, RequestState
from seqtop.state.sort_key import has_priorities
from seqtop.state.step_costs import elapsed
from seqtop.state.waits import wait_until
from seqtop.text import format as fmt
from seqtop.wire.snapshot import Inversion

CAUSES = frozenset({"seq_limit", "no_blocks", "reserved_blocks", "lora_slots"})
"""The causes of waiting for something that requests hold for more than a step."""
_MAX_NAMED = 3


def less_urgent(state: EngineData, request: RequestState) -> list[RequestState]:
    """Returns the requests of lower priority, which is a higher number, that have slots."""
    return [other for other in holdings.running(state) if other.priority > request.priority]


def present_inversion(state: EngineData) -> Inversion | None:
    """Returns the inversion of the head of the queue; `None` without one."""
    if state.info is None or not has_priorities(state.info):
        return None
    for name in state.wait_reason_ids:
        request = state.requests.get(name)
        reason = None if request is None else request.wait_reason
        if request is None or reason is None or reason.cause not in CAUSES:
            continue
        lower = less_urgent(state, request)
        if not lower:
            return None
        return Inversion(
            name,
            reason.cause,
            [other.request_id for other in lower[:_MAX_NAMED]],
            len(lower),
            min(other.priority for other in lower),
            elapsed(request.wait.since or state.time, state.time),
            state.time,
        )
    return None


def describe(state: EngineData, inversion: Inversion) -> str:
    """Describes an inversion, as in "vip (priority -5) waits 33.9 s for 4 requests …"."""
    request = state.requests.get(inversion.request_id)
    own, verb, seconds = "", "waited", inversion.seconds
    if request is not None:
        own = f" (priority {request.priority})"
        verb = "waits" if request.wait.since is not None else verb
        waited = wait_until(state, request, state.time).by_cause.get(inversion.cause, 0.0)
        seconds = max(seconds, waited)
    more = inversion.num_holders - len(inversion.holders)
    names = ", ".join(inversion.holders) + (f" and {more:,} more" if more > 0 else "")
    return (
        f"{inversion.request_id}{own} {verb} {fmt.seconds(seconds)} for"
        f" {fmt.plural(inversion.num_holders, 'request')} of lower priority"
        f" ({inversion.priority}: {names})"
    )
