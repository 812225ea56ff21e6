"""A dialog for the column to sort by."""

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from seqtop.state.fields import FIELDS
from seqtop.state.ordering import Sort
from seqtop.tui.dialogs.prompts import Dialog, entry

BY_LIFECYCLE = ("Lifecycle", "running, then the queue, then what has finished")


class SortChooser(Dialog[Sort | None]):
    """Lists all columns, shown or not; returns the chosen order, or `None`.

    A letter moves the cursor to the most important column whose title begins with it, and the same
    letter again to the next one.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, sort: Sort) -> None:
        super().__init__()
        self._sort = sort
        self._letter = ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Sort by", classes="dialog-title")
            yield OptionList(
                self._option("", *BY_LIFECYCLE),
                *(
                    self._option(column.key, column.title, column.help)
                    for column in FIELDS.values()
                ),
                id="sort-options",
            )
            yield Label(
                "A letter jumps, Enter applies, Esc cancels; r in the table reverses",
                classes="dialog-hint",
            )

    def on_mount(self) -> None:
        options = self.query_one(OptionList)
        options.highlighted = options.get_option_index(self._sort.key or "lifecycle")
        self.fit_to_list()

    def on_key(self, event: events.Key) -> None:
        letter = (event.character or "").lower()
        if not letter.isalpha():
            return
        event.stop()
        options, columns = self.query_one(OptionList), FIELDS.values()
        # Narrow tables keep the columns with small priorities. Texts are rarely sorted by.
        ranks = [
            (BY_LIFECYCLE[0], (False, 0)),
            *((c.title, (c.is_text, c.priority)) for c in columns),
        ]
        found = [index for index, (title, _) in enumerate(ranks) if title.lower()[0] == letter]
        if not found:
            return
        found.sort(key=lambda index: ranks[index][1])
        is_again = letter == self._letter and options.highlighted in found
        after = found.index(options.highlighted or 0) + 1 if is_again else 0
        options.highlighted, self._letter = found[after % len(found)], letter

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        key = "" if event.option_id == "lifecycle" else event.option_id or ""
        self.dismiss(Sort(key, FIELDS[key].descending if key else False))

    def _option(self, key: str, title: str, about: str) -> Option:
        mark = ("▼" if self._sort.descending else "▲") if key == self._sort.key else " "
        return Option(entry(f"{mark} {title}", about, 14, self.list_width), id=key or "lifecycle")
