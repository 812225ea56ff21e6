"""The columns and the cells of the sequence table, as pure functions."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from rich.cells import set_cell_size

from seqtop.sequence import SequenceStage, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import (
    FIELDS,
    Field,
    harm,
    is_prompt_unknown,
    is_stalled,
    queue_time,
    sequence_name,
    stage,
    status_word,
    token_age,
    wait_word,
    waited,
)
from seqtop.state.grouped_rows import FIGURES
from seqtop.state.groups import Group
from seqtop.state.tree import TreePosition
from seqtop.text import format as fmt
from seqtop.text.sanitize import MAX_LINE, is_narrow, safe_line, safe_text
from seqtop.tui.rendering.bars import ELLIPSIS, bar, tail
from seqtop.tui.rendering.charts import area_chart
from seqtop.tui.rendering.sequence_label import glyph, shortened
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, plain, text_width

Cell: TypeAlias = Callable[[RequestState, SequenceState, float, int], Line]
"""Draws a cell for a request, one of its sequences, the time (epoch seconds) and a width."""

LATE = "!"
ESTIMATED = "~"
"""The sign before a figure with an estimated part."""
_SHOWN_SHARE = 0.005
"""The share of a figure from which on its estimated part may show in three digits."""
PACE_TOP = 4.0
"""The height of the chart of a sequence's pace, in usual times between two tokens."""


class Pace(NamedTuple):
    """The times between the newest tokens of a sequence, in seconds."""

    gaps: Sequence[float]
    """At least one, the newest last."""
    usual: float
    """The median of all sequences; 0 if it is unknown."""


_DECIMAL = re.compile(r"([0-9]+\.([0-9]+))( .*)")
"""A number with decimals, these alone, and the unit."""
UNFOLDED, FOLDED = "▾", "▸"
_GAP = (" ", PLAIN)


def row(
    columns: tuple[Field, ...],
    request: RequestState,
    sequence: SequenceState,
    now: float,
    position: TreePosition = TreePosition(),  # noqa: B008 (it is a tuple)
    late: Collection[str] = (),
    *,
    redacted: bool = False,
    is_stale: bool = False,
    not_available: Collection[str] = (),
    outliers: Mapping[str, tuple[float, float]] = {},
    pace: Pace | None = None,
    head: int = 0,
) -> Line:
    """Returns the row of one sequence.

    Args:
        columns: The columns, with the widths that they have in the table.
        request: The sequence's request.
        sequence: The sequence.
        now: The engine's time, epoch seconds.
        position: The branch of the tree of sequences that the row is on.
        late: The keys of figures over their latency objective. Each gets a sign before it.
        redacted: Whether the engine does not publish texts.
        is_stale: Whether the engine is lost, so that what has not ended may have ended since.
        not_available: The keys of columns that the engine cannot give.
        outliers: By the key of a column, the values above which a figure is high, and very high.
        pace: The times between its newest tokens.
        head: The length of the beginning of the name that all rows on the screen share.
    """
    spans: list[StyledText] = []
    in_tree = position.rails or position.is_parent
    for column in columns:
        key, width = column.key, column.width
        if in_tree and key == "request":
            cell = _branch(request, sequence, position, width)
        elif key == "request" and head:
            cell = _request(request, sequence, now, width, head)
        elif redacted and key == "text":
            cell = fitted((("redacted", "dim"),), width)
        elif key == "status" and is_stale:
            sign = glyph(request, sequence, is_stale=True)
            cell = _sign(*sign, status_word(request, sequence), width)
        elif key in not_available:
            cell = fitted(((column.aligned(fmt.NOT_AVAILABLE), "dim"),), width)
        elif key == "computed" and pace is not None:
            cell = _paced(sequence, pace, width)
        else:
            cell = _CELLS[key](request, sequence, now, width)
            if key in outliers and (style := _heat(column, request, sequence, now, outliers[key])):
                cell = ((plain(cell), style),)
        if late and key in late:
            spans.append((_signed(plain(cell), has_gap=bool(spans)), "alert"))
            continue
        if late and key == "request":
            name = plain(cell)
            if not any(column.key in late for column in columns):  # no column can carry the sign
                name = set_cell_size(name, max(width - 1, 0)) + LATE
            cell = ((name, "alert"),)
        if spans:
            spans.append(_GAP)
        spans += cell
    return tuple(spans)


