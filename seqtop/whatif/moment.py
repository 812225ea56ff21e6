"""A recorded and a predicted run side by side at one time."""

from __future__ import annotations

from collections.abc import Container, Mapping

from seqtop.state import EngineState
from seqtop.state.fields import status_word
from seqtop.text import format as fmt
from seqtop.text.tables import table

_MAX_LISTED = 20


def side_by_side(
    recorded: EngineState, predicted: EngineState, cut: Mapping[str, float] | None = None
) -> list[str]:
    """Returns lines with what differs between the states of two runs of one workload.

    Args:
        recorded: The state of the recorded run.
        predicted: The state of the predicted run at the same time.
        cut: Requests that were cut off in the predicted run, since the recording has no more tokens
            of them, with the times (epoch seconds). They have not finished.
    """
    ended = {name for name, time in (cut or {}).items() if _has_ended(predicted, name, time)}
    figures = _figures(recorded, predicted, len(ended))
    rows = [("", "A: recorded", "B: PREDICTION")]
    rows += [(name, fmt.count(a), fmt.count(b)) for name, a, b in figures]
    others = [
        (request_id, a, b)
        for request_id in recorded.requests | predicted.requests
        if (a := _status(recorded, request_id)) != (b := _status(predicted, request_id, ended))
    ]
    lines = [f"at {fmt.clock(recorded.time)}, side by side:"]
    lines += (f"  {line}" for line in table([*rows, *others[:_MAX_LISTED]], left=(0,)))
    if not others:
        lines.append("  each request has the same status")
    if (more := len(others) - _MAX_LISTED) > 0:
        lines.append(f"  and {fmt.plural(more, 'other request')} of another status")
    return lines


def _figures(
    a: EngineState, b: EngineState, num_cut: int
) -> list[tuple[str, int | None, int | None]]:

    def stat(title: str, name: str) -> tuple[str, int | None, int | None]:
        return title, getattr(a.stats, name, None), getattr(b.stats, name, None)

    return [
        ("steps", a.num_steps_seen, b.num_steps_seen),
        ("requests finished", a.num_finished, b.num_finished - num_cut),
        *([("requests cut off", 0, num_cut)] if num_cut else []),
        ("output tokens", a.num_output_tokens, b.num_output_tokens),
        stat("running", "num_running"),
        stat("waiting", "num_waiting"),
        stat("used blocks", "num_used_blocks"),
        stat("preemptions", "num_preemptions"),
    ]


def _has_ended(state: EngineState, request_id: str, time: float) -> bool:
    """Returns whether a request that was cut off at a time counts as finished in a state."""
    request = state.requests.get(request_id)  # old ones are dropped
    return time <= state.time if request is None else request.finish_reason is not None


def _status(state: EngineState, request_id: str, cut: Container[str] = ()) -> str:
    if request_id in cut:
        return "cut off"
    request = state.requests.get(request_id)
    if request is None or not request.seq_ids:
        return "not there"
    sequence = state.sequences.get(request.seq_ids[0])
    return "not there" if sequence is None else status_word(request, sequence)
