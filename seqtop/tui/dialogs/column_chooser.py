"""A dialog for the columns of the sequence table and their order."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS, arrange
from seqtop.tui.dialogs.prompts import Dialog, entry

COLUMN = 16
"""The cells before the meaning of a column."""
NO_ROOM = "on, but no room:"


class ColumnChooser(Dialog[tuple[str, ...] | None]):
    """Lists all columns, the chosen ones first; returns the keys of the chosen ones, or `None`.

    Args:
        columns: The keys of the chosen columns.
        width: The cells of a row, for which some of the chosen columns may have no room.
        sort_key: The key of the column that rows are sorted by, which always has room.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("space", "choose", "Show or hide"),
        Binding("shift+up,K,left", "shift(-1)", "Earlier"),
        Binding("shift+down,J,right", "shift(1)", "Later"),
        Binding("r", "reset", "Reset to the default"),
        Binding("escape,c,q", "dismiss", "Cancel"),
    ]

    def __init__(self, columns: tuple[str, ...], width: int, sort_key: str) -> None:
        super().__init__()
        self._chosen = list(columns)
        self._width = width
        self._sort_key = sort_key

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Columns", classes="dialog-title")
            yield OptionList(id="column-options")
            yield Label(
                "Space shows or hides, ← → move, r resets, Enter applies, Esc cancels",
                classes="dialog-hint",
            )

    def on_mount(self) -> None:
        self._list(0)

    def on_option_list_option_selected(self) -> None:
        self.dismiss(tuple(self._chosen))

    def action_choose(self) -> None:
        key = self._key
        at = self._options.highlighted or 0
        if key not in self._chosen:
            at = len(self._chosen)  # the cursor moves with the column, so that keys can move it
            self._chosen.append(key)
        elif len(self._chosen) > 1:
            self._chosen.remove(key)
        else:
            self.app.bell()  # at least one column has to stay
        self._list(at)

    def action_shift(self, by: int) -> None:
        key = self._key
        if key in self._chosen:
            at = self._chosen.index(key)
            to = max(min(at + by, len(self._chosen) - 1), 0)
            self._chosen.insert(to, self._chosen.pop(at))
            self._list(to)

    def action_reset(self) -> None:
        self._chosen = list(DEFAULT_COLUMNS)
        self._list(0)

    @property
    def _options(self) -> OptionList:
        return self.query_one(OptionList)

    @property
    def _key(self) -> str:
        option = self._options.highlighted_option
        return (option.id if option else None) or self._chosen[0]

    def _list(self, highlighted: int) -> None:
        """Updates the list, with the cursor on row `highlighted`."""
        shown = {column.key for column in arrange(self._width, tuple(self._chosen), self._sort_key)}
        others = [key for key in FIELDS if key not in self._chosen]
        options = self._options
        options.clear_options()
        options.add_options(
            self._option(key, has_room=key in shown) for key in (*self._chosen, *others)
        )
        options.highlighted = highlighted
        self.fit_to_list()

    def _option(self, key: str, *, has_room: bool) -> Option:
        column = FIELDS[key]
        is_chosen = key in self._chosen
        mark = "[x]" if is_chosen else "[ ]"
        about = f"{NO_ROOM} {column.help}" if is_chosen and not has_room else column.help
        style = "bold" if is_chosen else ""
        text = entry(f"{mark} {column.title}", about, COLUMN, self.list_width, style=style)
        if about != column.help:
            text = text.stylize("$warning", COLUMN, COLUMN + len(NO_ROOM))
        return Option(text, id=key)
