"""What is true: the engine's state, built from events and by nothing else.

This package does no I/O and knows no widget. `EngineState` is the whole interface.
"""

from collections.abc import Iterable

import msgspec

from seqtop.sequence import SequenceStatus
from seqtop.sequence.privacy import Public
from seqtop.state import reducer, repair
from seqtop.state.model import CachedBlock, RequestState, SequenceState, Span
from seqtop.wire.messages import EngineInfo, Event, InFlight, StepStats

__all__ = ["EngineState", "RequestState", "SequenceState", "Span"]

DEFAULT_MAX_FINISHED = 1_000
"""Finished requests kept unless a viewer asks for more."""


class EngineState(msgspec.Struct):
    """All that is known of one engine after the events applied so far.

    Plain data: encode it, compare it, copy it. Views only read; `apply` alone writes.
    """

    info: Public[EngineInfo | None] = None
    step: Public[int] = -1
    """Number of the last applied step; -1 before the first."""
    time: Public[float] = 0.0
    """The engine's clock at the last event, epoch seconds."""
    stats: Public[StepStats | None] = None
    requests: Public[dict[str, RequestState]] = {}
    """Unfinished and recently finished requests, in order of arrival."""
    sequences: Public[dict[int, SequenceState]] = {}
    finished: Public[list[str]] = []
    """Ids of the finished requests that are kept, in order of their ends."""
    max_finished: Public[int] = DEFAULT_MAX_FINISHED
    num_by_status: Public[list[int]] = msgspec.field(
        default_factory=lambda: [0] * len(SequenceStatus)
    )
    """How many sequences kept here have each `SequenceStatus`."""
    num_output_tokens: Public[int] = 0
    """Tokens sampled since the first applied step."""
    num_steps_seen: Public[int] = 0
    stopped: Public[str | None] = None
    """Why the engine stopped, once it has said so."""
    num_anomalies: Public[int] = 0
    """Events that did not fit what came before them."""
    last_anomaly: Public[str | None] = None
    num_prefill_tokens: Public[int] = 0
    """Prompt tokens computed since the first applied step."""
    num_finished: Public[int] = 0
    """Requests finished since the first applied event, kept or not."""
    told_to_wait: Public[list[str]] = []
    """Ids of the requests that the last step gave a reason to wait."""
    num_queued: Public[int] = 0
    """Arrivals and preemptions so far: how often a request has joined the queue."""
    cached_blocks: Public[dict[int, CachedBlock] | None] = None
    """By its number each block that the prefix cache knows, whether or not a table names it;
    `None` where the engine does not tell which it knows."""

    def apply(self, event: Event | InFlight) -> Iterable[int]:
        """Change this state by one event.

        Returns the ids of the sequences that changed, arrived or were dropped from the state
        (finished ones beyond `max_finished`), so that a view can redraw those alone.
        """
        if isinstance(event, InFlight):
            return repair.apply(self, event)
        return reducer.apply(self, event)

    def retire(self, request_id: str) -> list[int]:
        """Count a request as finished; drop the oldest finished beyond the cap.

        Drops an eighth of the cap at once, so that each finish costs O(1) on average. Returns
        the sequence ids dropped.
        """
        self.finished.append(request_id)
        self.num_finished += 1
        if len(self.finished) <= self.max_finished:
            return []
        num_dropped = max(len(self.finished) - self.max_finished, self.max_finished // 8)
        dropped = self.finished[:num_dropped]
        del self.finished[:num_dropped]
        seq_ids: list[int] = []
        for old in dropped:
            for seq_id in self.requests.pop(old).seq_ids:
                sequence = self.sequences.pop(seq_id)
                self.num_by_status[sequence.status] -= 1
                seq_ids.append(seq_id)
        return seq_ids

    def note_anomaly(self, text: str) -> None:
        """Count an event that did not fit, and remember it for whoever looks."""
        self.num_anomalies += 1
        self.last_anomaly = text
