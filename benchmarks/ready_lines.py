"""Measures Textual's own part of a frame: one widget of the terminal's size with prepared lines.

The rest is the cost of any app: the widget's refresh, the compositor, and the escape sequences of
as many segments as a line of the sequence table has.
"""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.scroll_view import ScrollView
from textual.strip import Strip

from benchmarks import terminal

NUM_SEGMENTS = 10
"""Segments per line, as in a line of the sequence table at 160 cells."""
_INKS = ("white", "bold white", "green", "dim white")


class Ready(ScrollView):
    """A widget that draws the lines it was given last."""

    DEFAULT_CSS = "Ready { width: 1fr; height: 1fr; overflow: hidden; }"
    strips: list[Strip]

    def render_lines(self, crop: Region) -> list[Strip]:
        return self.strips[crop.y : crop.bottom]


class ReadyApp(App[None]):
    """An app with that widget only."""

    def compose(self) -> ComposeResult:
        ready = Ready()
        ready.strips = lines(0)
        yield ready

    def change(self, strips: list[Strip]) -> None:
        """Draws the strips that have changed."""
        ready = self.query_one(Ready)
        before, ready.strips = ready.strips, strips
        width = terminal.SIZE[0]
        changed = [y for y, strip in enumerate(strips) if strip is not before[y]]
        ready.refresh(*(Region(0, y, width, 1) for y in changed))


def lines(turn: int) -> list[Strip]:
    """Returns as many lines as the terminal has, different ones each time."""
    width, height = terminal.SIZE
    styles = [Style.parse(f"{ink} on black") for ink in _INKS]
    size = width // NUM_SEGMENTS
    return [
        Strip(
            [
                Segment(f"{turn * 7 + y + index:>{size}}", styles[index % len(styles)])
                for index in range(NUM_SEGMENTS)
            ],
            width,
        )
        for y in range(height)
    ]


def lines_shown(app: ReadyApp) -> list[Strip]:
    return app.query_one(Ready).strips


async def frames(rounds: int, warm_up: int) -> tuple[list[float], list[float]]:
    """Returns CPU seconds of frames in which all lines, or one line, have changed."""
    app = ReadyApp()
    async with terminal.shown(app):

        async def frame(strips: list[Strip]) -> float:
            return await terminal.frame(app, lambda: app.change(strips))

        turns = range(1, rounds + warm_up + 1)
        every = [await frame(lines(turn)) for turn in turns]
        one = [await frame([lines(-turn)[0], *lines_shown(app)[1:]]) for turn in turns]
    return every[warm_up:], one[warm_up:]
