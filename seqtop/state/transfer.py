"""The halves of a request whose prompt one engine computes, and whose output another one decodes.

Both engines have the id of the transfer of its KV cache, and neither has the other's state.
"""

from __future__ import annotations

from seqtop.state.model import EngineData, RequestState
from seqtop.state.wait_graph import activity


def other_half(state: EngineData, transfer_id: str) -> RequestState | None:
    """Returns the request of an engine that has a transfer's id; O(number of requests).

    Args:
        state: The state of the engine.
        transfer_id: The id, which is not empty.
    """
    halves = (own for own in state.requests.values() if own.transfer_id == transfer_id)
    return next(halves, None)


def describe(state: EngineData, half: RequestState) -> str:
    """Describes a half on another engine: its id, its engine, the step and its progress."""
    engine = state.info.engine_id if state.info is not None else ""
    return f"{half.request_id} on {engine} {activity(state, half)} (step {state.step:,})"
