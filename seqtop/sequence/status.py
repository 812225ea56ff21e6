"""The scheduling status of a sequence and its stage of computation."""

from __future__ import annotations

import enum


class SequenceStatus(enum.IntEnum):
    """The scheduling status of a sequence.

    Every value greater than `SWAPPED` is a finished status.
    """

    WAITING = 0
    RUNNING = 1
    SWAPPED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_IGNORED = 6

    @staticmethod
    def is_finished(status: SequenceStatus) -> bool:
        """Returns whether a sequence with this status will never be scheduled again."""
        return status > LAST_UNFINISHED

    @staticmethod
    def get_finished_reason(status: SequenceStatus) -> str | None:
        """Returns the OpenAI `finish_reason` of a status: "stop", "length", "abort", or None.

        `FINISHED_IGNORED` marks a prompt longer than the model allows, hence "length".
        """
        return _FINISH_REASONS.get(status)


# A global name: looking up a member of an enum class takes longer than the comparison.
LAST_UNFINISHED = SequenceStatus.SWAPPED

_FINISH_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "length",
}


class SequenceStage(enum.Enum):
    """The stage of computation: of known tokens (prefill) or of new ones (decode)."""

    PREFILL = 1
    DECODE = 2
