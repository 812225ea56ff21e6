"""The cells of the list of steps: which columns fit, and what stands in them.

All of it is pure: a step's figures and a width go in, a line comes out.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from rich.cells import cell_len

from seqtop import format as fmt
from seqtop.state.step_summary import StepSummary, limit
from seqtop.tui.rendering.bars import bar
from seqtop.tui.rendering.columns import Slot
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted
from seqtop.wire.messages import EngineInfo

Draw: TypeAlias = Callable[[StepSummary, EngineInfo | None, int], Line]

SHARES = (
    ("scheduler", "░", "waiting"),
    ("forward", "━", "running"),
    ("execute", "═", "computed"),
)
"""The parts of a step's time in the order of the bar, each with its glyph and its style.

`execute` is the time of executing the model outside of the forward pass."""


_LIMIT = 25
_LONGEST_LIMIT = 32
SLOTS = (
    Slot("step", "Step", 7, 0),
    Slot("clock", "Time", 12, 5),
    Slot("batch", "Batch", 9, 0, right=False),
    Slot("tokens", "Tokens", 15, 0, right=False),
    Slot("limit", "Why not more", _LIMIT, 0, right=False),
    Slot("chunks", "Chunks", 16, 9, right=False),
    Slot("preempt", "Pre", 3, 1),
    Slot("waiting", "Wait", 5, 4),
    Slot("swaps", "Swaps", 7, 6),
    Slot("copies", "Copy", 4, 8),
    Slot("kv", "KV", 5, 2),
    Slot("blocks", "Used", 6, 8),
    Slot("time", "Took", 7, 1),
    Slot("shares", "Time goes to", 12, 3, right=False),
    Slot("scheduler", "Sched", 7, 7),
    Slot("forward", "Forward", 7, 7),
    Slot("execute", "Execute", 7, 7),
    Slot("rest", "Rest", 7, 7),
)
_RESTARTED: StyledText = ("engine started anew; ", "accent")
_GROWTH = ("shares", "tokens")
"""Columns that share what room is left once every column is there."""


@lru_cache(maxsize=64)
def arrange(width: int) -> tuple[Slot, ...]:
    """The columns that fit into `width` cells, one space apart, filling it exactly.

    The essential ones stay even where there is no room: then the reason is cut off.
    """
    chosen = [slot for slot in SLOTS if not slot.rank]
    room = width - sum(slot.width + 1 for slot in chosen) + 1
    for slot in sorted((slot for slot in SLOTS if slot.rank), key=lambda slot: slot.rank):
        if room < slot.width + 1:
            break
        room -= slot.width + 1
        chosen.append(slot)
    more = min(room, _LONGEST_LIMIT - _LIMIT)
    widths = {"limit": max(_LIMIT + more, 1)}
    room -= more
    for index, key in enumerate(_GROWTH):
        share = room // (len(_GROWTH) - index)
        if room > 0 and any(slot.key == key for slot in chosen):
            widths[key] = next(slot.width for slot in SLOTS if slot.key == key) + share
            room -= share
    keys = {slot.key for slot in chosen}
    return tuple(
        slot._replace(width=widths.get(slot.key, slot.width)) for slot in SLOTS if slot.key in keys
    )


def row(
    slots: tuple[Slot, ...],
    step: StepSummary,
    info: EngineInfo | None,
    *,
    restarted: bool = False,
) -> Line:
    """The line of one step; it says so where the engine was `restarted` before it."""
    spans: list[StyledText] = []
    for index, slot in enumerate(slots):
        if index:
            spans.append((" ", PLAIN))
        cell = _DRAW[slot.key](step, info, slot.width)
        if restarted and slot.key == "limit":
            cell = fitted((_RESTARTED, *cell), slot.width)
        spans.extend(cell)
    return tuple(spans)


def share_bar(step: StepSummary, width: int) -> Line:
    """Where the time of a step went, as a bar."""
    stats = step.stats
    forward = stats.model_forward_time or 0.0
    execute = stats.model_execute_time or 0.0
    times = (stats.scheduler_time, forward, execute - forward)
    parts = [(time, style, glyph) for time, (_, glyph, style) in zip(times, SHARES, strict=True)]
    return bar(width, step.duration, parts)


def _batch(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    prefills, decodes = len(step.chunks), step.num_decodes
    spans: list[StyledText] = []
    for number, glyph, style in ((prefills, "◐", "prefill"), (decodes, "●", "running")):
        text = f"{glyph}{fmt.count(number)}".ljust(4)
        spans.append((text, style) if number else (" " * 4, PLAIN))
    return fitted((spans[0], (" ", PLAIN), spans[1]), width)


def _tokens(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    if info is None:
        return fitted(((fmt.count(step.num_tokens), PLAIN),), width)
    numbers = f" {fmt.count(step.num_tokens)}/{fmt.count(info.max_num_batched_tokens)}"
    size = max(width - max(cell_len(numbers), 10), 0)
    parts = (
        (step.stats.num_prefill_tokens, "prefill", "█"),
        (step.stats.num_decode_tokens, "running", "━"),
    )
    return fitted(
        (
            *bar(size, info.max_num_batched_tokens, parts),
            (numbers.rjust(width - size), PLAIN),
        ),
        width,
    )


def _limit(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    return fitted(((limit(step, info), "waiting" if step.waits else "dim"),), width)


def _swaps(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    text = " ".join(
        f"{arrow}{fmt.count(number)}"
        for arrow, number in (("⇣", step.num_swapped_out), ("⇡", step.num_swapped_in))
        if number
    )
    return _right(text or "0", width, "swapped" if text else "dim")


def _preempt(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    number = step.num_preemptions
    if not number:
        return _right("0", width, "dim")
    return _right(f"↺{fmt.count(number)}", width, "preempted")


def _kv(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    total = info.num_gpu_blocks if info else None
    return _right(fmt.percent(step.stats.num_used_blocks, total), width, PLAIN)


def _chunks(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    shown = "+".join(fmt.count(chunk) for chunk in step.chunks[:width])
    return fitted(((shown, "prefill"),), width)


def _right(text: str, width: int, style: str) -> Line:
    return fitted(((text.rjust(width), style),), width)


def _number(
    of: Callable[[StepSummary], float | None], shown: Callable[[float | None], str] = fmt.count
) -> Draw:
    """A right-aligned figure; a nought steps back."""

    def draw(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
        value = of(step)
        return _right(shown(value), width, PLAIN if value else "dim")

    return draw


_DRAW: dict[str, Draw] = {
    "step": lambda step, _, width: _right(fmt.count(step.step), width, "strong"),
    "clock": lambda step, _, width: fitted(((fmt.clock(step.time), "dim"),), width),
    "batch": _batch,
    "tokens": _tokens,
    "limit": _limit,
    "chunks": _chunks,
    "preempt": _preempt,
    "waiting": _number(lambda step: step.stats.num_waiting),
    "swaps": _swaps,
    "copies": _number(lambda step: step.num_copied),
    "kv": _kv,
    "blocks": _number(lambda step: step.stats.num_used_blocks),
    "time": _number(lambda step: step.duration, fmt.seconds),
    "shares": lambda step, _, width: share_bar(step, width),
    "scheduler": _number(lambda step: step.stats.scheduler_time, fmt.seconds),
    "forward": _number(lambda step: step.stats.model_forward_time, fmt.seconds),
    "execute": _number(lambda step: step.stats.model_execute_time, fmt.seconds),
    "rest": _number(lambda step: step.rest, fmt.seconds),
}
