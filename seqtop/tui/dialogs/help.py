"""The help: all keys, read from the bindings, and the filter language."""

from collections.abc import Iterable, Mapping

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


def notes_about(info: EngineInfo | None, on_screen: Notes) -> Mapping[str, Notes]:
    """Returns the notes on a screen of an engine.

    Args:
        info: The engine; first come the notes on what it cannot give.
        on_screen: The words of the screen.
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
    }


def _names(field: Field) -> str:
    """Returns the title of a field, and its key if a filter cannot guess that."""
    return field.title if field.title.lower() == field.key else f"{field.title} ({field.key})"


WIDE = 130
"""From this width on, the notes are beside the keys."""
NARROW = 60
"""Below this width the left column has `NARROW_COLUMN` cells instead of `COLUMN`."""
COLUMN, NARROW_COLUMN = 28, 9
_UNWRAPPED = 1_000
"""A width in which every entry takes one line."""


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
        self.set_class(self.app.size.width >= WIDE, "-wide")
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
        contents = []
        for name, sections in (("#help-content", keys), ("#help-notes", self._notes)):
            part = self.query_one(name, Static)
            contents.append(self._content(sections, part.content_size.width or _UNWRAPPED))
            part.update(contents[-1])
        if not any(contents):
            part.update("Nothing here contains that text; Esc ends the search.")

    def _content(self, sections: Mapping[str, Notes], width: int) -> Content:
        """Returns the entries that contain the wanted text, below the title of their section."""
        column = COLUMN if self.app.size.width >= NARROW else NARROW_COLUMN
        lines: list[Content] = []
        for title, entries in sections.items():
            matching = [entry for entry in entries if self._wanted in " ".join(entry).casefold()]
            if not matching:
                continue
            lines.append(Content.styled(title, "bold $primary"))
            lines += [entry(f"  {left}", right, column + 2, width - 1) for left, right in matching]
            lines.append(Content(""))
        return Content("\n").join(lines)


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
