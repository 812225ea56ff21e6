"""The cells of the list of engines: which columns fit, and what stands in them."""

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from seqtop import format as fmt
from seqtop.connection import ConnectionState
from seqtop.sanitize import safe_text
from seqtop.sequence import SequenceStatus
from seqtop.tui.chrome.header import badges
from seqtop.tui.feed import Feed
from seqtop.tui.rates import kv_use
from seqtop.tui.rendering.bars import ELLIPSIS, bar, crop_left
from seqtop.tui.rendering.columns import Slot
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, text_width

Draw: TypeAlias = Callable[[Feed, int], Line]


SLOTS = (
    Slot("engine", "Engine", 16, 0, right=False),
    Slot("state", "State", 16, 0, right=False),
    Slot("model", "Model", 18, 6, right=False),
    Slot("running", "Run", 5, 0),
    Slot("waiting", "Wait", 5, 0),
    Slot("kv", "KV", 12, 1, right=False),
    Slot("out", "Out tok/s", 9, 2),
    Slot("in", "In tok/s", 9, 4),
    Slot("steps", "Steps/s", 7, 5),
    Slot("step", "Step", 9, 7),
    Slot("preempt", "Preempted", 9, 3),
    Slot("endpoint", "Endpoint", 26, 8, right=False),
)

_LONGEST = 28
"""Cells that an engine's name gets where there is room: those of `tcp://255.255.255.255:65535`."""


@lru_cache(maxsize=64)
def arrange(width: int) -> tuple[Slot, ...]:
    """The columns that fit into `width` cells, two spaces apart.

    Of what is left the first takes up to `_LONGEST`.
    """
    chosen: list[Slot] = []
    room = width
    for slot in sorted(SLOTS, key=lambda slot: slot.rank):
        if slot.rank and room < slot.width + 2:
            break
        room -= slot.width + 2
        chosen.append(slot)
    keys = {slot.key for slot in chosen}
    more = max(min(_LONGEST - SLOTS[0].width, room), 0)
    return tuple(
        slot._replace(width=slot.width + more) if slot is SLOTS[0] else slot
        for slot in SLOTS
        if slot.key in keys
    )


def row(slots: tuple[Slot, ...], feed: Feed) -> Line:
    """The line of one engine; call it under the feed's lock."""
    spans: list[StyledText] = []
    for index, slot in enumerate(slots):
        if index:
            spans.append(("  ", PLAIN))
        spans.extend(fitted(_DRAW[slot.key](feed, slot.width), slot.width))
    return tuple(spans)


def _engine(feed: Feed, width: int) -> Line:
    info = feed.source.state.info
    if info is not None:
        return ((safe_text(info.engine_id), "strong"),)
    return ((_ending(feed.source.link.endpoint, width), "strong"),)


def _ending(endpoint: str, width: int) -> str:
    """An endpoint, cut in front where there is no room: it is its port that tells it apart."""
    text = safe_text(endpoint)
    return text if text_width(text) <= width else ELLIPSIS + crop_left(text, width - 1)


def _model(feed: Feed, _: int) -> Line:
    info = feed.source.state.info
    return ((safe_text(info.model) if info else fmt.UNKNOWN, PLAIN),)


def _kv(feed: Feed, width: int) -> Line:
    use = kv_use(feed.source.state)
    if use is None:
        return ((fmt.UNKNOWN, "dim"),)
    return (*bar(width - 5, 1.0, [(use, "computed", "━")]), (f"{fmt.percent(use):>5}", "strong"))


def _number(text: str, width: int, style: str = PLAIN) -> Line:
    return ((text.rjust(width), style),)


def _count(status: SequenceStatus, style: str) -> Draw:
    def draw(feed: Feed, width: int) -> Line:
        number = feed.source.state.num_by_status[status]
        return _number(fmt.count(number), width, style if number else "dim")

    return draw


def _rate(feed: Feed, per_second: float | None, width: int) -> Line:
    """A rate; none of what no longer goes on."""
    if feed.source.link.state in {ConnectionState.LOST, ConnectionState.STOPPED}:
        return _number(fmt.UNKNOWN, width, "dim")
    return _number(fmt.rate(per_second), width)


def _preempted(feed: Feed, width: int) -> Line:
    stats = feed.source.state.stats
    return _number(fmt.count(stats.num_preemptions) if stats else fmt.UNKNOWN, width)


def _step(feed: Feed, width: int) -> Line:
    step = feed.source.state.step
    return _number(fmt.count(step) if step >= 0 else fmt.UNKNOWN, width)


_DRAW: dict[str, Draw] = {
    "engine": _engine,
    "state": lambda feed, _: badges(feed),
    "model": _model,
    "running": _count(SequenceStatus.RUNNING, "running"),
    "waiting": _count(SequenceStatus.WAITING, "waiting"),
    "kv": _kv,
    "out": lambda feed, width: _rate(feed, feed.pace.tokens_out, width),
    "in": lambda feed, width: _rate(feed, feed.pace.tokens_in, width),
    "steps": lambda feed, width: _rate(feed, feed.pace.steps, width),
    "step": _step,
    "preempt": _preempted,
    "endpoint": lambda feed, width: ((_ending(feed.source.link.endpoint, width), "dim"),),
}
