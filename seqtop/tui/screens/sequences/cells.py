"""The cells of the sequence table: which columns fit, and what stands in them.

All of it is pure: a request, a sequence and a width go in, a line comes out.
"""

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from rich.cells import set_cell_size

from seqtop import format as fmt
from seqtop.sanitize import MAX_LINE, is_narrow, safe_line, safe_text
from seqtop.sequence import SequenceStage, SequenceStatus, latency
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import (
    COLUMNS,
    FIELDS,
    PREEMPTED,
    queue_time,
    sequence_name,
    stage,
    status_word,
    token_rate,
)
from seqtop.state.tree import TreePosition
from seqtop.tui.rendering.bars import ELLIPSIS, bar, tail
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, plain, text_width

Draw: TypeAlias = Callable[[RequestState, SequenceState, float, int], Line]

GLYPHS = {
    "running": ("●", "running"),
    "prefill": ("◐", "prefill"),
    "waiting": ("○", "waiting"),
    PREEMPTED: ("↺", "preempted"),
    "swapped": ("⇄", "swapped"),
    "stop": ("✓", "finished"),
    "length": ("┤", "finished"),
    "abort": ("✗", "aborted"),
    "ignored": ("⊘", "aborted"),
}
"""For each status word (and for a running sequence in its prefill) its sign and its style."""


_NUMBER = re.compile(r"/?[0-9]+$")
"""What tells siblings apart: `/2`, or the end of `_parallel_sample_2`."""
LATE = "!"
UNFOLDED, FOLDED = "▾", "▸"
_GAP = (" ", PLAIN)


class Slot(NamedTuple):
    """A column's place: slots of the highest rank go first when there is no room for all."""

    key: str
    width: int
    rank: int
    right: bool = True
    """Whether the column is aligned right."""


SLOTS = (
    Slot("request", 10, 0, right=False),
    Slot("seq", 5, 9),
    Slot("status", 9, 0, right=False),
    Slot("stage", 7, 7, right=False),
    Slot("prio", 4, 8),
    Slot("prompt", 6, 5),
    Slot("cached", 6, 5),
    Slot("computed", 15, 0, right=False),
    Slot("out", 5, 0),
    Slot("blocks", 4, 2),
    Slot("tps", 6, 6),
    Slot("ttft", 7, 2),
    Slot("itl", 7, 4),
    Slot("queue", 7, 3),
    Slot("preempt", 3, 2),
    Slot("text", 14, 0, right=False),
    Slot("total", 6, 6),
    Slot("lost", 5, 6),
    Slot("steps", 6, 7),
    Slot("e2e", 7, 3),
    Slot("id", 16, 6, right=False),
    Slot("ask", 24, 8, right=False),
)
DEFAULT_COLUMNS = tuple(column.key for column in COLUMNS)
COLUMN_KEYS = tuple(slot.key for slot in SLOTS)
"""Everything that can be a column."""

_TEXT_SHARE = 5
"""The text has at least a fifth of the width before the next column gets any."""
_GROWTH = (("request", 18), ("computed", 24))
"""Columns that grow up to a width once all the others are there."""


