"""The block pool as lines of cells, as pure functions.

A block that sequences hold is filled with the colour of the first of them, as far as its slots are
filled, and shows a letter for its owner, so that neighbours differ without colour too. Other states
have signs of their own. If a pool has more blocks than cells fit, a cell stands for several.
"""

from collections.abc import Iterable, Mapping
from itertools import islice

from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.block_index import BlockIndex, has_positions
from seqtop.text import format as fmt
from seqtop.text.sanitize import is_narrow, safe_text
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.block_grid import (
    BlockGrid,
    Pool,
    cell,
    label_width,
    text_line,
    with_largest_cells,
)
from seqtop.tui.rendering.cell_map import (
    GROUP,
    OUTLINED,
    cell_row,
    has_room_for_outline,
)
from seqtop.tui.rendering.owner_marks import OWNER_STYLES, SELECTED, OwnerMarks
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

MAX_PITCH = 32
"""The most columns of a cell, with the gap after it."""
MAX_EXAMINED = 100_000
"""The most blocks that cells for several blocks show at once; of larger pools, a part is visible.

A frame examines each of them, in about 50 ns.
"""

FREE = ("·", "unheld")
CACHED = ("°", "unheld-cached")
SHARED = ("≡", OWNER_STYLES[0])
"""The sign of a block with several owners; its style is that of the first."""
SWAPPED = ("⇄", OWNER_STYLES[0])
"""The sign of a swapped-out block in host memory; its style is that of its owner."""
RESERVED = ("∅", "unheld")
SELECTED_SHARED = ("▓", "selected-shared")
LEAST_ROOM = 6
"""The columns in a cell from which on it shows the block's text."""
MAX_TEXTS = 4_000
"""The texts of blocks that are kept."""
SHADES = "░▒▓█"
"""Shares of the blocks of one cell that are in use, up to a quarter, a half, less than all, all."""


def pools_of(num_device: int, num_host: int) -> tuple[Pool, Pool]:
    """Returns the pools of the device and of the host, of which the second has a title."""
    return Pool("device", num_device, has_title=False), Pool("host", num_host)


