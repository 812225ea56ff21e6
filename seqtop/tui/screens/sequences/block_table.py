"""The block table of one sequence: which physical block holds which stretch of its tokens."""

from collections.abc import Container, Iterable, Set

from seqtop import format as fmt
from seqtop.sanitize import safe_line
from seqtop.state import RequestState, SequenceState
from seqtop.tui.feed import Feed
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.style import PLAIN, Line, StyledText
from seqtop.tui.rendering.wrapped_text import wrapped
from seqtop.tui.screens.sequences.pane import DetailPane

CACHED_MARK = "°"
KEPT_MARK = "+"
SHARED_MARK = "≡"
FILLS = "▁▂▃▄▅▆▇█"


BLOCKS_AT_ONCE = 2_048
"""Blocks of other sequences that are looked at for one frame."""


class BlockTable(DetailPane):
    """The block table of the selected sequence."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed, id="blocks", title="Blocks")
        self._sharers = Sharers()
        self._filling: int | None = None
        """Whose last block has been seen while it was filled."""

    def update(self) -> None:
        """Call it under the feed's lock."""
        if (found := self._feed.selection) is None or not self.outer_size:
            self.set_lines(())
            return
        request, sequence = found
        info = self._feed.state.info
        block_size = info.block_size if info else 0
        last_id = info.num_gpu_blocks - 1 if info else 0
        self._sharers.look(self._feed, sequence)
        if self._sharers.is_behind and self._feed.paused:  # no frame is to come by itself
            self.call_after_refresh(self.update_locked)
        unfilled = len(sequence.block_table) * block_size - sequence.num_computed_tokens
        if 0 < unfilled < block_size:
            self._filling = sequence.seq_id
        self.set_lines(
            block_lines(
                request,
                sequence,
                self._sharers.owners,
                self._feed.state.cached_blocks,
                block_size,
                last_id,
                self.text_width,
                steady=sequence.seq_id == self._filling,
            )
        )


class Sharers:
    """Whose the blocks of a sequence are besides: of all that run, a few looked at with each frame.

    Looks at running sequences only (nobody else has blocks), and at these only where the engine
    shares blocks at all.
    """

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        """For each block that another running sequence has too, whose it is."""
        self._moment: tuple[int, int, int] | None = None
        self._last: int | None = None
        """Of those that run, in the order of their ids, the last that was looked at; `None` once
        there are no more."""
        self._found: dict[int, str] = {}

    def look(self, feed: Feed, sequence: SequenceState) -> None:
        """Go on looking, from the beginning if a second has passed or there is another block."""
        moment = (sequence.seq_id, len(sequence.block_table), feed.second)
        is_another = self._moment is None or moment[0] != self._moment[0]
        if is_another:
            self.owners = {}
        if is_another or (moment != self._moment and self._last is None):
            self._moment, self._found = moment, {}
            self._last = -1 if _may_share(feed, sequence) else None
            if self._last is None:
                self.owners = {}
        if self._last is None:
            return
        mine, room = set(sequence.block_table), BLOCKS_AT_ONCE
        for seq_id in feed.view.running.irange(self._last, inclusive=(False, False)):
            self._last = seq_id
            other = feed.state.sequences.get(seq_id)
            if other is None or other is sequence:
                continue
            room -= 1 + len(other.block_table)
            if not mine.isdisjoint(other.block_table):
                for block in mine.intersection(other.block_table):
                    self._found.setdefault(block, other.request_id)
            if room <= 0:
                break
        else:
            self.owners, self._last = self._found, None

    @property
    def is_behind(self) -> bool:
        """Whether some are yet to be looked at; `look` goes on with it."""
        return self._last is not None


def _may_share(feed: Feed, sequence: SequenceState) -> bool:
    info = feed.state.info
    forked = len(feed.state.requests[sequence.request_id].seq_ids) > 1
    caches = info is not None and info.enable_prefix_caching
    return bool(sequence.block_table) and info is not None and (caches or forked)


