"""A dialog for a step or a time to go to, and the parser of its input."""

import re
import time
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.history.timeline import Timeline
from seqtop.tui.dialogs.prompts import Dialog
from seqtop.tui.seek import bounds

EXAMPLES = (
    ("1234", "that step"),
    ("12.5s", "this long after the start of the history"),
    ("-3s", "this long before this moment; +3s after it"),
    ("14:03:22", "that time of day"),
)
"""Examples of input, and their meanings."""

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"([+-]?)((?:[0-9]+(?:\.[0-9]*)?(?:ms|[smh]))+)")
_PART = re.compile(r"([0-9.]+)(ms|[smh])")
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}(?:\.[0-9]*)?))?")
_STEP = re.compile(r"[0-9][0-9,]*")
_DAY = 86_400.0


class SeekPrompt(Dialog["SeekTarget | None"]):
    """Asks for a step or a time; returns it, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Go to a step or a time", classes="dialog-title")
            yield Input(restrict=r"[0-9,.:hms+\- ]*", max_length=20, compact=True, id="seek-input")
            yield Static("", id="seek-error", markup=False)
            for example, about in EXAMPLES:
                yield Label(Content.assemble((f"{example:<10}", "bold"), about))
            yield Label("Enter confirms, Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(parse(event.value))
        except ValueError as error:
            self.query_one("#seek-error", Static).update(str(error))


@dataclass(frozen=True)
class SeekTarget:
    """A step or a time; exactly one attribute is set."""

    step: int | None = None
    since: float | None = None
    """Seconds after the start of the history."""
    shift: float | None = None
    """Seconds from the moment on display."""
    clock: float | None = None
    """Seconds after midnight, in local time."""

    def find(self, timeline: Timeline, position: int) -> tuple[int | None, str]:
        """Finds the nearest position in the history.

        Args:
            timeline: The history to search.
            position: The position on display.

        Returns:
            The position, or `None` if the engine's clock has no time of day, and a sentence if the
            target itself is not in the history.
        """
        index = timeline.index
        if self.step is not None:
            target = index.at_step(self.step, near=position)
            near = f"Step {self.step:,} is not in the history; this is the nearest."
            return target, near if index[target].step != self.step else ""
        begin, end = bounds(timeline)
        here = index[position].time
        if self.since is not None:
            wanted = begin + self.since
        elif self.shift is not None:
            wanted = max(here, begin) + self.shift
        else:
            try:
                wanted = _on_the_day(self.clock or 0.0, here, begin, end)
            except (OverflowError, ValueError, OSError):
                return None, "The engine's clock has no time of day."
        if wanted < begin:
            return index.at_time(begin), "The history starts later: this is its first moment."
        note = "The history ends earlier: this is its last moment." if wanted > end else ""
        return index.at_time(wanted), note


def parse(text: str) -> SeekTarget:
    """Parses a step, a time in the history, or a time of day.

    Raises:
        ValueError: The text has none of the forms of `EXAMPLES`.
    """
    text = text.strip().replace(" ", "")
    if _STEP.fullmatch(text):
        return SeekTarget(step=min(int(text.replace(",", "")), 2**62))
    if match := _DURATION.fullmatch(text):
        sign, parts = match.groups()
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(parts))
        if sign:
            return SeekTarget(shift=-seconds if sign == "-" else seconds)
        return SeekTarget(since=seconds)
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds_text = match.groups()
        if int(hours) < 24 and int(minutes) < 60 and float(seconds_text or 0) < 60:
            clock = int(hours) * 3600 + int(minutes) * 60 + float(seconds_text or 0)
            return SeekTarget(clock=clock)
    raise ValueError("Type a step or a time: 1234, 12.5s, -3s or 14:03:22.")


def _on_the_day(clock: float, here: float, begin: float, end: float) -> float:
    """Returns the epoch time of a time of day, on the day of `here` or on a day of the history.

    Args:
        clock: Seconds after midnight, in local time.
        here: The time on display, in epoch seconds.
        begin: The first time in the history.
        end: The last time in the history.
    """
    local = time.localtime(here)
    hours, minutes = divmod(int(clock) // 60, 60)
    whole = (local.tm_year, local.tm_mon, local.tm_mday, hours, minutes, int(clock) % 60, 0, 0, -1)
    wanted = time.mktime(whole) + clock % 1
    for candidate in (wanted, wanted - _DAY, wanted + _DAY):
        if begin <= candidate <= end:
            return candidate
    return wanted