def grid(
    num_device: int, num_host: int, width: int, height: int, *, single: bool = False
) -> BlockGrid:
    """Returns the grid of two pools in `width` columns, with the largest cells that fit.

    If the pools do not fit into `height` lines, a cell has one column, and stands for as many
    blocks as let all be visible; with `single`, for one.
    """
    pools = pools_of(num_device, num_host)
    room = max(width - label_width(pools) + 1, GROUP + 1)
    best = with_largest_cells(pools, width, height, MAX_PITCH)
    if best is not None:
        return best
    condensed = BlockGrid(pools, room // (GROUP + 1) * GROUP)
    most = 1 if single else -(-MAX_EXAMINED // (condensed.per_row * max(height, 1)))
    span = max((num_device + num_host) // (condensed.per_row * max(height, 1)), 1)
    while span < most and condensed._replace(span=span).height > height:
        span += 1
    return condensed._replace(span=max(min(span, most), 1))


def mark(index: BlockIndex, block: int, selected: int | None, marks: OwnerMarks) -> StyledText:
    """Returns the sign of a block and its style."""
    owners = index.owners(block)
    if block < index.num_reserved:
        return RESERVED
    if not owners:
        return CACHED if block in index.cached else FREE
    if selected in owners:
        return SELECTED if len(owners) == 1 else SELECTED_SHARED
    letter, style = marks.mark(next(iter(owners)))
    if len(owners) > 1:
        return SHARED[0], style
    return (SWAPPED[0] if block >= index.num_device else letter), style


def condensed_mark(
    index: BlockIndex, blocks: range, selected: int | None, marks: OwnerMarks
) -> StyledText:
    """Returns the sign of a cell for several blocks: the share in use, in the first owner's style.

    The selected sequence comes before the others.
    """
    held = index.held(blocks)
    if not held:
        is_cached = any(block in index.cached for block in blocks) if index.cached else False
        return CACHED if is_cached else FREE
    full = len(held) == len(blocks)
    shade = SHADES[-1] if full else SHADES[min(len(held) * 4 // len(blocks), 2)]
    if selected is not None and any(selected in owners for owners in held):
        return shade, "selected-edge"
    return shade, f"{marks.mark(next(iter(held[0])))[1]}-edge"


def fill(state: EngineState, index: BlockIndex, block: int) -> float:
    """Returns the largest share of a block's slots that one of its owners has computed.

    It is 1 for a block that nothing holds, and if the share is unknown.
    """
    owners = index.owners(block)
    size = state.info.block_size if state.info else 0
    most = 0
    for seq_id, position in owners.items():
        sequence = state.sequences.get(seq_id)
        table = sequence.block_table if sequence is not None else ()
        if sequence is None or not (position < len(table) and table[position] == block):
            return 1.0  # in host memory, or in a table of another group
        most = max(most, sequence.num_computed_tokens - position * size)
        if most >= size:
            return 1.0
    return most / size if owners else 1.0


class BlockTexts:
    """The texts of blocks, of which those that have been made are kept."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], str] = {}
        """By sequence, its tokens and the logical position of the block."""

    def text(self, state: EngineState, index: BlockIndex, block: int) -> str:
        """Returns the text of the tokens in a block; empty if it is unknown.

        It is that of the block's first owner, or of the sequence that wrote it into the prefix
        cache. For a part of a prompt, of which only the whole text is known, it is the token ids.
        """
        if not has_positions(state.info):
            return ""
        owner = next(iter(index.owners(block).items()), None)
        if owner is None and state.cached_blocks is not None:
            writer = state.cached_blocks.get(block)
            owner = None if writer is None else (writer.seq_id, writer.position)
        sequence = None if owner is None else state.sequences.get(owner[0])
        if owner is None or sequence is None or state.info is None:
            return ""
        key = (*owner, min(sequence.num_tokens, (owner[1] + 1) * state.info.block_size))
        text = self._known.get(key)
        if text is None:
            if len(self._known) > MAX_TEXTS:
                self._known.clear()
            request = state.requests[sequence.request_id]
            text = _text(request, sequence, owner[1] * state.info.block_size, key[2])
            self._known[key] = text
        return text


def _text(request: RequestState, sequence: SequenceState, start: int, stop: int) -> str:
    """Returns the text of the tokens from `start` to `stop` of a sequence."""
    prompt, pieces = sequence.num_prompt_tokens, []
    if start < prompt:
        if start == 0 and prompt <= stop and request.prompt:
            pieces.append(request.prompt)
        else:
            pieces += [f"{token} " for token in request.prompt_token_ids[start : min(stop, prompt)]]
    pieces.append(output_text(sequence, max(start - prompt, 0), max(stop - prompt, 0)))
    return safe_text(" ".join("".join(pieces).split()))


def output_text(sequence: SequenceState, first: int, last: int) -> str:
    """Returns the text of the output tokens from `first` to `last`, as the engine sent it."""
    lengths = sequence.text_lengths
    before = sum(length for length in lengths[:first] if length > 0)
    length = sum(length for length in lengths[first:last] if length > 0)
    return sequence.text[before : before + length]


def pool_line(
    grid: BlockGrid,
    state: EngineState,
    index: BlockIndex,
    y: int,
    selected: int | None,
    texts: BlockTexts,
    marks: OwnerMarks,
) -> Line:
    """Returns line `y` of the map: in a row's first line the first block's number, then cells."""
    if grid.title(y) is not None:
        return ((" " * grid.label + "host memory, to swap to", "dim"),)
    blocks = grid.blocks(y)
    if not blocks:
        return ()
    _, first = grid.pool_of(blocks.start)
    sub_line = y - grid.line(blocks.start)
    label = f"{first if sub_line == 0 else '':>{grid.label - 1}} "
    if grid.span > 1:
        return cell_row(
            label, [(condensed_mark(index, run, selected, marks),) for run in grid.cells(y)]
        )
    has_outlines = has_room_for_outline(grid.width, grid.lines)
    return cell_row(
        label,
        [
            cell(
                mark(index, block, None if has_outlines else selected, marks),
                fill(state, index, block) if grid.width > 1 else 1.0,
                first + block - blocks.start,
                grid,
                sub_line,
                text=_part(texts.text(state, index, block), grid, sub_line),
                own="" if selected is None else marks.mark(selected)[1],
                is_outlined=has_outlines and selected in index.owners(block),
                has_pattern=any(map(marks.has_pattern, islice(index.owners(block), 1))),
            )
            for block in blocks
        ],
    )


def row_owners(grid: BlockGrid, index: BlockIndex, y: int) -> tuple[int | None, ...]:
    """Returns for each cell of line `y` the sequence whose style it has."""
    if grid.span == 1:
        return tuple(next(iter(index.owners(block)), None) for block in grid.blocks(y))
    first_held = (next(filter(None, map(index.owners, cell)), ()) for cell in grid.cells(y))
    return tuple(next(iter(owners), None) for owners in first_held)


def _part(text: str, grid: BlockGrid, sub_line: int) -> str:
    """Returns the part of a block's text that a line of its cell shows."""
    room = grid.width - 2
    if room < LEAST_ROOM or not 0 < sub_line < grid.lines - 1:
        return ""
    part = text_line(text, grid, sub_line)
    return f" {part}" if is_narrow(part) else ""  # a wide character could be cut by the cursor


def summary(index: BlockIndex, counts: Mapping[str, int | None], width: int) -> Line:
    """Returns the number of blocks of each kind."""
    figures: list[tuple[int, Line]] = [
        (0, ((fmt.count(index.num_device), "strong"), (" blocks", "dim")))
    ]
    for name, number in counts.items():
        if number is not None:
            figures.append((1, ((fmt.count(number), "strong"), (f" {name}", "dim"))))
    return row(figures, width, gap=3)


def legend(
    index: BlockIndex,
    free_word: str,
    width: int,
    grid: BlockGrid,
    *,
    publishes_cached: bool = False,
) -> Line:
    """Returns the meanings of the signs that can occur in the cells of a grid."""
    span, single = grid.span, grid.span == 1
    has_outlines = has_room_for_outline(grid.width, grid.lines)
    first = OWNER_STYLES[0]
    signs: Iterable[tuple[int, StyledText, str, bool]] = (
        (0, (SHADES, f"{first}-edge"), f"used of {span} blocks a cell", not single),
        (0, ("A", first), "owner", single),
        (1, OUTLINED if has_outlines else SELECTED, "selected", True),
        (2, SELECTED_SHARED, "and shared", single and not has_outlines),
        (1, SHARED, "shared", single),
        (1, CACHED, "cached", publishes_cached),
        (0, FREE, free_word, True),
        (2, SWAPPED, "swapped", single and index.num_host > 0),
        (3, RESERVED, "reserved", single and index.num_reserved > 0),
    )
    return row(
        [
            (rank, ((glyph, style), (" ", PLAIN), (word, "dim")))
            for rank, (glyph, style), word, is_used in signs
            if is_used
        ],
        width,
    )
