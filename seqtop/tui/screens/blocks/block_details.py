"""The details of one block: its owners, its state and its tokens."""

import sys
from collections.abc import Iterable
from typing import NamedTuple

from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.block_index import BlockIndex, has_positions
from seqtop.state.fields import sequence_name, status_word
from seqtop.state.model import CachedBlock
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.bars import bar, row
from seqtop.tui.rendering.list_view import CURSOR_MARK
from seqtop.tui.rendering.owner_marks import OwnerMarks
from seqtop.tui.rendering.sequence_label import glyph
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, line_width
from seqtop.tui.rendering.wrapped_text import wrap, wrapped
from seqtop.tui.screens.blocks.cells import CACHED, mark, output_text

MOST_NAMES = 200
"""The most owners that are listed; further ones are counted."""


class BlockUse(NamedTuple):
    """One sequence's use of a block."""

    request: RequestState
    sequence: SequenceState
    group: int
    """The KV-cache group whose table has the block."""
    position: int
    """The logical position of the block in that table."""
    num_blocks: int
    """The number of blocks in that table."""


def holdings(state: EngineState, index: BlockIndex, block: int) -> list[BlockUse]:
    """Returns the sequences that hold `block`, with its place in their tables.

    The state may be newer than the index, which is of the last frame: a sequence that has released
    the block since is left out.
    """
    holdings: list[BlockUse] = []
    for seq_id, place in index.owners(block).items():
        sequence = state.sequences.get(seq_id)
        if sequence is None:
            continue
        tables = [sequence.block_table, *sequence.group_block_tables]
        group, position, number = 0, place, block
        if block >= index.num_device:
            tables, number = [sequence.host_table], block - index.num_device
        elif not (place < len(tables[0]) and tables[0][place] == block):
            group = 1
            while group < len(tables) - 1 and position >= len(tables[group]):
                position -= len(tables[group])
                group += 1
        if group >= len(tables) or tables[group][position : position + 1] != [number]:
            continue
        request = state.requests[sequence.request_id]
        holdings.append(BlockUse(request, sequence, group, position, len(tables[group])))
    return holdings


def filled(holding: BlockUse, block_size: int) -> int:
    """Returns the number of computed slots of a block."""
    computed = holding.sequence.num_computed_tokens - holding.position * block_size
    return min(max(computed, 0), max(block_size, 0))


def unheld_word(state: EngineState) -> str:
    """Returns the state of a block in no table, as far as the engine publishes it."""
    stats = state.stats
    if state.cached_blocks is not None:
        return "free"
    if stats is None or stats.num_cached_blocks == 0:
        return "free"
    return "free or cached" if stats.num_free_blocks > 0 else "cached"


def facts(
    state: EngineState,
    index: BlockIndex,
    block: int,
    selected: int | None,
    width: int,
    marks: OwnerMarks,
) -> list[Line]:
    """Returns a headline, a line per owner, and the tokens of a block."""
    if not len(index):
        return [(("The engine has published no blocks yet.", "dim"),)]
    block_size = state.info.block_size if state.info else 0
    held = holdings(state, index, block)
    if not all(has_positions(state.info, holding.group) for holding in held):
        block_size = 0
    lines = [_headline(index, block, held, block_size, unheld_word(state), width, marks)]
    if block in index.cached:
        lines += wrapped(_cached(index.cached[block], block_size, in_use=bool(held)), PLAIN, width)
    if not held:
        if block in index.cached:
            return [*lines, *_cached_tokens(state, index.cached[block], block_size, width)]
        return [*lines, *wrapped(_unheld(state, index, block), "dim", width)]
    lines += [
        _owner_line(holding, selected, block_size, width, marks) for holding in held[:MOST_NAMES]
    ]
    if len(held) > MOST_NAMES:
        lines.append(((f"and {fmt.count(len(held) - MOST_NAMES)} more", "dim"),))
    shown = next((holding for holding in held if holding.sequence.seq_id == selected), held[0])
    return [*lines, *_tokens(shown, block_size, width)]


