"""The last messages about one sequence, field by field, from the history."""

import contextlib
import itertools
import pprint
from array import array
from enum import Enum

import msgspec

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.sequence import SequenceGroupMetadata
from seqtop.state import RequestState, SequenceState
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.screens.sequences.pane import ScrollablePane
from seqtop.tui.ui_state import UiState
from seqtop.wire.batch import full_metadata_of, metadata_of
from seqtop.wire.messages import Step

_FAR = 16
"""The messages after the scheduling of a request that are searched for its full metadata."""


class RawMessages(ScrollablePane):
    """The newest update and metadata of the selected sequence, then the last full metadata.

    While the sequence changes, messages are read once a second: reading takes longer than drawing.
    """

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="raw", title="Raw")
        self._shown: tuple[int, int, int, int] | None = None
        """The sequence, the time, the position and the width for which the lines were made."""

    def update(self) -> None:
        if not self.outer_size:
            return
        selection, position = self._ui.selection, self._ui.time_travel.position
        timeline = self._ui.source.history
        if selection is None:
            self._shown = None
            self.set_lines([])
            return
        # A paused display shows every step, a live one the newest of each second.
        when = selection[1].last_step if self._ui.paused else self._ui.second
        shown = (selection[1].seq_id, when, position if self._ui.paused else -1, self.text_width)
        if self._shown == shown:
            return
        self._shown = shown
        with timeline.lock, contextlib.suppress(RecordingError):
            self.set_lines(raw_lines(timeline, position, *selection, self.text_width))
            return
        self.set_lines([(("The history cannot be read.", "dim"),)])


def raw_lines(
    timeline: Timeline, position: int, request: RequestState, sequence: SequenceState, width: int
) -> list[Line]:
    """Returns the messages of the last step that changed a sequence, and its last full metadata."""
    lines: list[Line] = []

    def add(title: str, thing: object) -> None:
        lines.append(((title, "strong"),))
        text = pprint.pformat(
            _named(thing), width=max(width - 2, 20), compact=True, sort_dicts=False
        )
        lines.extend(((f"  {safe_text(line)}", PLAIN),) for line in text.splitlines())

    step = _step(timeline, position, sequence.last_step)
    if step is not None:
        for update in step.sequences:
            if update.seq_id == sequence.seq_id:
                add(f"Update of step {step.step:,}", update)
        if (metadata := metadata_of(step, request.request_id)) is not None:
            full = isinstance(metadata, SequenceGroupMetadata)
            add(f"{'Full' if full else 'Delta'} of step {step.step:,}", metadata)
    last_full = _full(timeline, position, request)
    if last_full is not None and last_full[0] != (step.step if step else None):
        add(f"Last full, of step {last_full[0]:,}", last_full[1])
    return lines or [(("The history has no message about it.", "dim"),)]


def _named(thing: object) -> object:
    """Returns a message as plain data with named fields; on the wire, fields have no names."""
    if isinstance(thing, msgspec.Struct):
        return {name: _named(value) for name, value in msgspec.structs.asdict(thing).items()}
    if isinstance(thing, dict):
        return {key: _named(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple | array):
        return [_named(item) for item in thing]
    return thing.name if isinstance(thing, Enum) else thing


def _step(timeline: Timeline, position: int, number: int) -> Step | None:
    if number < 0:
        return None
    end = timeline.index.at_step(number, near=position)
    start = timeline.index.at_step(number - 1, near=position)
    for _, event in timeline.events(start, end):
        if isinstance(event, Step) and event.step == number:
            return event
    return None


def _full(
    timeline: Timeline, position: int, request: RequestState
) -> tuple[int, SequenceGroupMetadata] | None:
    """Returns the last full metadata of a request: sent when it is scheduled after waiting."""
    spans = request.spans
    starts = [
        span.start
        for before, span in itertools.pairwise(spans)
        if span.kind == "prefill" and before.kind != "prefill"
    ]
    for start in reversed(starts):
        here = timeline.index.at_time(start)
        for _, event in timeline.events(here, min(here + _FAR, position)):
            if isinstance(event, Step):
                metadata = full_metadata_of(event, request.request_id)
                if metadata is not None:
                    return event.step, metadata
    return None
