"""The guided tour of the demo: stops on the real screens, each with a text that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from seqtop.history.condition_search import ConditionSearch
from seqtop.state.condition import parse_condition
from seqtop.transport.connection import ConnectionState
from seqtop.tui import seek
from seqtop.tui.navigation import jump
from seqtop.tui.ui_state import UiState

_READ_SECONDS = 0.05
"""Seconds of a call for reading the history."""


class TourStop(NamedTuple):
    """A stop of the tour."""

    title: str
    text: str
    """Sentences with the engine's settings in braces, by the names of `EngineInfo`."""
    screen: str
    """The name of the tab of its screen."""
    condition: str = ""
    """The condition that begins to hold at its moment; without one, the display is live."""
    pane: Literal["", "sentence", "latency"] = ""
    """The part of the detail pane that is opened, if one is needed."""


STOPS = (
    TourStop(
        "A block",
        "The keys and values of a sequence's tokens are its part of the KV cache, which is divided"
        " into {num_gpu_blocks} blocks of {block_size} tokens. Each cell of this map is one block;"
        " its letter and colour are its owner's. Where cells are large, they show the text.",
        "blocks",
    ),
    TourStop(
        "Sharing",
        "This prompt begins as another one does. The blocks of that beginning were found in the"
        " prefix cache, so they are not computed again: ≡, or ▓ in small cells, marks those that"
        " another sequence holds, too.",
        "blocks",
        "hit>50%",
    ),
    TourStop(
        "Chunked prefill",
        "A step computes at most {max_num_batched_tokens} tokens, and this prompt is longer. It is"
        " computed in chunks (█ in Tokens), and the other sequences decode one token a step (━)"
        " meanwhile, instead of waiting for it.",
        "steps",
        "stage:prefill prompt>256",
    ),
    TourStop(
        "A full cache",
        "More than 95 % of the blocks are in use: the chart of the KV blocks is at its top. Each"
        " sequence needs another block every {block_size} tokens, and who arrives now has to wait.",
        "overview",
        "kv>95%",
    ),
    TourStop(
        "A preemption",
        "A sequence needed a block, and there was none. So the scheduler took the blocks of"
        " another, which waits again (▒) and will be computed again. The line above names it,"
        " and the tokens that it lost.",
        "timeline",
        "status:preempt",
    ),
    TourStop(
        "A prefix miss",
        "It runs again. Blocks that had stayed in the prefix cache were found, others had been"
        " evicted meanwhile: its sentence says how many tokens were missing, and for which request"
        " the blocks were taken. These tokens are computed a second time.",
        "sequences",
        "preempt>0 status:running",
        pane="sentence",
    ),
    TourStop(
        "A slow request, explained",
        "Its first token took more than two seconds. The part Latency of the pane divides that"
        " time: what it waited for, behind whom, and what was computed; ( and ) go through the"
        " parts.",
        "sequences",
        "ttft>2s status:running",
        pane="latency",
    ),
    TourStop(
        "What if",
        "Would more memory have helped? Press I, type num_gpu_blocks=+50% and Enter: the engine's"
        " own scheduler runs this history again with that setting. S shares what you see, ? lists"
        " all keys.",
        "sequences",
    ),
)


class Tour:
    """The progress of a tour.

    Args:
        ui: The display that the tour moves.
    """

    def __init__(self, ui: UiState) -> None:
        self._ui = ui
        self._number = 0
        self._search: ConditionSearch | None = None

    @property
    def stop(self) -> TourStop:
        """The stop on display."""
        return STOPS[self._number]

    @property
    def title(self) -> str:
        return f"Tour, {self._number + 1} of {len(STOPS)}: {self.stop.title}"

    @property
    def next_key(self) -> str:
        """The key that goes on, and where to; empty before the engine runs."""
        if self._ui.newest.info is None:
            return ""
        return "N ends the tour" if self._number + 1 == len(STOPS) else "N goes on"

    @property
    def is_waiting(self) -> bool:
        """True while the moment of the stop is searched for."""
        return self._search is not None

    @property
    def text(self) -> str:
        """The text of the stop, or the reason why its moment is not shown yet."""
        info = self._ui.newest.info
        if info is None:
            if self._ui.source.connection.state is ConnectionState.STOPPED:
                return "The engine did not start, so there is no tour."
            return "The tour begins as soon as the engine runs."
        if self.is_waiting:
            return "This has not happened yet, but it will: the tour waits for it."
        settings: Mapping[str, int] = {
            name: getattr(info, name)
            for name in ("num_gpu_blocks", "block_size", "max_num_batched_tokens")
        }
        return self.stop.text.format_map(settings)

    def go_on(self) -> bool:
        """Goes to the next stop; returns whether there is one. Called under the lock of `ui`."""
        if self._ui.newest.info is None:
            return True
        if self._number + 1 == len(STOPS):
            return False
        self._number += 1
        self.begin()
        return True

    def begin(self) -> None:
        """Shows the present, and begins to search for the stop's moment, if it has one."""
        self._search = None
        if self._ui.paused:
            self._ui.time_travel.resume()
        if self.stop.condition:
            self._search = self._new_search()

    def advance(self) -> bool:
        """Searches on; returns whether the moment has been found. Called under the lock of `ui`."""
        search, travel = self._search, self._ui.time_travel
        if search is None or search.advance(_READ_SECONDS):
            return False
        if search.match is None:
            self._search = self._new_search()  # of what has happened meanwhile
            return False
        self._search = None
        jump(self._ui, seek.to_position(search.match), "")
        travel.key_message = ""
        sequence = travel.state.sequences.get(
            -1 if search.match_seq_id is None else search.match_seq_id
        )
        if sequence is not None:
            self._ui.cursor.pending = sequence.request_id
        return True

    def _new_search(self) -> ConditionSearch:
        history = self._ui.source.history
        return ConditionSearch(history, parse_condition(self.stop.condition), history.first, 1)