def _signed(text: str, *, has_gap: bool) -> str:
    """Returns a figure with the sign before it, if there is room.

    A figure that fills its cell loses a decimal, so that the sign does not touch the column before.
    """
    gap = " " * has_gap
    figure = text.lstrip(" ")
    if len(figure) == len(text) and (decimal := _DECIMAL.fullmatch(figure)):
        number, digits, unit = decimal.groups()
        figure = f"{float(number):.{len(digits) - 1}f}{unit}"
    room = len(gap + text) - len(figure) - 1
    return " " * room + LATE + figure if room >= 0 else gap + text


def group_row(
    columns: tuple[Field, ...], group: Group, num_used_blocks: int | None, *, is_unfolded: bool
) -> Line:
    """Returns the row of a group: its sums in the columns of the figures, and the median TTFT.

    Args:
        columns: The columns, with the widths that they have in the table.
        group: The figures of the group.
        num_used_blocks: The blocks in any table, of which the group has a share; `None` if unknown.
        is_unfolded: Whether the rows of its sequences are shown below it.
    """
    spans: list[StyledText] = []
    for column in columns:
        key, width = column.key, column.width
        figure = FIGURES.get(key)
        if key == "request":
            sign = UNFOLDED if is_unfolded else FOLDED
            count = f" {_short(group.num_requests)}"
            name = safe_line(group.name) or "(none)"
            room = max(width - 1 - len(count), 1)
            name = shortened(name, room) if text_width(name) > room else name
            cell = fitted(((sign, "accent"), (name, "strong"), (count, "dim")), width)
        elif key == "status":
            running, waiting = _short(group.num_running), _short(group.num_waiting)
            signs: Line = (
                *(((f"{running}● ", "running"),) if group.num_running else ()),
                *(((f"{waiting}○", "waiting"),) if group.num_waiting else ()),
            )
            cell = fitted(signs or (("ended", "dim"),), width)
        elif key == "computed" and num_used_blocks:
            share = f"{fmt.percent(group.num_blocks, num_used_blocks)} KV"
            size = max(width - 10, 0)
            filled = bar(size, num_used_blocks, ((group.num_blocks, "computed", "━"),))
            cell = (*filled, *_right(share, width - size, "strong"))
        elif figure is not None:
            value = figure(group)
            text = _short(int(value or 0)) if column.format is fmt.count else column.format(value)
            cell = _right(text, width, "strong" if value else "dim")
        else:
            cell = ((" " * width, PLAIN),)
        if spans:
            spans.append(_GAP)
        spans += cell
    return tuple(spans)


def header(columns: tuple[Field, ...], sort_key: str, *, descending: bool, by: str = "") -> Line:
    """Returns the line of titles. An arrow stands beside the title of the sorted column.

    Args:
        columns: The columns.
        sort_key: The key of the column that the rows are sorted by.
        descending: Whether the largest value is first.
        by: The key that the rows are grouped by; empty if they are not.
    """
    spans: list[StyledText] = []
    for column in columns:
        title = f"By {safe_line(by)}" if by and column.key == "request" else column.title
        title = title[: column.width]
        text, is_sorted = title, column.key == sort_key
        if is_sorted:
            arrow = "▼" if descending else "▲"
            # On the side of the free cells, where it touches no other title.
            text = arrow + text if column.right else text + arrow
        text = column.aligned(text)
        if len(text) > column.width:  # the arrow takes the gap before the column
            spans[-1:] = [(before[:-1], style) for before, style in spans[-1:]]
            text = text if spans else title
        spans.append((text + " ", "accent" if is_sorted else PLAIN))
    return tuple(spans)


def column_at(columns: tuple[Field, ...], x: int) -> str | None:
    """Returns the key of the column at cell `x`."""
    right = 0
    for column in columns:
        right += column.width + 1
        if x < right:
            return column.key
    return None


