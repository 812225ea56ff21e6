"""The life of every request against time."""

from collections.abc import Callable, Iterable, Sequence

from textual.binding import Binding
from textual.widget import Widget

from seqtop.tui import time_travel
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.feed import Changes, Feed
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens import registry
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.sequences.empty_hint import EmptyHint
from seqtop.tui.screens.timeline.rows import TimeAxis, TimelineRows, legend
from seqtop.tui.screens.timeline.viewport import Mode, Viewport

TALL = 20
"""From this height on there is room for a legend."""
_PAN = 0.25
"""Share of the window that one key press moves it by."""


def _quiet(key: str, action: str, description: str, name: str) -> Binding:
    """A binding that the help lists and the footer has no room for."""
    return Binding(key, action, description, show=False, id=name)


class TimelineScreen(EngineScreen):
    """Requests as bars, to one scale."""

    TAB = registry.TIMELINE
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", id="look.closer"),
        Binding("minus", "zoom(-1)", "Zoom out", id="look.wider"),
        _quiet("h", "pan(-1)", "Look at earlier times", "look.earlier"),
        _quiet("l", "pan(1)", "Look at later times", "look.later"),
        Binding("a", "fit", "All", id="look.all", tooltip="Fit everything in"),
        Binding("f", "follow", "Now", id="look.now", tooltip="Follow the moment on show"),
        Binding(
            "s", "sort", "Order", id="find.order", tooltip="Order by arrival, or as the table does"
        ),
        _quiet("o", "own(-1)", "Back to this request's last preemption", "time.own-before"),
        _quiet("O", "own(1)", "On to this request's next preemption", "time.own-after"),
        _quiet("enter", "open", "Show the sequence in the table", "screen.open"),
    ]

    def __init__(self, feed: Feed, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(feed, title=title, tabs=tabs)
        self._viewport = Viewport()
        self._axis = TimeAxis(feed)
        self._rows = TimelineRows(feed, self._viewport)
        self._hint = EmptyHint(feed)
        self._legend = LineView(id="legend")

    def body(self) -> Iterable[Widget]:
        yield self._axis
        yield self._hint
        yield self._rows
        yield self._legend

    @property
    def ages(self) -> bool:
        return True  # its window goes along

    def on_mount(self) -> None:
        self._rows.focus()

    def on_resize(self) -> None:
        super().on_resize()
        self._legend.display = self.app.size.height >= TALL
        self._legend.set_lines([((" ", ""), *legend(max(self.app.size.width - 2, 1)))])
        self.show_all()

    def update(self, frame: Changes) -> None:
        self._hint.update()
        if not self._rows.size:
            return  # nothing can be fitted into no width, nor brought into sight there
        self._rows.show(frame)
        if (expected := self.feed.take_expected()) is not None:
            self._rows.select(expected)
        self._axis.update(self._rows)

    def action_zoom(self, by: int) -> None:
        self._look(lambda: self._viewport.zoom(self._rows.extent, self._rows.window.width, by))

    def action_pan(self, by: int) -> None:
        self._look(
            lambda: self._viewport.pan(self._rows.extent, self._rows.window.width, by * _PAN)
        )

    def action_fit(self) -> None:
        self._viewport.mode = Mode.ALL
        self.show_all()

    def action_follow(self) -> None:
        self._look(lambda: self._viewport.follow(self._rows.extent, self._rows.window.width))

    def action_sort(self) -> None:
        with self.feed.lock:
            self._rows.sort(by_arrival=not self._rows.by_arrival)
            self._rows.select(self.feed.selected)
        self.show_all()
        order = "of arrival" if self._rows.by_arrival else "of the table"
        self.notify(f"Rows are in the order {order}.", timeout=2, markup=False)

    def action_own(self, direction: int) -> None:
        with self.feed.lock:
            if (found := self.feed.selection) is None:
                return
            name = found[0].request_id
            where = "after" if direction > 0 else "before"
            otherwise = f"No preemption of {name} is on record {where} this."
            frame = self.feed.jump(time_travel.to_preemption_of(name, direction), otherwise)
            self.feed.expected = None  # whoever lost a place besides, this one stays selected
            self.show(frame)

    def action_open(self) -> None:
        self.app.switch_mode(registry.SEQUENCES.name)

    def _look(self, change: Callable[[], None]) -> None:
        with self.feed.lock:
            change()
        self.show_all()
