"""The times between the tokens of sequences, from recorded steps."""

from __future__ import annotations

from array import array

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Step
from seqtop.wire.parsing import StepOutline, step_outline

_MAX_EVENTS = 2_000
"""The events that are read at most, the newest ones: less than a tenth of a second."""


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


def token_gaps(timeline: Timeline, since: float, until: float) -> tuple[array[float], array[float]]:
    """Returns when tokens came in a part of a timeline, and the times before each, in seconds.

    Times across a gap in the recording, or from before that part, are not known.

    Args:
        timeline: The timeline.
        since: The begin of the part, epoch seconds.
        until: Its end, epoch seconds.
    """
    times: dict[int, float] = {}
    ends, gaps = array("d"), array("d")
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
                    ends.extend([outline.time] * (len(gaps) - len(ends)))
        except RecordingError:
            pass  # what was read is known
    return ends, gaps
