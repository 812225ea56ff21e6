"""The line in which a filter, or a search, is typed, with what is wrong with it below."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label, Static

from seqtop import format as fmt
from seqtop.sanitize import safe_line
from seqtop.state.filter import NO_FILTER, Filter, FilterError, parse


class FilterBar(Vertical):
    """Shown while a filter is typed or in force. What is typed takes effect at once.

    `name` begins the line and the ids in it: `filter`, or `search` for what hides nothing.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "clear", "Clear", tooltip="Clear what was typed"),
        Binding("down", "done", "Table", tooltip="Back to the table"),
    ]

    class Changed(Message):
        """Another filter is in force."""

        def __init__(self, bar: "FilterBar", filter: Filter) -> None:  # noqa: A002 (what it is)
            super().__init__()
            self.bar = bar
            self.filter = filter

    class Left(Message):
        """Typing is over."""

    def __init__(self, name: str = "filter") -> None:
        super().__init__(name=name)
        self.display = False
        self._input = Input(
            placeholder="text  re:/regex/  status:waiting  prompt>1000  -status:stop",
            compact=True,
            id=f"{name}-input",
        )
        self._input.cursor_blink = False
        self._input.can_focus = False  # lest the focus end up in it while it is out of sight
        self._count = Static("", classes="filter-count", markup=False)
        self._error = Static("", classes="filter-error", markup=False)
        self._error.display = False
        self._in_force = NO_FILTER

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label((self.name or "").capitalize(), classes="filter-label")
            yield self._input
            yield self._count
        yield self._error

    def open(self) -> None:
        """Let the user type."""
        self.display = True
        self._input.can_focus = True
        self.screen.set_focus(self._input)

    def fill(self, wanted: Filter) -> None:
        """Say which filter is in force, if any is, without anybody having typed it."""
        self._input.value = wanted.source
        self._in_force = wanted
        self.display = bool(wanted.source)

    def clear(self) -> None:
        """Show everything again."""
        self._input.value = ""
        self._close()
        self.post_message(self.Changed(self, NO_FILTER))
        self.post_message(self.Left())

    def show_count(self, shown: int, total: int) -> None:
        """How many sequences the filter lets through, or which of the hits one is at."""
        if self.display:
            text = f"{fmt.count(shown)} of {fmt.count(total)}"
            if self._count.content != text:
                self._count.update(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            wanted = parse(event.value)
        except FilterError as error:
            self._complain(error)
            return
        self._in_force = wanted
        self._complain(None)
        self.post_message(self.Changed(self, wanted))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_done()

    def action_clear(self) -> None:
        self.clear()

    def action_done(self) -> None:
        try:
            parse(self._input.value)
        except FilterError as error:  # what stands there is not what is in force
            self._complain(error, " Mend it, or Esc clears it.")
            self.app.bell()
            return
        if not self._input.value.strip():
            self._close()
        self.post_message(self.Left())

    def _complain(self, error: FilterError | None, more: str = "") -> None:
        """Say what is wrong with what was typed, and what is in force instead of it."""
        if error is not None:
            instead = self._in_force.source or "nothing"
            text = f"{error}. Not applied; in force is {instead}.{more}"
            self._error.update(safe_line(text))
        self._error.display = error is not None
        self.set_class(error is not None, "-wrong")

    def _close(self) -> None:
        self.display = False
        self._input.can_focus = False