def cell_facts(state: EngineState, index: BlockIndex, blocks: range, width: int) -> list[Line]:
    """Returns a headline for a cell that stands for several blocks; nothing for one block."""
    if len(blocks) < 2:
        return []
    held = index.held(blocks)
    cached = sum(block in index.cached and not index.owners(block) for block in blocks)
    first = blocks.start - (index.num_device if blocks.start >= index.num_device else 0)
    where = "Host blocks" if blocks.start >= index.num_device else "Blocks"
    figures = [(len(held), "in use"), (sum(len(owners) > 1 for owners in held), "shared")]
    if state.cached_blocks is not None:
        figures.append((cached, "cached"))
    figures.append((len(blocks) - len(held) - cached, unheld_word(state)))
    name = f"{where} {first} to {first + len(blocks) - 1}"
    items: list[tuple[int, Line]] = [(0, ((name, "title"),))]
    items += [(1, ((fmt.count(number), "strong"), (f" {word}", "dim"))) for number, word in figures]
    return [row(items, width, gap=3)]


def names(state: EngineState, owners: Iterable[int], width: int, marks: OwnerMarks) -> Line:
    """Returns the visible owners with their letters, and the number of those without room."""
    known = sorted(seq_id for seq_id in owners if seq_id in state.sequences)
    items: list[Line] = [
        (marks.mark(seq_id), (f" {_name(state, seq_id)}", PLAIN)) for seq_id in known[:MOST_NAMES]
    ]
    while True:
        num_more = len(known) - len(items)
        more: Line = ((f"+{fmt.count(num_more)}", "dim"),) if num_more else ()
        line = row([(0, item) for item in (*items, more)], sys.maxsize)
        if not items or line_width(line) <= width:
            return fitted(line, width)
        items.pop()


def owner_table(
    state: EngineState,
    index: BlockIndex,
    owners: Iterable[int],
    selected: int | None,
    width: int,
    marks: OwnerMarks,
) -> list[Line]:
    """Returns a line per visible owner: letter, name, number of blocks and their share."""
    lines: list[Line] = []
    known = [seq_id for seq_id in owners if seq_id in state.sequences]
    counts = {seq_id: len(index.blocks(seq_id)) for seq_id in known}
    known.sort(key=lambda seq_id: (-counts[seq_id], seq_id))
    most = max(counts.values(), default=0)
    for seq_id in known[:MOST_NAMES]:
        if name := _name(state, seq_id):
            own, style = marks.mark(seq_id)
            sign = CURSOR_MARK if seq_id == selected else " "
            room = max(width - 33, 8)
            lines.append(
                (
                    (sign, "accent"),
                    (own, style),
                    (" ", PLAIN),
                    *fitted(((name, "strong"),), room),
                    (f" {fmt.count(counts[seq_id]):>7} ", PLAIN),
                    *bar(20, most, [(counts[seq_id], f"{style}-edge", "━")]),
                )
            )
    if len(known) > MOST_NAMES:
        lines.append(((f"and {fmt.count(len(known) - MOST_NAMES)} more", "dim"),))
    if lines:
        title = fitted((("   Owners on the map", "dim"),), max(width - 33, 8) + 3)
        lines.insert(0, (*title, (f" {'Blocks':>7}", "dim")))
    return lines


def _name(state: EngineState, seq_id: int) -> str:
    """Returns the name of a sequence; empty if it is not in the state."""
    sequence = state.sequences.get(seq_id)
    if sequence is None:
        return ""
    return safe_text(sequence_name(state.requests[sequence.request_id], sequence))


def _headline(
    index: BlockIndex,
    block: int,
    held: list[BlockUse],
    block_size: int,
    unheld: str,
    width: int,
    marks: OwnerMarks,
) -> Line:
    on_host = block >= index.num_device
    name = f"Host block {block - index.num_device}" if on_host else f"Block {block}"
    sign, style = mark(index, block, None, marks)
    if block < index.num_reserved:
        word = "reserved"
    elif not held:
        word = "free" if on_host else "cached" if block in index.cached else unheld
    elif len(held) > 1:
        word = f"shared by {len(held)}"
    else:
        word = "swapped out" if on_host else "in use"
    fill = max((filled(holding, block_size) for holding in held), default=0)
    return row(
        [
            (0, ((name, "title"),)),
            (0, ((f"{sign} {word}", style if held or style == CACHED[1] else "dim"),)),
            (2, ((fmt.plural(len(held), "reference"), PLAIN),)),
            (1, ((f"{fill} of {block_size} slots filled", PLAIN),) if held and block_size else ()),
        ],
        width,
        gap=3,
    )


