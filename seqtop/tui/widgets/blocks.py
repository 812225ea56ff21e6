"""The block table of one sequence: which physical block holds which stretch of its tokens."""

from collections.abc import Container, Iterable, Set

from seqtop import format as fmt
from seqtop.safe import safe_line
from seqtop.state import RequestState, SequenceState
from seqtop.tui.draw import row
from seqtop.tui.feed import Feed
from seqtop.tui.flow import wrap
from seqtop.tui.ink import PLAIN, Line, Span
from seqtop.tui.widgets.lines import Lines

CACHED_MARK = "°"
KEPT_MARK = "+"
SHARED_MARK = "≡"
FILLS = "▁▂▃▄▅▆▇█"


class Blocks(Lines):
    """The block table of the selected sequence."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(id="blocks")
        self.border_title = "Blocks"
        self._feed = feed
        self._owners: dict[int, str] = {}
        self._owners_of: tuple[int, int, int] | None = None

    def update(self) -> None:
        """Call it under the feed's lock."""
        if (found := self._feed.selection) is None or not self.outer_size:
            self.set_lines(())
            return
        request, sequence = found
        info = self._feed.state.info
        block_size = info.block_size if info else 0
        last_id = info.num_gpu_blocks - 1 if info else 0
        moment = (sequence.seq_id, len(sequence.block_table), self._feed.second)
        if moment != self._owners_of:  # looking at every running sequence costs too much for 30 fps
            self._owners_of, self._owners = moment, sharers(self._feed, sequence)
        self.set_lines(
            block_lines(
                request,
                sequence,
                self._owners,
                self._feed.state.cached_blocks,
                block_size,
                last_id,
                self.text_width,
            )
        )

    def on_resize(self) -> None:
        with self._feed.lock:
            self.update()


def sharers(feed: Feed, sequence: SequenceState) -> dict[int, str]:
    """For each of the sequence's blocks that another running sequence has too, whose it is.

    Looks at running sequences only (nobody else has blocks), and at these only where the engine
    shares blocks at all.
    """
    info = feed.state.info
    forked = len(feed.state.requests[sequence.request_id].seq_ids) > 1
    if not sequence.block_table or info is None or not (info.enable_prefix_caching or forked):
        return {}
    mine = set(sequence.block_table)
    found: dict[int, str] = {}
    for seq_id in feed.view.running:
        other = feed.state.sequences.get(seq_id)
        if other is None or seq_id == sequence.seq_id or mine.isdisjoint(other.block_table):
            continue
        for block in mine.intersection(other.block_table):
            found.setdefault(block, other.request_id)
    return found


def block_lines(
    request: RequestState,
    sequence: SequenceState,
    owners: dict[int, str],
    known: Container[int] | None,
    block_size: int,
    last_id: int,
    width: int,
) -> list[Line]:
    """Summary, legend and grid: rows begin with a logical number, cells are physical ones.

    Args:
        owners: For each block that is shared, with whom.
        known: The blocks that the prefix cache knows; `None` where the engine does not tell.
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
        spans: list[Span] = [(f"{first:>{label}} ", "dim")]
        for logical in range(first, min(first + per_row, len(table))):
            block = table[logical]
            mark, ink = " ", PLAIN
            if block in shared:
                mark, ink = SHARED_MARK, "shared"
            elif logical < num_cached:
                mark, ink = CACHED_MARK, "cached"
            elif block in kept:
                mark, ink = KEPT_MARK, "cached"
            elif logical == len(table) - 1:
                mark, ink = _fill(last_fill, block_size), "strong"
            spans.append((f" {block:>{digits}}{mark}", ink))
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
    lines: list[Line] = []
    for text, ink in parts:
        shown = safe_line(text)
        lines += [((shown[start:end], ink),) for start, end in wrap(shown, width)]
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
