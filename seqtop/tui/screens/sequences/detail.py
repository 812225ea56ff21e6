"""The detail pane of the selected sequence."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.geometry import Size
from textual.message import Message
from textual.reactive import Reactive

from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.screens.sequences.block_table import BlockTablePane
from seqtop.tui.screens.sequences.group_holders import GroupHolders
from seqtop.tui.screens.sequences.latency_parts import LatencyParts
from seqtop.tui.screens.sequences.raw_messages import RawMessages
from seqtop.tui.screens.sequences.request_timeline import RequestTimeline
from seqtop.tui.screens.sequences.selected_explanation import SelectedExplanation
from seqtop.tui.screens.sequences.summary import Summary
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.tui.screens.sequences.tokens import TokenList
from seqtop.tui.screens.sequences.wait_tree import WaitTree
from seqtop.tui.ui_state import EVERYTHING, Changes, UiState

TABS = ("Text", "Blocks", "Timeline", "Tokens", "Latency", "Waits for", "Raw")
LEAST_PARTS = 4
"""The lines of the pane that the sentence leaves: the headline, tabs and two lines below."""
LEAST_STACKED = 35
"""The lines of a pane in which all parts are shown one above the other."""
_TEXT, _BLOCKS, _TIMELINE, _TOKENS, LATENCY, WAITS, _RAW = range(7)
_ALTERNATIVES = (_TEXT, _TOKENS, LATENCY, WAITS, _RAW)
"""The parts that are shown one at a time, even where all others are shown."""


def arrangement(size: Size) -> str:
    """Returns the layout of a pane: `stacked`, two `columns`, or one part at a time in `tabs`.

    Args:
        size: The cells of the pane, with its frame: a layout has a frame or has none.
    """
    if size.height >= LEAST_STACKED:
        return "stacked"
    if size.width >= 114 and size.height >= 16:  # 17 in a terminal of 40 lines, less a notice
        return "columns"
    return "tabs"


class Parts(Container):
    """The parts of the pane."""

    BLANK = True  # what is in it covers it

    class Resized(Message):
        """The size has changed."""

    def on_resize(self) -> None:
        self.post_message(self.Resized())


class SequenceFacts(Container):
    """The timeline and the blocks, as high as they are."""

    # Nothing scrolls in it. Textual lays the screen out again when this changes, which may show a
    # scroll bar.
    virtual_size = Reactive(Size(0, 0), layout=False)


class Detail(Vertical):
    """A headline and a sentence, then text, blocks and timeline where there is room."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="detail")
        self._ui = ui
        self._summary = Summary(ui)
        self._tabs = DetailTabs()
        self._holders = GroupHolders(ui)
        self._body = Parts(id="parts")
        self._facts = SequenceFacts(id="facts")
        self._sequence_shown: int | None = None
        """The sequence that the parts are about."""
        self._most_blocks: int | None = None
        """The limit on the height of the blocks."""
        self.explanation = SelectedExplanation(ui)
        # In the order of TABS.
        self._parts = (
            TextPane(ui),
            BlockTablePane(ui),
            RequestTimeline(ui),
            TokenList(ui),
            LatencyParts(ui, self.explanation),
            WaitTree(ui),
            RawMessages(ui),
        )

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._holders
        yield self._tabs
        with self._body:
            text, blocks, timeline, tokens, latency, waits, raw = self._parts
            with self._facts:
                yield timeline
                yield blocks
            yield text
            yield tokens
            yield latency
            yield waits
            yield raw

    def show(self, changes: Changes) -> None:
        """Draws what has changed. Called under the lock of `ui`."""
        if not self.display:
            return
        before, self._sequence_shown = self._sequence_shown, self._ui.cursor.seq_id
        row_id = self._sequence_shown
        is_group = row_id is not None and self._ui.view.grouped.group(row_id) is not None
        self.set_class(is_group, "-group")
        # Drawn always: the reason for waiting changes without a change of the sequence. The answer
        # stands in the sentence, so the parts below it leave it all but their tabs and a line.
        self._summary.update(most=max(self.size.height - LEAST_PARTS, 2))
        if is_group:
            self._holders.update()
        is_another = self._sequence_shown != before
        if (
            changes.touched is None
            or changes.ticked
            or is_another
            or self._sequence_shown in changes.touched
            or (self.explanation.is_incomplete and self.is_shown(LATENCY))
        ):
            for part in self._parts:
                if part.display:
                    part.update()
            self._share_height()

    def _share_height(self) -> None:
        """Limits the blocks to half of the lines below the timeline; the text has the others."""
        timeline, blocks = self._parts[_TIMELINE], self._parts[_BLOCKS]
        most = None
        if self.has_class("-stacked"):
            height = timeline.virtual_size.height + timeline.gutter.height
            most = max((self._body.size.height - height) // 2, 1)
        if most != self._most_blocks:  # to set `None` lays out the screen, whatever it was before
            blocks.styles.max_height = self._most_blocks = most

    def is_shown(self, tab: int) -> bool:
        """Returns whether a part, by its index in `TABS`, is visible."""
        return self.display and self._parts[tab].display

    def turn_to(self, tab: int) -> None:
        """Shows another part, where they do not fit side by side."""
        self._tabs.active = tab % len(TABS)
        self._tabs.refresh_changed()
        self._arrange()

    def turn(self, by: int) -> None:
        tabs = range(len(TABS)) if self.has_class("-tabs") else _ALTERNATIVES
        here = tabs.index(self._tabs.active) if self._tabs.active in tabs else 0
        self.turn_to(tabs[(here + by) % len(tabs)])

    def _arrange(self) -> None:
        """Shows and hides the parts according to the layout."""
        active = self._tabs.active
        tabbed = self.has_class("-tabs")
        shared = active if active in _ALTERNATIVES else _TEXT
        for index, part in enumerate(self._parts):
            part.display = index == (
                active if tabbed else shared if index in _ALTERNATIVES else index
            )
        # In columns there are facts beside the text; the lines of the others need the whole width.
        has_facts = shared == _TEXT or not self.has_class("-columns")
        self._facts.display = active not in _ALTERNATIVES if tabbed else has_facts
        with self._ui.lock:
            self.show(EVERYTHING)

    def on_mount(self) -> None:
        self.turn_to(0)

    def on_resize(self) -> None:
        now = arrangement(self.outer_size)
        for name in ("stacked", "columns"):
            self.set_class(name == now, f"-{name}")
        # Without new styles for all parts at each start of the app: they are those without a class.
        self.set_class(now == "tabs", "-tabs", update=False)
        self._tabs.set_class(now == "tabs", "-shown")
        self._arrange()

    def on_parts_resized(self) -> None:
        self._share_height()

    def on_fitting_pane_fitted(self) -> None:
        self._share_height()

    def on_detail_tabs_clicked(self, message: "DetailTabs.Clicked") -> None:
        self.turn_to(message.tab)


class DetailTabs(LineView):
    """The names of the parts. The visible one is highlighted."""

    class Clicked(Message):
        """The name of a part was clicked."""

        def __init__(self, tab: int) -> None:
            super().__init__()
            self.tab = tab

    active = 0

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        names: Line = tuple(
            (f" {name} ", "tab" if index == self.active else "dim")
            for index, name in enumerate(TABS)
        )
        return [((*names, ("  o O switch", "dim")), PLAIN)]

    def on_click(self, event: events.Click) -> None:
        right = 0
        for index, name in enumerate(TABS):
            right += len(name) + 2
            if event.x < right:
                self.post_message(self.Clicked(index))
                return