def _owner_line(
    holding: BlockUse, selected: int | None, block_size: int, width: int, marks: OwnerMarks
) -> Line:
    request, sequence, group, position, num_blocks = holding
    sign, style = glyph(request, sequence)
    start = position * block_size
    own = marks.mark(sequence.seq_id)
    name_style = "accent" if sequence.seq_id == selected else "strong"
    where = f"logical block {position} of {num_blocks}"
    return row(
        [
            (0, (own, (f" {safe_text(sequence_name(request, sequence))}", name_style))),
            (3, ((f"seq {sequence.seq_id}", "dim"),)),
            (0, ((where, PLAIN),)),
            (1, ((f"KV-cache group {group}", PLAIN),) if group else ()),
            (2, ((f"tokens {start} to {start + block_size - 1}", PLAIN),) if block_size else ()),
            (1, ((f"{sign} {status_word(request, sequence)}", style),)),
        ],
        width,
    )


def _tokens(holding: BlockUse, block_size: int, width: int) -> list[Line]:
    """Returns the ids of the tokens in a block, of which those not yet computed are dim; and text.

    Which part of a prompt's text a token is, only the engine's tokenizer knows.
    """
    if not block_size:
        return [
            (("The place of this block in its table does not say which tokens it holds.", "dim"),)
        ]
    start = holding.position * block_size
    prompt, sequence = holding.request.prompt_token_ids, holding.sequence
    num_prompt = sequence.num_prompt_tokens
    if len(prompt) != num_prompt:
        return [(("The engine has not published the ids of these tokens.", "dim"),)]
    ends = [max(place - num_prompt, 0) for place in (start, start + block_size)]
    ids = [*prompt[start : start + block_size], *sequence.output_token_ids[slice(*ends)]]
    done = filled(holding, block_size)
    text = [(f"{token_id}", PLAIN if index < done else "dim") for index, token_id in enumerate(ids)]
    line: list[StyledText] = [("token ids", "dim")]
    for span in text:
        line += [(" ", PLAIN), span]
    lines = _flowed(line, width)
    if start < num_prompt and holding.request.prompt:
        is_whole = start == 0 and num_prompt <= block_size
        of = "the prompt " if is_whole else "of the prompt "
        lines.append(_text_line(of, holding.request.prompt, width))
    if output := output_text(sequence, *ends):
        lines.append(_text_line("output ", output, width))
    return lines


def _text_line(title: str, text: str, width: int) -> Line:
    shown = safe_text(" ".join(text[: 4 * width].split()))
    return fitted(((title, "dim"), (shown, PLAIN)), width)


def _cached(known: CachedBlock, block_size: int, *, in_use: bool) -> str:
    """Returns a sentence about a block in the prefix cache."""
    start = known.position * block_size
    held = "Also in the prefix cache" if in_use else "In no block table, but in the prefix cache"
    until = "" if in_use else " until it is evicted"
    writer = safe_text(known.request_id) or "a request that is unknown"
    return (
        f"{held}: tokens {start} to {start + block_size - 1}, written by {writer}; a request with"
        f" the same prefix can reuse it{until}."
    )


def _cached_tokens(
    state: EngineState, known: CachedBlock, block_size: int, width: int
) -> list[Line]:
    """Returns the ids of the tokens in a cached block, if the sequence that wrote it is known."""
    sequence = state.sequences.get(known.seq_id)
    if sequence is None or sequence.request_id != known.request_id or known.position < 0:
        return []
    request = state.requests[sequence.request_id]
    return _tokens(BlockUse(request, sequence, 0, known.position, 0), block_size, width)


def _unheld(state: EngineState, index: BlockIndex, block: int) -> str:
    if block < index.num_reserved:
        return "Reserved by the engine; in a table it stands for a block that is no longer needed."
    if block >= index.num_device:
        return "Nothing is swapped out to it."
    stats = state.stats
    match unheld_word(state):
        case "cached":
            return (
                "In no block table, but in the prefix cache: a request with the same prefix can"
                " reuse it until it is evicted."
            )
        case "free or cached" if stats is not None and stats.num_cached_blocks is not None:
            return (
                f"In no block table. Of such blocks {fmt.count(stats.num_free_blocks)} are empty"
                f" and {fmt.count(stats.num_cached_blocks)} are still in the prefix cache; the"
                " engine does not publish which."
            )
        case "free or cached":
            return "In no block table. Whether it is still in the prefix cache is not known."
    return "It is empty."


def _flowed(line: list[StyledText], width: int) -> list[Line]:
    """Returns one long line as several, broken at spaces."""
    text = "".join(span[0] for span in line)
    lines: list[Line] = []
    for start, end in wrap(text, width):
        spans: list[StyledText] = []
        at = 0
        for piece, style in line:
            shown = piece[max(start - at, 0) : max(end - at, 0)]
            if shown:
                spans.append((shown, style))
            at += len(piece)
        lines.append(tuple(spans))
    return lines
