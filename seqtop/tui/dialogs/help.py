"""The help: all keys, read from the bindings, and the filter language."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Label, Static

from seqtop.state import not_available
from seqtop.state.fields import FIELDS, PREEMPTED, STATUS_WORDS, Field
from seqtop.state.filter import UNITS
from seqtop.text import format as fmt
from seqtop.tui.dialogs.prompts import Dialog, entry
from seqtop.tui.keymap import GROUPS, Notes, group_of
from seqtop.tui.source import Engine
from seqtop.wire.messages import EngineInfo

STATUSES = (*STATUS_WORDS.values(), PREEMPTED)
WORDS = (
    ("in/out", "prompt tokens computed, and tokens generated, in the last second"),
    ("block", "a part of the KV cache, for as many tokens as the block size"),
    ("free and cached", "free blocks are empty; cached ones hold a prefix until they are evicted"),
    ("prefix hit rate", "share of the tokens looked up in the prefix cache that were found"),
    ("seqs, max_num_seqs", "the most sequences that run at a time"),
    ("budget", "the most tokens of a step (max_num_batched_tokens)"),
    ("paced", "time in which the engine waits on purpose, as the demo does"),
    ("Cached > Prompt", "recomputed: output was in the cache, too"),
    ("!", "over its objective (D, or --slo)"),
)
FILTER = (
    ("story", "in request id, prompt or output"),
    ("re:/req-[0-9]$/", "a regular expression in these"),
    ("status:waiting,swapped", "the field is one of these:"),
    ("", ", ".join(STATUSES[:4])),
    ("", ", ".join(STATUSES[4:])),
    ("prompt>1k  itl<=50ms", f"comparisons; units {' '.join(UNITS)}"),
    ("-status:stop  !preempt>0", "- or ! negates a term"),
)


def notes_about(
    info: EngineInfo | None, on_screen: Notes, engine: Engine | None
) -> Mapping[str, Notes]:
    """Returns the notes on a screen of an engine.

    Args:
        info: The engine; first come the notes on what it cannot give.
        on_screen: The words of the screen.
        engine: The source, if it is a running engine.
    """
    missing = not_available.entries(info.not_available) if info is not None else []
    return {
        **({f"Not available ({fmt.NOT_AVAILABLE})": missing} if missing else {}),
        **({"On this screen": on_screen} if on_screen else {}),
        "Columns and fields of the filter": [
            (_names(field), field.help) for field in FIELDS.values()
        ],
        "Words": WORDS,
        "Filter": FILTER,
        **({"Memory": _memory(engine)} if engine is not None else {}),
    }


def _memory(engine: Engine) -> Notes:
    """Returns the memory that this viewer takes for an engine, and the settings that limit it."""
    history, finished = engine.history, engine.finished_memory
    finished.measure(engine.state)
    steps = fmt.plural(history.index.num_steps, "step")
    requests = fmt.plural(len(engine.state.finished), "finished request")
    return [
        ("history_mb", f"{_of(history.num_bytes, history.max_bytes)}: the last {steps}"),
        ("finished_mb", f"{_of(finished.num_bytes, finished.max_bytes)}: {requests}"),
    ]


def _of(num_bytes: int, limit: int) -> str:
    return f"{fmt.size(num_bytes)} of {fmt.size(limit)}"


def _names(field: Field) -> str:
    """Returns the title of a field, and its key if a filter cannot guess that."""
    return field.title if field.title.lower() == field.key else f"{field.title} ({field.key})"


NARROW = 60
"""Below this width terms have `NARROW_TERM` cells."""
KEYS, TERM, NARROW_TERM = 10, 15, 7
"""The cells of keys, and of terms, at most. A longer one moves its meaning to the right."""
_LEAST = 44
"""The least width of a column."""
_GAP = 3
"""The cells between two columns."""
_FRAME = 7
"""The cells of the frame, the padding and the scroll bar beside the columns."""
_OTHER_LINES = 6
"""The lines of the frame, the title and the hint, with their margins."""


class HelpScreen(Dialog[None]):
    """Lists the keys that work on the current screen, and notes: `?` goes there, `/` searches."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("slash", "search", "Search"),
        Binding("escape", "leave", "Close"),
        Binding("question_mark,f1", "words", "Words"),
        Binding("q", "dismiss", "Close"),
    ]

    def __init__(self, bindings: Mapping[str, ActiveBinding], notes: Mapping[str, Notes]) -> None:
        super().__init__()
        self.entries = grouped(active.binding for active in bindings.values())
        """The actions of each group of keys, each with its keys."""
        self._notes = notes
        self._wanted = ""
        """The text that an entry has to contain to be listed."""
        self._num_lines = 0
        """The lines of all entries."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Keys and words", classes="dialog-title")
            search = Input(placeholder="search keys and notes", compact=True, id="help-search")
            search.display = False
            yield search
            with VerticalScroll(id="help-scroll"):
                yield Static(id="help-content")
                yield Static(id="help-notes")
            yield Label("", id="help-hint", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False
        scroll = self.query_one(VerticalScroll)
        scroll.focus()
        for name in ("scroll_y", "virtual_size", "size"):
            self.watch(scroll, name, self._update_hint)
        self._list()

    def on_resize(self) -> None:
        self.call_after_refresh(self._list)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value.strip().casefold()
        self._list()

    def on_input_submitted(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_search(self) -> None:
        search = self.query_one(Input)
        search.display = True
        search.focus()

    def action_leave(self) -> None:
        """Ends the search, or closes the help."""
        search = self.query_one(Input)
        if not search.display:
            self.dismiss()
            return
        search.value = ""
        search.display = False
        self.query_one(VerticalScroll).focus()

    def action_words(self) -> None:
        """Scrolls to the notes, or closes the help if they are in sight."""
        scroll = self.query_one(VerticalScroll)
        top = min(self.query_one("#help-notes").virtual_region.y, scroll.max_scroll_y)
        if scroll.scroll_y >= top:
            self.dismiss()
        else:
            scroll.scroll_to(y=top, animate=False)

    def _update_hint(self) -> None:
        """Updates the hint at the bottom, which says whether there is more text below."""
        scroll = self.query_one(VerticalScroll)
        more = ", ↓ for more" if scroll.scroll_y < scroll.max_scroll_y else ""
        notes = self.query_one("#help-notes").virtual_region.y
        words = ", ? explains words" if scroll.scroll_y < min(notes, scroll.max_scroll_y) else ""
        self.query_one("#help-hint", Label).update(f"Esc closes, / searches{words}{more}")

    def _list(self) -> None:
        """Lists the keys and the notes that contain the wanted text."""
        keys = {
            group: [
                ("  ".join(self.app.get_key_display(key) for key in bindings), description)
                for bindings, description in entries
            ]
            for group, entries in self.entries.items()
        }
        width = max(self.app.size.width - _FRAME, 1)
        keys_lines = self._lines(keys, KEYS, width)
        notes_lines = self._lines(self._notes, TERM, width)
        if keys_lines and notes_lines:
            keys_lines.append(Content(""))
        self.query_one("#help-content", Static).update(Content("\n").join(keys_lines))
        notes = self.query_one("#help-notes", Static)
        notes.update(Content("\n").join(notes_lines))
        num_lines = len(keys_lines) + len(notes_lines)
        if not num_lines:
            notes.update("Nothing here contains that text; Esc ends the search.")
        if not self._wanted:
            self._num_lines = num_lines
        search = 2 * self.query_one(Input).display
        room = self.app.size.height - _OTHER_LINES - search
        self.query_one(VerticalScroll).styles.height = max(min(self._num_lines, room), 1)
        self.call_after_refresh(self._update_hint)

    def _lines(self, sections: Mapping[str, Notes], most: int, width: int) -> list[Content]:
        """Returns the entries that contain the wanted text, in as few lines as possible.

        Args:
            sections: The entries of each section, by its title.
            most: The cells of terms, at most.
            width: The cells of a line.
        """
        matching = {
            title: [entry for entry in entries if self._wanted in " ".join(entry).casefold()]
            for title, entries in sections.items()
        }
        longest = max((len(term) for notes in matching.values() for term, _ in notes), default=0)
        narrow = self.app.size.width < NARROW
        term_width = min(longest, NARROW_TERM if narrow else most) + 2
        layouts = []
        for number in range(1, max((width + _GAP) // (_LEAST + _GAP), 1) + 1):
            column = (width + _GAP) // number - _GAP
            columns = balanced(_entries(matching, term_width, column), number)
            layouts.append(_side_by_side(columns, column))
        return min(layouts, key=len)


def _entries(sections: Mapping[str, Notes], term: int, width: int) -> list[list[Content]]:
    """Returns the lines of each entry. A title is with the first entry of its section.

    Args:
        sections: The entries of each section, by its title.
        term: The cells of terms, with the gap before their meanings.
        width: The cells of a line.
    """
    listed: list[list[Content]] = []
    for title, notes in sections.items():
        for index, (left, right) in enumerate(notes):
            column = max(term, len(left) + 2) + 2
            lines = entry(f"  {left}", right, column, width).split("\n")
            if index == 0:
                above = [Content("")] if listed else []
                listed.append([*above, Content.styled(title, "bold $primary"), *lines])
            elif left:
                listed.append(lines)
            else:  # the entry above goes on
                listed[-1] += lines
    return listed


def balanced(entries: Sequence[list[Content]], number: int) -> list[list[Content]]:
    """Returns entries in at most `number` columns of about the same height.

    No entry is divided, and none of the columns begins with a blank line.
    """
    height = -(-sum(map(len, entries)) // number)
    while True:
        columns: list[list[Content]] = [[]]
        for lines in entries:
            if columns[-1] and len(columns[-1]) + len(lines) > height:
                columns.append([])
            columns[-1] += lines if columns[-1] or lines[0].plain else lines[1:]
        if len(columns) <= number:
            return columns
        height += 1


def _side_by_side(columns: Sequence[list[Content]], width: int) -> list[Content]:
    """Returns the lines of columns that are `width` cells wide."""
    lines: list[Content] = []
    for cells in zip_longest(*columns, fillvalue=Content("")):
        padded = [cell + " " * (width + _GAP - cell.cell_length) for cell in cells[:-1]]
        lines.append(Content("").join([*padded, cells[-1]]))
    return lines


def grouped(bindings: Iterable[Binding]) -> dict[str, list[tuple[list[Binding], str]]]:
    """Returns for each group its actions, each with all of its keys."""
    actions: dict[tuple[str, str], list[Binding]] = {}
    for binding in bindings:
        actions.setdefault((group_of(binding), binding.tooltip or binding.description), []).append(
            binding
        )
    listed: dict[str, list[tuple[list[Binding], str]]] = {}
    for group in GROUPS.values():
        listed[group] = [
            (keys, description) for (name, description), keys in actions.items() if name == group
        ]
    return listed