@lru_cache(maxsize=64)
def arrange(
    width: int, keys: tuple[str, ...] = DEFAULT_COLUMNS, wanted_key: str = ""
) -> tuple[Slot, ...]:
    """Those of the columns `keys` that fit into `width` cells, one space apart.

    With a text among them they fill it exactly. Essential columns, and the one of `wanted_key`,
    stay even where there is no room: then the text gives way, and at last what is on the right is
    cut off.
    """
    wanted = [_slot(key) for key in keys]
    chosen = [slot for slot in wanted if slot.rank == 0 or slot.key == wanted_key] or wanted[:1]
    has_text = any(slot.key == "text" for slot in chosen)
    least = max(14, width // _TEXT_SHARE) if has_text else 0
    room = width - sum(slot.width + 1 for slot in chosen if slot.key != "text") + (not has_text)
    others = (slot for slot in wanted if slot not in chosen)
    for slot in sorted(others, key=lambda slot: slot.rank):
        if room - slot.width - 1 < least:
            break
        room -= slot.width + 1
        chosen.append(slot)
    widths = {}
    if len(chosen) == len(wanted):
        for key, most in _GROWTH:
            if key in keys:
                extra = max(min(most - _slot(key).width, room - 2 * least), 0)
                widths[key] = _slot(key).width + extra
                room -= extra
    widths["text"] = max(room, 1)
    kept = {slot.key for slot in chosen}
    return tuple(
        slot._replace(width=widths.get(slot.key, slot.width)) for slot in wanted if slot.key in kept
    )


def row(
    slots: tuple[Slot, ...],
    request: RequestState,
    sequence: SequenceState,
    now: float,
    kin: TreePosition = TreePosition(),  # noqa: B008 (it is a tuple)
    late: Collection[str] = (),
    *,
    redacted: bool = False,
) -> Line:
    """The line of one sequence in the table, with its branch of the tree of its `kin`.

    Before each figure that is `late`, that is, over its objective, stands a sign.
    """
    spans: list[StyledText] = []
    in_tree = kin.rails or kin.is_parent
    for key, width, *_ in slots:
        if in_tree and key == "request":
            cell = _branch(request, sequence, kin, width)
        elif redacted and key == "text":
            cell = fitted((("redacted", "dim"),), width)
        else:
            cell = _DRAW[key](request, sequence, now, width)
        if late and key in late:
            spans.append((_signed(" " + plain(cell) if spans else plain(cell)), "alert"))
            continue
        if late and key == "request":
            name = plain(cell)
            if not any(slot.key in late for slot in slots):  # no column can carry the sign
                name = set_cell_size(name, max(width - 1, 0)) + LATE
            cell = ((name, "alert"),)
        if spans:
            spans.append(_GAP)
        spans += cell
    return tuple(spans)


def _signed(text: str) -> str:
    """A figure with the sign before it, if there is room."""
    figure = text.lstrip(" ")
    before = len(text) - len(figure)
    return " " * (before - 1) + LATE + figure if before else text


def header(slots: tuple[Slot, ...], sort_key: str, *, descending: bool) -> Line:
    """The line of titles; the space after the sorted column's title holds the mark."""
    spans: list[StyledText] = []
    for slot in slots:
        title = FIELDS[slot.key].title
        is_sorted = slot.key == sort_key
        text = title.rjust(slot.width) if slot.right else title.ljust(slot.width)
        mark = ("▼" if descending else "▲") if is_sorted else " "
        if is_sorted and not slot.right:
            text = (title + mark).ljust(slot.width)
            mark = " "
        spans.append((text + mark, "accent" if is_sorted else PLAIN))
    return tuple(spans)


def column_at(slots: tuple[Slot, ...], x: int) -> str | None:
    """The key of the column at cell `x`."""
    right = 0
    for slot in slots:
        right += slot.width + 1
        if x < right:
            return slot.key
    return None


def glyph(request: RequestState, sequence: SequenceState) -> tuple[str, str]:
    """The sign of a sequence's status and its style."""
    if stage(sequence) == SequenceStage.PREFILL:
        return GLYPHS["prefill"]
    return GLYPHS[status_word(request, sequence)]


def _slot(key: str) -> Slot:
    return next(slot for slot in SLOTS if slot.key == key)


def _style(sequence: SequenceState) -> str:
    """Finished rows step back."""
    return "finished" if SequenceStatus.is_finished(sequence.status) else PLAIN


def _request(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    text = sequence_name(r, s)[:MAX_LINE]  # what is remembered of an endless one is little
    return _name(text, len(r.seq_ids) > 1, width, _style(s) or "strong")


@lru_cache(maxsize=1024)
def _name(text: str, is_one_of_several: bool, width: int, style: str) -> Line:
    name = safe_line(text)
    if text_width(name) > width and is_one_of_several:  # which of them must stay legible
        base, slash, number = name.rpartition("/")
        room = width - len(slash + number) - 1
        name = "".join(text for text, _ in fitted(((base, ""),), room + 1)) + slash + number
    return fitted(((name, style),), width)


def _branch(r: RequestState, s: SequenceState, kin: TreePosition, width: int) -> Line:
    """The name of a sequence that has kin, on its branch; what tells siblings apart stays."""
    rails = "".join("│ " if follows else "  " for follows in kin.rails[:-1])
    if kin.rails:
        rails += "├ " if kin.rails[-1] else "└ "
    sign = "" if not kin.is_parent else FOLDED if kin.num_folded else UNFOLDED
    rails = rails[-max(width // 2, 1) :]
    more = f" +{kin.num_folded}" if kin.num_folded else ""
    name = safe_line(sequence_name(r, s))
    room = max(width - len(rails) - len(sign) - len(more), 1)
    if text_width(name) > room:
        name = _shortened(name, room)
    line = ((rails, "dim"), (sign, "accent"), (name, _style(s) or "strong"), (more, "accent"))
    return fitted(tuple(span for span in line if span[0]), width)


def _shortened(name: str, room: int) -> str:
    """A name without its middle: the head tells whose it is, the number at its end which one."""
    number = _NUMBER.search(name)
    end = number[0][-(room // 2) :] if number and room > 1 else ""
    return set_cell_size(name, max(room - len(end) - 1, 0)).rstrip() + ELLIPSIS + end


def _status(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    return _sign(*glyph(r, s), status_word(r, s), width)


@lru_cache(maxsize=256)
def _sign(sign: str, style: str, word: str, width: int) -> Line:
    return fitted(((f"{sign} {word}", style),), width)


def _computed(_: RequestState, s: SequenceState, __: float, width: int) -> Line:
    done, total = s.num_computed_tokens, s.num_tokens
    numbers = f"{_short(done)}/{_short(total)}"
    size = max(width - 10, 0)
    finished = SequenceStatus.is_finished(s.status)
    parts = (
        (min(s.num_cached_tokens, done), "finished" if finished else "cached", "═"),
        (max(done - s.num_cached_tokens, 0), "finished" if finished else "computed", "━"),
    )
    return (
        *bar(size, total, parts),
        *_right(numbers, width - size, _style(s)),
    )


def _text(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    finished = SequenceStatus.is_finished(s.status)
    if not s.text:
        asked = safe_text((r.prompt or "")[: 2 * width])
        return fitted(((asked, "dim"),), width) if asked else ((" " * width, PLAIN),)
    cut = len(s.text) - max(min(s.last_delta_length, len(s.text)), 0)
    if s.status != SequenceStatus.RUNNING:  # nothing is new about it any more
        cut = len(s.text)
    old = s.text[max(cut - width - 1, 0) : cut]
    if not (old.isprintable() and is_narrow(old)):  # else it is more than there is room for
        old = safe_text(s.text[max(cut - 4 * width, 0) : cut])
    new = safe_text(s.text[max(cut, len(s.text) - 4 * width) :])
    return tail(old, new, width, "finished" if finished else PLAIN)


def _short(number: int) -> str:
    """A token count in at most four cells."""
    if 0 <= number < 10_000:
        return str(number)
    if 0 <= number < 999_500:
        return f"{round(number / 1e3)}k"
    if 0 <= number < 999_500_000:
        return f"{round(number / 1e6)}M"
    return fmt.count(number)


def _right(text: str, width: int, style: str) -> Line:
    size = text_width(text)
    if size > width:
        return ((text[: max(width - 1, 0)] + ELLIPSIS, style),)
    return ((" " * (width - size) + text, style),)


def _number(of: Callable[[RequestState, SequenceState, float], str], *, zero: bool = True) -> Draw:
    """A cell with a right-aligned figure; without `zero`, a nought steps back."""

    def draw(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
        text = of(r, s, now)
        faint = text == fmt.UNKNOWN or (text == "0" and not zero)
        return _right(text, width, "dim" if faint else _style(s))

    return draw


def _queue(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
    seconds = queue_time(r, s, now)
    if seconds is None:
        return _right(fmt.UNKNOWN, width, "dim")
    if s.status != SequenceStatus.WAITING or r.metrics.first_scheduled_time is not None:
        return _right(fmt.seconds(seconds), width, _style(s))
    return _right(fmt.growing(seconds), width, "waiting")


def _stage(_: RequestState, s: SequenceState, __: float, width: int) -> Line:
    found = stage(s)
    if found is None:
        return fitted(((fmt.UNKNOWN, "dim"),), width)
    style = "prefill" if found == SequenceStage.PREFILL else "running"
    return fitted(((found.name.lower(), style),), width)


_DRAW: dict[str, Draw] = {
    "request": _request,
    "seq": _number(lambda _, s, __: str(s.seq_id)),
    "status": _status,
    "stage": _stage,
    "prio": _number(lambda r, _, __: fmt.count(r.priority), zero=False),
    "prompt": _number(lambda _, s, __: fmt.count(s.num_prompt_tokens)),
    "cached": _number(lambda _, s, __: fmt.count(s.num_cached_tokens), zero=False),
    "computed": _computed,
    "out": _number(lambda _, s, __: _short(len(s.output_token_ids)), zero=False),
    "blocks": _number(lambda _, s, __: _short(len(s.block_table)), zero=False),
    "tps": _number(lambda r, s, now: fmt.rate(token_rate(r, s))),
    "ttft": _number(lambda r, _, __: fmt.seconds(latency.ttft(r.metrics))),
    "itl": _number(
        lambda r, s, _: fmt.seconds(latency.itl_so_far(r.metrics, len(s.output_token_ids)))
    ),
    "queue": _queue,
    "preempt": _number(lambda r, _, __: _short(r.num_preemptions), zero=False),
    "text": _text,
    "total": _number(lambda _, s, __: _short(s.num_tokens)),
    "lost": _number(lambda r, _, __: _short(r.num_lost_tokens), zero=False),
    "steps": _number(lambda r, _, __: fmt.count(r.num_scheduled_steps), zero=False),
    "e2e": _number(lambda r, _, __: fmt.seconds(latency.e2e_latency(r.metrics))),
    "id": lambda r, s, _, width: fitted(((safe_line(r.request_id), _style(s)),), width),
    "ask": lambda r, s, _, width: fitted(
        ((safe_text((r.prompt or "")[:width]), _style(s)),), width
    ),
}
