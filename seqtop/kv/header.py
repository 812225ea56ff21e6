"""The header of the screens of KV-cache events, and the notice below it."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.kv.cells import UNNAMED
from seqtop.kv.ui_state import KvUiState
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.base_header import BADGES, BaseHeader, gap
from seqtop.tui.rendering.bars import figure, row, spread
from seqtop.tui.rendering.style import PLAIN, Line, fitted, line_width

GAP = ("▲ GAP", "badge-alert")


class KvHeader(BaseHeader):
    """The publisher, the connection and the totals."""

    def __init__(self, ui: KvUiState) -> None:
        super().__init__(ui.lock)
        self._ui = ui

    def lines(self, width: int) -> Sequence[Line]:
        return identity(self._ui, width), cached(self._ui, width), totals(self._ui, width)


def notice_text(ui: KvUiState) -> str:
    """Returns the reason why the display may be wrong; an empty text if there is none."""
    connection, gap = ui.source.connection, ui.cache.gap
    sentences = []
    if connection.state is not ConnectionState.LIVE and connection.detail:
        sentences.append(f"{connection.detail[:1].upper()}{connection.detail[1:]}.")
    if gap:
        sentences.append(
            f"Incomplete: {gap}. Until the engine clears its cache, blocks may be missing, and some"
            " of those shown may have been removed."
        )
        if connection.state is ConnectionState.LIVE and not ui.source.has_replay:
            sentences.append("Start with --replay to request the missing messages.")
    return " ".join(sentences)


def badges(ui: KvUiState) -> Line:
    """Returns badges for a gap and the connection."""
    text, style = BADGES[ui.source.connection.state]
    gap: Line = ((f" {GAP[0]} ", GAP[1]), (" ", PLAIN)) if ui.cache.gap else ()
    return (*gap, (f" {text} ", style))


def identity(ui: KvUiState, width: int) -> Line:
    """Returns the line of the publisher and of the connection."""
    right = badges(ui)
    room = width - line_width(right) - 2
    rank = ui.cache.data_parallel_rank
    left = row(
        [
            (0, (("KV-cache events", "title"),)),
            (1, ((safe_line(ui.source.connection.endpoint), PLAIN),)),
            (2, ((f"data-parallel rank {rank}", "dim"),) if rank is not None else ()),
            (3, (("blocks only, no requests", "dim"),)),
        ],
        room,
    )
    return spread(fitted(left, max(min(room, line_width(left)), 1)), right, width)


def cached(ui: KvUiState, width: int) -> Line:
    """Returns the line of cached blocks and tokens."""
    cache = ui.cache
    if not cache.num_batches:
        return (("no message yet", "dim"),)
    tiers = [
        (3, figure(safe_line(medium) or UNNAMED, fmt.count(tier.num_blocks)))
        for medium, tier in list(cache.tiers.items())[:8]
    ]
    return row(
        [
            (0, figure("blocks", fmt.count(len(cache.blocks)))),
            (0, figure("tokens", fmt.count(cache.num_tokens))),
            (1, figure("prefix trees", fmt.count(cache.num_trees))),
            *(tiers if len(cache.tiers) > 1 else []),
            (2, figure("events/s", fmt.rate(ui.rate))),
        ],
        width,
        gap=gap(width),
    )


def totals(ui: KvUiState, width: int) -> Line:
    """Returns the line of totals since the viewer connected, and of errors."""
    cache, connection = ui.cache, ui.source.connection
    problems = [
        (1, ((f"{word} {fmt.count(number)}", "alert"),))
        for word, number in (
            ("missed", connection.num_missed),
            ("errors", connection.num_errors),
            ("removed unknown", cache.num_removed_unknown),
            ("not shown", cache.num_not_shown),
            ("unknown event kinds", len(cache.unknown)),
        )
        if number
    ]
    if not cache.num_batches:
        return row(problems, width) if problems else ()
    return row(
        [
            (0, figure("stored", fmt.count(cache.num_stored))),
            (0, figure("removed", fmt.count(cache.num_removed))),
            (2, figure("cleared", fmt.count(cache.num_cleared))),
            (3, figure("stored again", fmt.count(cache.num_stored_again))),
            (4, figure("extended", fmt.count(cache.num_extending))),
            (3, figure("branched", fmt.count(cache.num_branching))),
            *problems,
        ],
        width,
        gap=gap(width),
    )
