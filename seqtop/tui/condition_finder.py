"""The search of the history for a condition, a little in each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqtop.history.timeline import Timeline
from seqtop.tui import seek
from seqtop.tui.time_travel import TimeTravel

if TYPE_CHECKING:
    from seqtop.history.condition_search import ConditionSearch

READ_SECONDS = 0.01
"""Seconds of a frame for reading the history on behalf of the user."""


class ConditionFinder:
    """Searches for the moments at which a condition begins to hold.

    Args:
        timeline: The history to search.
        time_travel: Goes to what is found.
    """

    def __init__(self, timeline: Timeline, time_travel: TimeTravel) -> None:
        self.condition = ""
        """The condition that was last searched for, as the user typed it; empty before."""
        self.search: ConditionSearch | None = None
        """The search in progress."""
        self._timeline = timeline
        self._travel = time_travel

    def start(self, direction: int) -> None:
        """Starts to search for `condition`, forwards (1) or backwards (-1).

        Raises:
            FilterError: The condition is invalid.
        """
        from seqtop.history.condition_search import ConditionSearch
        from seqtop.state.condition import parse_condition

        condition = parse_condition(self.condition)
        self.search = ConditionSearch(self._timeline, condition, self._travel.position, direction)

    def cancel(self) -> bool:
        """Ends the search in progress; returns whether there was one."""
        search, self.search = self.search, None
        return search is not None

    def advance(self) -> str | None:
        """Searches on for a hundredth of a second, and goes to what is found.

        Returns:
            The id of the request for which the condition begins to hold, if it is about one.
        """
        search, travel = self.search, self._travel
        if search is None or search.advance(READ_SECONDS):
            return None
        self.search = None
        where = "after" if search.direction > 0 else "before"
        nothing = f"Nothing matches {self.condition} {where} this moment."
        if search.match is None:
            travel.key_message = search.error or nothing
            return None
        travel.go(seek.to_position(search.match), nothing)
        travel.seek_message = f"{self.condition} begins here. {travel.seek_message}".rstrip()
        seq_id = -1 if search.match_seq_id is None else search.match_seq_id
        sequence = travel.state.sequences.get(seq_id)
        return None if sequence is None else sequence.request_id
