"""Dialogs that ask for one key or one number or show a text, and the base class of all dialogs."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label, OptionList, Static

from seqtop.state import RequestState, SequenceState
from seqtop.state.compare import ComparedLine
from seqtop.state.fields import FIELDS
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_json, safe_line, without_controls
from seqtop.tui.laid_out_once import LaidOutOnce
from seqtop.tui.rendering.wrapped_text import wrap

Answer = TypeVar("Answer")


class Dialog(LaidOutOnce, ModalScreen[Answer]):
    """A dialog that returns one result, even if Enter is pressed again before it closes."""

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        if not self.is_active:
            return AwaitComplete()
        return super().dismiss(result)

    @property
    def list_width(self) -> int:
        """The cells of a line of a list in the dialog, beside its scroll bar."""
        return max(min(_WIDTH, self.app.size.width) - 7, 1)

    def fit_to_list(self) -> None:
        """Makes the dialog as high as its list, as far as the terminal is."""
        options = self.query_one(OptionList).options
        num_lines = sum(str(option.prompt).count("\n") + 1 for option in options)
        self.query_one(".dialog").styles.max_height = num_lines + _OTHER_LINES


_WIDTH = 76
"""The width of a dialog, unless its styles say otherwise."""
_OTHER_LINES = 6
"""The border, the title and the hint, with the margins between."""


def entry(term: str, about: str, column: int, width: int, *, style: str = "bold") -> Content:
    """Returns a term and its meaning, of which each line begins in the same column.

    Args:
        term: The term.
        about: Its meaning.
        column: The cells before the meaning.
        width: The cells of a line.
        style: The style of the term.
    """
    first, *others = wrap(about, width - column)
    lines = [Content.assemble((f"{term:<{column}}", style), about[slice(*first)])]
    lines += [Content(" " * column + about[slice(*span)]) for span in others]
    return Content("\n").join(lines)


def choices(*keys: tuple[str, str]) -> Content:
    """Returns keys and what they do, a line each."""
    styled = "bold $footer-key-foreground"
    return Content("\n").join(Content.assemble((key, styled), f"  {what}") for key, what in keys)


class Confirm(Dialog[bool]):
    """Asks a question; returns whether the answer is yes."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = safe_line(question)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(self._question, classes="dialog-title", markup=False)
            yield Label(choices(("y", "yes"), ("n", "no")))

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class BlockPrompt(Dialog[int | None]):
    """Asks for a block number; returns it, or `None`.

    Args:
        num_blocks: The number of blocks of the device, which are numbered from 0.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape", "dismiss", "Cancel"),
    ]

    def __init__(self, num_blocks: int) -> None:
        super().__init__()
        self._range = f", 0 to {num_blocks - 1}" if num_blocks else ""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label(f"Go to block{self._range}", classes="dialog-title")
            yield Input(type="integer", max_length=15, compact=True, id="number")
            yield Static("", id="number-error", markup=False)
            yield Label("Enter confirms, Esc cancels", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss(int(event.value))
        except ValueError:
            self.query_one("#number-error", Static).update("Type the number of a block.")


class ComparisonDialog(Dialog[None]):
    """Shows what differs between the marked moment and the one on display.

    Args:
        lines: The lines of `seqtop.state.compare.describe`.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("escape,q,B,enter", "dismiss", "Close"),
    ]

    def __init__(self, lines: Sequence[ComparedLine]) -> None:
        super().__init__()
        self._text = Content("\n").join(map(_compared_line, lines))
        self._num_lines = len(lines)

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as dialog:
            dialog.styles.max_height = self._num_lines + _OTHER_LINES
            yield Label("What differs between two moments", classes="dialog-title")
            with VerticalScroll(id="comparison-scroll"):
                yield Static(self._text, id="comparison")
            yield Label("Esc closes, ↑ ↓ scroll", classes="dialog-hint")

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()


def _compared_line(line: ComparedLine) -> Content:
    """Returns a line of a comparison, with the change at its end in colour."""
    text = safe_line(line.text)
    before, space, change = text.rpartition(" ")
    if line.is_better is None or not space:
        return Content(text)
    style = "$text-success" if line.is_better else "$text-error"
    return Content.assemble(f"{before} ", (change, style))


class CopyDialog(Dialog[str | None]):
    """Asks for the part to copy; returns a key of `copies`, or `None`."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("t", "take('text')", "Text"),
        Binding("r", "take('request id')", "Request id"),
        Binding("j", "take('row as JSON')", "Row as JSON"),
        Binding("escape,y,q", "dismiss", "Cancel"),
    ]

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Copy", classes="dialog-title")
            yield Label(choices(("t", "text"), ("r", "request id"), ("j", "row, as JSON")))
            yield Label("Esc cancels", classes="dialog-hint")

    def action_take(self, what: str) -> None:
        self.dismiss(what)


class RecordDialog(Dialog[str | None]):
    """Asks for the time to record; returns `past` or `future`, or `None`.

    Args:
        num_steps: The number of steps in the history.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("s", "take('past')", "Save the past"),
        Binding("r", "take('future')", "Record from now on"),
        Binding("escape,R,q", "dismiss", "Cancel"),
    ]

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._past = f"save the past: {fmt.plural(num_steps, 'step')}"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Label("Record", classes="dialog-title")
            yield Label(choices(("s", self._past), ("r", "record from now on, until R again")))
            yield Label("Esc cancels", classes="dialog-hint")

    def action_take(self, what: str) -> None:
        self.dismiss(what)


def copies(request: RequestState, sequence: SequenceState, now: float) -> dict[str, str]:
    """Returns the parts of a sequence that can be copied, by name."""
    row = {key: field.value(request, sequence, now) for key, field in FIELDS.items()}
    encodable = {key: _encodable(it) if isinstance(it, str) else it for key, it in row.items()}
    return {
        "text": without_controls(_encodable(sequence.text), kept="\n\t"),
        "request id": without_controls(_encodable(request.request_id)),
        "row as JSON": safe_json(msgspec.json.encode(encodable).decode()),
    }


def _encodable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 cannot encode."""
    return text.encode(errors="replace").decode()
