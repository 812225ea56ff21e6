"""The requests whose latencies differ most between two runs, with the causes."""

from __future__ import annotations

import msgspec

from seqtop.diff.run import RunDecisions
from seqtop.sequence import SequenceStatus
from seqtop.state.wait_causes import cause_in_words
from seqtop.text import format as fmt

_ABORTED = SequenceStatus.FINISHED_ABORTED.name
_MAX_CHANGED = 5
_NOTABLE_SECONDS = 1e-3
"""Changes of waits below this are not named."""


class ChangedRequest(msgspec.Struct):
    """A request whose latency changes much."""

    request_id: str
    e2e: float
    """Seconds from arrival to end with the recorded settings, by the model of times."""
    predicted_e2e: float
    waits: dict[str, float]
    """The changes of its waits in seconds, by cause."""
    num_preemptions: int
    predicted_num_preemptions: int


def changed_requests(unchanged: RunDecisions, predicted: RunDecisions) -> list[ChangedRequest]:
    """Returns the requests whose latencies change most, the most changed one first.

    Requests that were aborted, or cut off where their recorded tokens end, have no latency.
    """
    pairs: list[tuple[float, ChangedRequest]] = []
    for before in unchanged.requests:
        number = predicted.number(before.request_id)
        after = predicted.requests[number] if number is not None else None
        if after is None or _ABORTED in (before.end, after.end):
            continue
        if before.e2e is None or after.e2e is None:
            continue
        causes = before.seconds_waiting.keys() | after.seconds_waiting.keys()
        waits = {
            cause: after.seconds_waiting.get(cause, 0.0) - before.seconds_waiting.get(cause, 0.0)
            for cause in causes
        }
        changed = ChangedRequest(
            before.request_id,
            before.e2e,
            after.e2e,
            {cause: change for cause, change in waits.items() if abs(change) >= _NOTABLE_SECONDS},
            before.num_preemptions,
            after.num_preemptions,
        )
        pairs.append((abs(after.e2e - before.e2e), changed))
    pairs.sort(key=lambda pair: -pair[0])
    return [changed for change, changed in pairs[:_MAX_CHANGED] if change >= _NOTABLE_SECONDS]


def describe(changed: ChangedRequest) -> str:
    """Returns a sentence on a request whose latency changes."""
    parts = [
        f"{cause_in_words(cause).label} {_signed(seconds)}"
        for cause, seconds in sorted(changed.waits.items(), key=lambda item: -abs(item[1]))
    ]
    if changed.num_preemptions != changed.predicted_num_preemptions:
        parts.append(f"preemptions {changed.num_preemptions} → {changed.predicted_num_preemptions}")
    causes = f" (waits: {', '.join(parts)})" if parts else " (in longer or shorter steps)"
    return (
        f"{changed.request_id}: E2E {fmt.seconds(changed.e2e)} →"
        f" {fmt.seconds(changed.predicted_e2e)}{causes}"
    )


def _signed(seconds: float) -> str:
    return f"{'+' if seconds >= 0 else '-'}{fmt.seconds(abs(seconds))}"