def _style(sequence: SequenceState) -> str:
    """Returns the style of a row: finished sequences are dim."""
    return "finished" if SequenceStatus.is_finished(sequence.status) else PLAIN


def _request(r: RequestState, s: SequenceState, _: float, width: int, head: int = 0) -> Line:
    text = sequence_name(r, s)[:MAX_LINE]  # the cache stays small
    if head:
        text = ELLIPSIS + text[head:]
    return _name(text, len(r.seq_ids) > 1, width, _style(s) or "strong")


@lru_cache(maxsize=1024)
def _name(text: str, is_one_of_several: bool, width: int, style: str) -> Line:
    name = safe_line(text)
    if text_width(name) > width and is_one_of_several:  # the number of a sibling stays legible
        base, slash, number = name.rpartition("/")
        room = width - len(slash + number) - 1
        name = "".join(text for text, _ in fitted(((base, ""),), room + 1)) + slash + number
    return fitted(((name, style),), width)


def _branch(r: RequestState, s: SequenceState, position: TreePosition, width: int) -> Line:
    """Returns the name of a sequence after its branch of the tree; a sibling keeps its number."""
    rails = "".join("│ " if follows else "  " for follows in position.rails[:-1])
    if position.rails:
        rails += "├ " if position.rails[-1] else "└ "
    sign = "" if not position.is_parent else FOLDED if position.num_folded else UNFOLDED
    rails = rails[-max(width // 2, 1) :]
    more = f" +{position.num_folded}" if position.num_folded else ""
    name = safe_line(sequence_name(r, s))
    room = max(width - len(rails) - len(sign) - len(more), 1)
    if text_width(name) > room:
        name = shortened(name, room)
    line = ((rails, "dim"), (sign, "accent"), (name, _style(s) or "strong"), (more, "accent"))
    return fitted(tuple(span for span in line if span[0]), width)


def _status(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    return _sign(*glyph(r, s), status_word(r, s), width)


@lru_cache(maxsize=256)
def _sign(sign: str, style: str, word: str, width: int) -> Line:
    return fitted(((f"{sign} {word}", style),), width)


def _computed(r: RequestState, s: SequenceState, __: float, width: int) -> Line:
    done, total = s.num_computed_tokens, s.num_tokens
    size = max(width - 10, 0)
    if is_prompt_unknown(r, s):
        return *bar(size, 0, ()), *_right(f"{_short(done)}/?", width - size, _style(s))
    numbers = f"{_short(done)}/{_short(total)}"
    finished = SequenceStatus.is_finished(s.status)
    parts = (
        (min(s.num_cached_tokens, done), "finished" if finished else "cached", "═"),
        (max(done - s.num_cached_tokens, 0), "finished" if finished else "computed", "━"),
    )
    return (
        *bar(size, total, parts),
        *_right(numbers, width - size, _style(s)),
    )


def _paced(s: SequenceState, pace: Pace, width: int) -> Line:
    """Returns the cell of a sequence that decodes: all is computed, so the bar shows its pace."""
    size = max(width - 10, 0)
    gaps = pace.gaps[-2 * size :]
    values = [0.0] * (2 * size - len(gaps)) + list(gaps)
    (chart,) = area_chart(values, 1, PACE_TOP * (pace.usual or max(gaps)))
    numbers = f"{_short(s.num_computed_tokens)}/{_short(s.num_tokens)}"
    return ((chart, "computed"), *_right(numbers, width - size, _style(s)))


def _heat(
    column: Field, r: RequestState, s: SequenceState, now: float, limits: tuple[float, float]
) -> str:
    """Returns the style of a figure that is higher than most; an empty text for others."""
    value = column.value(r, s, now)
    if not isinstance(value, float) or value <= limits[0]:
        return ""
    return "very-high" if value > limits[1] else "high"


def _text(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    finished = SequenceStatus.is_finished(s.status)
    if not s.text:
        prompt = safe_text((r.prompt or "")[: 2 * width])
        return fitted(((prompt, "dim"),), width) if prompt else ((" " * width, PLAIN),)
    cut = len(s.text) - max(min(s.last_delta_length, len(s.text)), 0)
    if s.status != SequenceStatus.RUNNING:  # no part is new
        cut = len(s.text)
    old = s.text[max(cut - width - 1, 0) : cut]
    if not (old.isprintable() and is_narrow(old)):  # otherwise it has more cells than needed
        old = safe_text(s.text[max(cut - 4 * width, 0) : cut])
    new = safe_text(s.text[max(cut, len(s.text) - 4 * width) :])
    return tail(old, new, width, "finished" if finished else PLAIN)


def _short(number: int) -> str:
    """Returns a token count in at most four cells."""
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


def _queue(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
    seconds = queue_time(r, s, now)
    if seconds is None:
        return _right(fmt.UNKNOWN, width, "dim")
    if s.status != SequenceStatus.WAITING or r.metrics.first_scheduled_time is not None:
        return _right(fmt.seconds(seconds), width, _style(s))
    return _right(fmt.growing(seconds), width, "waiting")


def _waited(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
    seconds = waited(r, now)
    if r.wait.since is not None:
        return _right(fmt.growing(seconds), width, "waiting")
    return _right(fmt.seconds(seconds), width, _style(s) if seconds else "dim")


def _harm(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    seconds = harm(r)
    if seconds is None or not seconds:
        return _right(fmt.UNKNOWN if seconds is None else fmt.seconds(0), width, "dim")
    sign = ESTIMATED if r.harm_estimated >= _SHOWN_SHARE * seconds else ""
    return _right(sign + fmt.seconds(seconds), width, _style(s))


def _why(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    word = wait_word(r, s)
    if word is None:
        return fitted(((fmt.UNKNOWN if r.wait.total else "", "dim"),), width)
    return fitted(((safe_line(word), "waiting" if r.wait.since is not None else _style(s)),), width)


def _age(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
    age = token_age(r, s, now)
    text = fmt.UNKNOWN if age is None else fmt.growing(float(int(min(age, 1e9))))
    if is_stalled(r, s, now):
        return _right(LATE + text, width, "alert")
    return _right(text, width, PLAIN if age is not None and age >= 1 else "dim")


def _stage(_: RequestState, s: SequenceState, __: float, width: int) -> Line:
    current = stage(s)
    if current is None:
        return fitted(((fmt.UNKNOWN, "dim"),), width)
    style = "prefill" if current == SequenceStage.PREFILL else "running"
    return fitted(((current.name.lower(), style),), width)


def _id(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    return fitted(((safe_line(r.request_id), _style(s)),), width)


def _lora(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    return fitted(((safe_line(r.lora), _style(s)),), width)


def _prompt_text(r: RequestState, s: SequenceState, _: float, width: int) -> Line:
    return fitted(((safe_text((r.prompt or "")[:width]), _style(s)),), width)


def _figure(field: Field) -> Cell:
    """Returns the cell of a field that is a number."""

    def cell(r: RequestState, s: SequenceState, now: float, width: int) -> Line:
        value = field.value(r, s, now)
        number = None if isinstance(value, str) else value
        compact = field.compact and number is not None
        text = _short(int(number or 0)) if compact else field.format(number)
        is_dim = text == fmt.UNKNOWN or (text == "0" and field.dim_zero)
        return _right(text, width, "dim" if is_dim else _style(s))

    return cell


_SPECIAL: dict[str, Cell] = {
    "request": _request,
    "status": _status,
    "stage": _stage,
    "computed": _computed,
    "queue": _queue,
    "waited": _waited,
    "harm": _harm,
    "why": _why,
    "age": _age,
    "text": _text,
    "id": _id,
    "lora": _lora,
    "prompt_text": _prompt_text,
}
"""The cells that are more than a figure. Each key is one of `FIELDS`."""
_CELLS = {key: _SPECIAL.get(key) or _figure(field) for key, field in FIELDS.items()}
if unknown := _SPECIAL.keys() - FIELDS.keys():
    raise ValueError(f"there is no field for the cells {', '.join(sorted(unknown))}")
