"""Where a sequence stands: its scheduling status and its stage of computation."""

from __future__ import annotations

import enum


class SequenceStatus(enum.IntEnum):
    """What the scheduler holds a sequence to be.

    The order is meaningful: every value greater than `SWAPPED` is a way of being finished.
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
        """Whether a sequence with this status will never be scheduled again."""
        return status > _LAST_UNFINISHED

    @staticmethod
    def get_finished_reason(status: SequenceStatus) -> str | None:
        """The OpenAI `finish_reason` for a status: "stop", "length", "abort", or None.

        `FINISHED_IGNORED` marks a prompt longer than the model allows, hence "length".
        """
        return _FINISH_REASONS.get(status)


# Names, as looking members up in their class takes longer than comparing them.
_LAST_UNFINISHED = SequenceStatus.SWAPPED

_FINISH_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "length",
}


class SequenceStage(enum.Enum):
    """Whether known tokens are still being computed (prefill) or new ones generated (decode)."""

    PREFILL = 1
    DECODE = 2
