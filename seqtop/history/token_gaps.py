"""The times between the tokens of sequences, from recorded steps."""

from __future__ import annotations

from array import array

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Step
from seqtop.wire.parsing import StepOutline, step_outline

_MAX_EVENTS = 10_000
"""The events that are read at most, the newest ones: some tenths of a second."""


def add_gaps(step: Step | StepOutline, times: dict[int, float], gaps: array[float]) -> None:
    """Adds the seconds between the tokens of `step` and those before them to `gaps`.

    Several tokens of one step count with their mean.

    Args:
        step: The step.
        times: The time of the last token of each sequence, epoch seconds, which is updated.
        gaps: The gaps so far.
    """
    for update in step.sequences:
        if not (count := len(update.new_token_ids)):
            continue
        last = times.get(update.seq_id)
        if last is not None:
            gaps.extend([(step.time - last) / count] * count)
        times[update.seq_id] = step.time


def token_gaps(timeline: Timeline, since: float, until: float) -> list[float]:
    """Returns the times between tokens that steps of a part of a timeline made, in seconds.

    Those across a gap in the recording, or from before that part, are not known.

    Args:
        timeline: The timeline.
        since: The begin of the part, epoch seconds.
        until: Its end, epoch seconds.
    """
    times: dict[int, float] = {}
    gaps = array("d")
    with timeline.lock:
        last = timeline.index.at_time(until)
        first = max(timeline.index.at_time(since), last - _MAX_EVENTS, timeline.first)
        try:
            for _, payload in timeline.payloads(first, last):
                if payload is None:
                    times.clear()
                    continue
                try:
                    outline = step_outline(payload)
                except WireError:
                    continue
                if outline is not None:
                    add_gaps(outline, times, gaps)
        except RecordingError:
            pass  # what was read is known
    return [gap for gap in gaps if gap >= 0]
