"""The details of one hashed block: its tiers, its prefix and its tokens."""

from __future__ import annotations

import math

from seqtop.kv.cache import CachedKvBlock, merged_tree
from seqtop.kv.cells import UNNAMED
from seqtop.kv.messages import BlockHash
from seqtop.kv.ui_state import KvUiState
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.rendering.wrapped_text import wrapped

_64_BITS = 2**64 - 1
MOST_CHILDREN = 50
MOST_TOKENS = 512


def name(block_hash: BlockHash, *, whole: bool = False) -> str:
    """Returns a hash in hexadecimal, shortened unless `whole`."""
    text = f"{block_hash & _64_BITS:016x}" if isinstance(block_hash, int) else block_hash.hex()
    return text if whole or len(text) <= 10 else f"{text[:9]}…"


def preview(ui: KvUiState, block: CachedKvBlock) -> str:
    """Returns the text of a block's tokens, or their ids, for one line."""
    if block.token_ids is None:
        return "its tokens were not published"
    if (text := ui.text(block.token_ids[:MOST_TOKENS])) is not None:
        return safe_line(text)
    return " ".join(map(str, block.token_ids[:64]))


def facts(ui: KvUiState, width: int, height: int) -> list[Line]:
    """Returns the details of the block under the cursor. A long prefix is shortened."""
    if ui.cursor is None:
        return _nothing(ui, width)
    block = ui.block
    if block is None:
        return wrapped("Empty: the block in this cell was removed.", "dim", width)
    path = ui.cache.path(block)
    return [
        *_headline(ui, block, width),
        *_times(ui, block, width),
        *_chain(ui, block, path, width, max(height - 12, 3)),
        (),
        *_tokens(ui, block, width),
    ]


def _nothing(ui: KvUiState, width: int) -> list[Line]:
    cache = ui.cache
    if not cache.num_batches:
        text = "No message yet: an engine publishes its cache when it changes."
    else:
        text = "No block is known to be cached."
    return wrapped(text, "dim", width)


def _headline(ui: KvUiState, block: CachedKvBlock, width: int) -> list[Line]:
    group, block_hash = block.key
    where = ", ".join(
        f"{safe_line(medium) or UNNAMED}" + (f" ({copies} copies)" if copies > 1 else "")
        for medium, copies in block.copies.items()
    )
    extras = [
        f"KV-cache group {group}" if group >= 0 else "",
        safe_line(block.kind),
        f"window of {fmt.count(block.window)}" if block.window is not None else "",
        safe_line(" ".join(filter(None, (block.locality, block.ownership)))),
        f"session {safe_line(block.session_id)}" if block.session_id else "",
    ]
    return [
        *wrapped(f"Block {name(block_hash, whole=True)}", "title", width),
        row(
            [
                (0, (ui.marks.mark(merged_tree(block.tree).serial), (f" in {where}", "strong"))),
                (2, ((" ".join(filter(None, extras)), "dim"),)),
                (1, ((f"LoRA {safe_line(block.lora)}", PLAIN),) if block.lora else ()),
            ],
            width,
            gap=3,
        ),
    ]


def _times(ui: KvUiState, block: CachedKvBlock, width: int) -> list[Line]:
    times = f" ({block.num_stored} times)" if block.num_stored > 1 else ""
    return [
        row(
            [
                (0, (("stored ", "dim"), (f"{_ago(ui, block.stored_at)}{times}", PLAIN))),
                (1, (("last named ", "dim"), (_ago(ui, block.last_named_at), PLAIN))),
            ],
            width,
            gap=3,
        )
    ]


def _ago(ui: KvUiState, moment: float) -> str:
    return f"{ago(ui, moment)} ago"


def ago(ui: KvUiState, moment: float) -> str:
    """Returns the age of a moment, to the second."""
    age = ui.age(moment)
    return fmt.seconds(float(int(age)) if math.isfinite(age) else None)


def _chain(
    ui: KvUiState, block: CachedKvBlock, path: list[CachedKvBlock], width: int, most: int
) -> list[Line]:
    """Returns the prefix from its first block to this one, and the blocks that continue it."""
    first = path[0]
    children = ui.cache.children(block.key)
    if not children:
        on = "no known block continues it"
    else:
        on = "continued in one way" if len(children) == 1 else f"continued in {len(children)} ways"
    if first.has_unknown_parent:
        lines = wrapped(
            f"the blocks before {name(first.key[1])} are unknown, as the event left out some; {on}",
            "alert",
            width,
        )
    elif first.parent is None:
        lines = wrapped(
            f"block {len(path)} of its prefix, tokens {_span(path)}; {on}", "strong", width
        )
    else:
        lines = wrapped(
            f"at least block {len(path) + 1} of its prefix: {name(first.parent[1])}, before"
            f" {name(first.key[1])}, is not known to be cached; {on}",
            "alert",
            width,
        )
    shown = path[-most:]
    if len(shown) < len(path):
        lines.append(((f"… {fmt.plural(len(path) - len(shown), 'block')} before", "dim"),))
    lines += [_step(ui, cached, "└" if cached is block else "│", width) for cached in shown]
    for key in children[:MOST_CHILDREN]:
        if (child := ui.cache.blocks.get(key)) is not None:
            lines.append(_step(ui, child, "  └" if key == children[-1] else "  ├", width))
    if len(children) > MOST_CHILDREN:
        lines.append(((f"  and {fmt.count(len(children) - MOST_CHILDREN)} more", "dim"),))
    return lines


def _step(ui: KvUiState, block: CachedKvBlock, sign: str, width: int) -> Line:
    is_here = sign == "└"
    line: Line = (
        (f"{sign} ", "dim"),
        (name(block.key[1]), "strong" if is_here else PLAIN),
        (f" {preview(ui, block)}", PLAIN if is_here else "dim"),
    )
    return fitted(line, max(width, 1))


def _span(path: list[CachedKvBlock]) -> str:
    before = sum(cached.size for cached in path[:-1])
    return f"{before:,} to {before + path[-1].size - 1:,}"


def _tokens(ui: KvUiState, block: CachedKvBlock, width: int) -> list[Line]:
    if block.token_ids is None:
        return wrapped(
            f"{fmt.plural(block.size, 'token')}; the engine has not published their ids.",
            "dim",
            width,
        )
    ids = block.token_ids[:MOST_TOKENS]
    more = " …" if len(ids) < block.size else ""
    tokens = f"{fmt.plural(block.size, 'token')}: {' '.join(map(str, ids))}{more}"
    text = ui.text(ids)
    return [
        *wrapped(tokens, PLAIN, width),
        *(wrapped(safe_line(text), "computed", width) if text else []),
    ]