def block_lines(
    request: RequestState,
    sequence: SequenceState,
    owners: dict[int, str],
    known: Container[int] | None,
    block_size: int,
    last_id: int,
    width: int,
    *,
    steady: bool = False,
) -> list[Line]:
    """Summary, legend and grid: rows begin with a logical number, cells are physical ones.

    Args:
        owners: For each block that is shared, with whom.
        known: The blocks that the prefix cache knows; `None` where the engine does not tell.
        steady: Whether the line on the last block keeps its place while that is full: the next
            token begins another, and nothing is to jump.
    """
    table = sequence.block_table
    if not table:
        return [((_no_blocks(request), "dim"),)]
    num_cached = sequence.num_cached_tokens // block_size if block_size > 0 else 0
    kept = {block for block in table if known is not None and block in known}
    in_cache = f"{fmt.count(len(kept))} in the prefix cache"
    marked = kept.difference(owners, table[: max(num_cached, 0)])
    slots = len(table) * block_size
    filled = min(max(sequence.num_computed_tokens, 0), slots)
    return [
        row(
            [
                (0, ((fmt.plural(len(table), "block"), "strong"),)),
                (1, ((f"{fmt.count(filled)} of {fmt.count(slots)} slots filled", PLAIN),)),
                (2, ((f"{fmt.count(num_cached)} cached", PLAIN),)),
                (2, ((f"{fmt.count(len(owners))} shared", PLAIN),)),
                (3, ((in_cache, PLAIN),) if known is not None else ()),
            ],
            width,
        ),
        *_legend(
            owners.values(),
            num_cached,
            filled,
            slots,
            block_size,
            width,
            keeps=bool(marked),
            steady=steady,
        ),
        *_grid(
            table,
            owners.keys(),
            marked,
            num_cached,
            filled - slots + block_size,
            block_size,
            last_id,
            width,
        ),
    ]


def _grid(
    table: list[int],
    shared: Set[int],
    kept: Set[int],
    num_cached: int,
    last_fill: int,
    block_size: int,
    last_id: int,
    width: int,
) -> list[Line]:
    label = len(str(len(table) - 1))
    digits = max(len(str(max(last_id, 0))), max(len(str(block)) for block in table))
    per_row = max((width - label - 1) // (digits + 2), 1)
    if per_row >= 8:
        per_row -= per_row % 8
    lines: list[Line] = []
    for first in range(0, len(table), per_row):
        spans: list[StyledText] = [(f"{first:>{label}} ", "dim")]
        for logical in range(first, min(first + per_row, len(table))):
            block = table[logical]
            mark, style = " ", PLAIN
            if block in shared:
                mark, style = SHARED_MARK, "shared"
            elif logical < num_cached:
                mark, style = CACHED_MARK, "cached"
            elif block in kept:
                mark, style = KEPT_MARK, "cached"
            elif logical == len(table) - 1:
                mark, style = _fill(last_fill, block_size), "strong"
            spans.append((f" {block:>{digits}}{mark}", style))
        lines.append(tuple(spans))
    return lines


def _legend(
    owners: Iterable[str],
    num_cached: int,
    filled: int,
    slots: int,
    block_size: int,
    width: int,
    *,
    keeps: bool,
    steady: bool,
) -> list[Line]:
    parts: list[tuple[str, str]] = []
    names = sorted(set(owners))
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        parts.append((f"{SHARED_MARK} shared with {', '.join(names[:3])}{more}", "shared"))
    if num_cached:
        parts.append((f"{CACHED_MARK} found in the prefix cache", "cached"))
    if keeps:
        parts.append((f"{KEPT_MARK} in the prefix cache since it was computed", "cached"))
    if 0 < slots - filled < block_size:
        last = filled - slots + block_size
        parts.append((f"{_fill(last, block_size)} last block: {last} of {block_size} slots", "dim"))
    elif steady and filled == slots:
        parts.append(("", "dim"))
    lines: list[Line] = []
    for text, style in parts:
        lines += wrapped(safe_line(text), style, width)
    return lines


def _fill(slots: int, block_size: int) -> str:
    """How full a block is, as a glyph."""
    if block_size <= 0 or slots <= 0:
        return " "
    return FILLS[min(slots * len(FILLS) // block_size, len(FILLS) - 1)]


def _no_blocks(request: RequestState) -> str:
    if request.finish_reason is not None:
        return "Finished: its blocks are free again."
    return "It holds no blocks while it waits."
