"""The block table of one sequence: the physical block of each logical block."""

from collections.abc import Container, Iterable, Set

from seqtop.state import RequestState, SequenceState
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.style import PLAIN, Line, StyledText
from seqtop.tui.rendering.wrapped_text import wrapped
from seqtop.tui.screens.sequences.pane import FittingPane
from seqtop.tui.ui_state import UiState

CACHED_MARK = "°"
COMPUTED_MARK = "+"
SHARED_MARK = "≡"
FILLS = "▁▂▃▄▅▆▇█"


class BlockTablePane(FittingPane):
    """The block table of the selected sequence."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="blocks", title="Blocks")

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        if (selection := self._ui.selection) is None or not self.outer_size:
            self.set_lines(())
            return
        request, sequence = selection
        info = self._ui.state.info
        block_size = info.block_size if info else 0
        last_id = info.num_gpu_blocks - 1 if info else 0
        lines = block_lines(
            request,
            sequence,
            shared_owners(self._ui, sequence),
            self._ui.state.cached_blocks,
            block_size,
            last_id,
            self.text_width,
        )
        self.fit_lines(sequence.seq_id, lines)


def shared_owners(ui: UiState, sequence: SequenceState) -> dict[int, str]:
    """Returns for each block that a sequence shares the request id of another owner.

    Called under the lock of `ui`.
    """
    if not _may_share(ui, sequence):
        return {}
    index, owners = ui.blocks.index(ui.state), {}
    for block in sequence.block_table:
        for seq_id in index.table_owners(block):
            other = ui.state.sequences.get(seq_id)
            if other is not None and other is not sequence:
                owners[block] = other.request_id
                break
    return owners


def _may_share(ui: UiState, sequence: SequenceState) -> bool:
    """Returns whether the engine shares blocks, as far as is known."""
    info = ui.state.info
    forked = len(ui.state.requests[sequence.request_id].seq_ids) > 1
    caches = info is not None and info.enable_prefix_caching
    return bool(sequence.block_table) and info is not None and (caches or forked)


def block_lines(
    request: RequestState,
    sequence: SequenceState,
    owners: dict[int, str],
    cached_blocks: Container[int] | None,
    block_size: int,
    last_id: int,
    width: int,
) -> list[Line]:
    """Returns the summary, the grid and the legend of a block table.

    A row of the grid begins with a logical block number. Its cells are physical block numbers; for
    blocks of one token, runs of consecutive ones.

    Args:
        request: The sequence's request.
        sequence: The sequence.
        owners: For each shared block the request id of another owner.
        cached_blocks: The blocks in the prefix cache; `None` if the engine does not publish them.
        block_size: Tokens per block.
        last_id: The largest block number of the pool.
        width: The cells of a line.
    """
    table = sequence.block_table
    if not table:
        return [((_no_blocks(request), "dim"),)]
    num_cached = sequence.num_cached_tokens // block_size if block_size > 0 else 0
    in_cache = {block for block in table if cached_blocks is not None and block in cached_blocks}
    cache_text = f"{fmt.count(len(in_cache))} in the prefix cache"
    computed = in_cache.difference(owners, table[: max(num_cached, 0)])
    slots = len(table) * block_size
    filled = min(max(sequence.num_computed_tokens, 0), slots)
    if block_size == 1:
        grid = _runs(table, owners.keys(), computed, num_cached, width)
    else:
        grid = _grid(
            table,
            owners.keys(),
            computed,
            num_cached,
            filled - slots + block_size,
            block_size,
            last_id,
            width,
        )
    return [
        row(
            [
                (0, ((fmt.plural(len(table), "block"), "strong"),)),
                (1, ((f"{fmt.count(filled)} of {fmt.count(slots)} slots filled", PLAIN),)),
                (2, ((fmt.plural(num_cached, "hit"), PLAIN),)),
                (2, ((f"{fmt.count(len(owners))} shared", PLAIN),)),
                (3, ((cache_text, PLAIN),) if cached_blocks is not None else ()),
            ],
            width,
        ),
        *grid,
        *_legend(
            owners.values(),
            num_cached,
            filled,
            slots,
            block_size,
            width,
            has_computed=bool(computed),
        ),
    ]


def _grid(
    table: list[int],
    shared: Set[int],
    computed: Set[int],
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
            mark, style = _mark(block, logical, shared, computed, num_cached)
            if mark == " " and logical == len(table) - 1:
                mark, style = _fill(last_fill, block_size), "strong"
            spans.append((f" {block:>{digits}}{mark}", style))
        lines.append(tuple(spans))
    return lines


def _runs(
    table: list[int], shared: Set[int], computed: Set[int], num_cached: int, width: int
) -> list[Line]:
    """Returns the lines of a table of small blocks: runs of consecutive ones with one mark."""
    runs: list[tuple[int, int, str, str]] = []
    """The logical position, the first block, the mark and the style of each."""
    before = None
    for logical, block in enumerate(table):
        mark, style = _mark(block, logical, shared, computed, num_cached)
        if before != (block - 1, mark):
            runs.append((logical, block, mark, style))
        before = block, mark
    label, lines, spans, left = len(str(len(table) - 1)), [], list[StyledText](), 0
    for number, (logical, first, mark, style) in enumerate(runs):
        end = runs[number + 1][0] if number + 1 < len(runs) else len(table)
        num = end - logical
        text = f" {first}{f'-{first + num - 1}' if num > 1 else ''}{mark}"
        if not spans or len(text) > left:
            if spans:
                lines.append(tuple(spans))
            spans, left = [(f"{logical:>{label}} ", "dim")], width - label - 1
        spans.append((text, style))
        left -= len(text)
    return [*lines, tuple(spans)]


def _mark(
    block: int, logical: int, shared: Set[int], computed: Set[int], num_cached: int
) -> tuple[str, str]:
    """Returns the mark of a block, and its style."""
    if block in shared:
        return SHARED_MARK, "shared"
    if logical < num_cached:
        return CACHED_MARK, "cached"
    if block in computed:
        return COMPUTED_MARK, "cached"
    return " ", PLAIN


def _legend(
    owners: Iterable[str],
    num_cached: int,
    filled: int,
    slots: int,
    block_size: int,
    width: int,
    *,
    has_computed: bool,
) -> list[Line]:
    parts: list[tuple[str, str]] = []
    names = sorted(set(owners))
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        parts.append((f"{SHARED_MARK} shared with {', '.join(names[:3])}{more}", "shared"))
    if num_cached:
        parts.append((f"{CACHED_MARK} found in the prefix cache", "cached"))
    if has_computed:
        parts.append((f"{COMPUTED_MARK} in the prefix cache since it was computed", "cached"))
    if 0 < slots - filled < block_size:
        last = filled - slots + block_size
        parts.append((f"{_fill(last, block_size)} last block: {last} of {block_size} slots", "dim"))
    lines: list[Line] = []
    for text, style in parts:
        lines += wrapped(safe_line(text), style, width)
    return lines


def _fill(slots: int, block_size: int) -> str:
    """Returns a glyph for the fill of a block."""
    if block_size <= 0 or slots <= 0:
        return " "
    return FILLS[min(slots * len(FILLS) // block_size, len(FILLS) - 1)]


def _no_blocks(request: RequestState) -> str:
    if request.finish_reason is not None:
        return "Finished: its blocks are free again."
    return "It holds no blocks while it waits."
