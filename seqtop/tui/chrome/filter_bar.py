"""The input line of the filter and of the search, with an error message below it."""

from collections.abc import Callable
from functools import cached_property

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.widgets import Input, Label, Static

from seqtop.state.filter import FilterError
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line


class FilterBar(Vertical):
    """An input line that is visible while its filter is edited or active.

    Changes take effect immediately. While what is typed is invalid, the filter is again the one
    that was active when the bar was opened. The bar's name is `filter`, or `search` if it hides no
    rows.

    Args:
        parse: Parses what was typed. It raises `FilterError` if that is invalid.
        placeholder: Examples, shown while nothing has been typed.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "clear", "Clear", tooltip="Clear what was typed"),
        Binding("down", "done", "Table", tooltip="Back to the table"),
    ]

    class Changed(Message):
        """Another filter is active. Its text is valid."""

        def __init__(self, bar: "FilterBar", source: str) -> None:
            super().__init__()
            self.bar = bar
            self.source = source

    class Left(Message):
        """The user left the input line."""

    def __init__(
        self, parse: Callable[[str], object], placeholder: str, name: str = "filter"
    ) -> None:
        super().__init__(name=name)
        self._parse = parse
        self._placeholder = placeholder
        self.display = False
        self._count = Static("", classes="filter-count", markup=False)
        self._error = Static("", classes="filter-error", markup=False)
        self._error.display = False
        self._active = ""
        self._before = ""

    @cached_property
    def _input(self) -> Input:
        """The input line, created with the first use of the bar: it is slow to create."""
        line = Input(
            placeholder=self._placeholder,
            compact=True,
            id=f"{self.name}-input",
        )
        line.cursor_blink = False
        line.can_focus = False  # a hidden input must not get the focus
        return line

    def compose(self) -> ComposeResult:
        with Horizontal():
            yield Label((self.name or "").capitalize(), classes="filter-label")
            yield self._input
            yield self._count
        yield self._error

    def open(self) -> None:
        """Shows the input line and focuses it."""
        self.display = True
        self._before = self._active
        self._input.can_focus = True
        self.screen.set_focus(self._input)

    def fill(self, source: str) -> None:
        """Shows a filter that was not typed here."""
        self._input.value = source
        self._active = self._before = source
        self.display = bool(source)

    def clear(self) -> None:
        """Clears the filter, so that all rows show."""
        self._input.value = self._active = ""
        self._close()
        self.post_message(self.Changed(self, ""))
        self.post_message(self.Left())

    def show_count(self, shown: int, total: int, hidden: str = "") -> None:
        """Shows the number of matches, or the number of the current match, of a total.

        Args:
            hidden: The name of the selected sequence, if the filter hides it.
        """
        if self.display:
            text = f"{fmt.count(shown)} of {fmt.count(total)}"
            if hidden:
                text = f"{safe_line(hidden)} is hidden   {text}"
            if self._count.content != text:
                self._count.update(text)

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        try:
            self._parse(event.value)
        except FilterError as error:
            if self._active != self._before:
                self._activate(self._before)
            self._show_error(error)
            return
        self._activate(event.value.strip())
        self._show_error(None)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_done()

    def action_clear(self) -> None:
        self.clear()

    def action_done(self) -> None:
        try:
            self._parse(self._input.value)
        except FilterError as error:  # the input differs from the active filter
            self._show_error(error, " Correct it, or press Esc to clear it.")
            self.app.bell()
            return
        if not self._input.value.strip():
            self._close()
        self.post_message(self.Left())

    def _activate(self, source: str) -> None:
        self._active = source
        self.post_message(self.Changed(self, source))

    def _show_error(self, error: FilterError | None, more: str = "") -> None:
        """Shows the error in the input, and the filter that is active instead."""
        if error is not None:
            active = self._active or "none"
            text = f"{error}. Not applied; the active filter is {active}.{more}"
            self._error.update(safe_line(text))
        self._error.display = error is not None
        self.set_class(error is not None, "-wrong")

    def _close(self) -> None:
        self.display = False
        self._input.can_focus = False
