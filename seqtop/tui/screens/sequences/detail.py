"""The detail pane of the selected sequence."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Vertical
from textual.message import Message

from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import sequence_name, stage, status_word
from seqtop.state.groups import Group
from seqtop.state.status_sentence import status_sentence
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.checks import sequence_sentence
from seqtop.tui.navigation import findings_about
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.sequence_label import glyph
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.screens.sequences.block_table import BlockTablePane
from seqtop.tui.screens.sequences.latency_parts import LatencyParts
from seqtop.tui.screens.sequences.raw_messages import RawMessages
from seqtop.tui.screens.sequences.request_timeline import RequestTimeline
from seqtop.tui.screens.sequences.selected_explanation import SelectedExplanation
from seqtop.tui.screens.sequences.text_pane import TextPane
from seqtop.tui.screens.sequences.tokens import Tokens
from seqtop.tui.screens.sequences.wait_tree import WaitTree
from seqtop.tui.ui_state import EVERYTHING, Changes, UiState

TABS = ("Text", "Blocks", "Timeline", "Tokens", "Latency", "Waits for", "Raw")
LEAST_PARTS = 4
"""The lines of the pane that the sentence leaves: the headline, tabs and two lines below."""
_TEXT, _TOKENS, LATENCY, WAITS, _RAW = 0, 3, 4, 5, 6
_ALTERNATIVES = (_TEXT, _TOKENS, LATENCY, WAITS, _RAW)
"""The parts that are shown one at a time, even where all others are shown."""


def arrangement(width: int, height: int) -> str:
    """Returns the layout of a pane: `stacked`, two `columns`, or one part at a time in `tabs`."""
    if height >= 31:
        return "stacked"
    if width >= 110 and height >= 14:  # 15 in a terminal of 40 lines, less one for a notice
        return "columns"
    return "tabs"


class Detail(Vertical):
    """A headline and a sentence, then text, blocks and timeline where there is room."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="detail")
        self._ui = ui
        self._summary = LineView(id="summary")
        self._tabs = DetailTabs()
        self._facts = Container(id="facts")
        self._summary_height = 0
        self._sequence_shown: int | None = None
        """The sequence that the parts are about."""
        self.explanation = SelectedExplanation(ui)
        # In the order of TABS.
        self._parts = (
            TextPane(ui),
            BlockTablePane(ui),
            RequestTimeline(ui),
            Tokens(ui),
            LatencyParts(ui, self.explanation),
            WaitTree(ui),
            RawMessages(ui),
        )

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._tabs
        with Container(id="parts"):
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
        """Draws the changes of a changes. Called under the lock of `ui`."""
        if not self.display:
            return
        before, self._sequence_shown = self._sequence_shown, self._ui.cursor.seq_id
        self._update_summary()  # the reason for waiting changes without a change of the sequence
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
        self._facts.display = not tabbed or active not in _ALTERNATIVES
        with self._ui.lock:
            self.show(EVERYTHING)

    def on_mount(self) -> None:
        self._summary.border_title = "Sequence"
        self.turn_to(0)

    def on_resize(self) -> None:
        now = arrangement(self.size.width, self.size.height)
        for name in ("stacked", "columns", "tabs"):
            self.set_class(name == now, f"-{name}")
        self._arrange()

    def on_detail_tabs_clicked(self, message: "DetailTabs.Clicked") -> None:
        self.turn_to(message.tab)

    def _update_summary(self) -> None:
        if not self.size:
            return
        width = max(self._summary.size.width - 2, 1)
        row_id, selection = self._ui.cursor.seq_id, self._ui.selection
        group = None if row_id is None else self._ui.view.grouped.group(row_id)
        self.set_class(group is not None, "-group")
        if group is not None:
            stats = self._ui.state.stats
            head = group_headline(group, None if stats is None else stats.num_used_blocks, width)
            sentence = group_sentence(group)
        elif selection is not None:
            head, sequence = headline(*selection, width), selection[1]
            findings = findings_about(self._ui, sequence)
            status = status_sentence(self._ui.state, self._ui.view, sequence)
            sentence = safe_line(f"{sequence_sentence(findings)} {status}".lstrip())
        else:
            self._summary.set_lines([(("No sequence is selected.", "dim"),)])
            return
        breaks = wrap(sentence, width)
        # The answer stands in the sentence, so the parts below it leave it all but their tabs and
        # a line.
        height = 1 + min(len(breaks), max(self.size.height - LEAST_PARTS, 2))
        outer = height + self._summary.gutter.height
        if self._summary_height != outer:
            self._summary.styles.height = self._summary_height = outer
        lines = [head]
        lines += [((sentence[start:end], PLAIN),) for start, end in breaks[: height - 1]]
        if len(breaks) >= height:  # the end of the sentence is cut off
            start, end = wrap(sentence, width - 2, breaks[height - 2][0])[0]
            lines[-1] = ((f"{sentence[start:end].rstrip()} …", PLAIN),)
        self._summary.set_lines(lines)


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
        return [((*names, ("  [ ] switch", "dim")), PLAIN)]

    def on_click(self, event: events.Click) -> None:
        right = 0
        for index, name in enumerate(TABS):
            right += len(name) + 2
            if event.x < right:
                self.post_message(self.Clicked(index))
                return


def headline(request: RequestState, sequence: SequenceState, width: int) -> Line:
    """Returns the name, the status and the request's parameters in one line."""
    sign, style = glyph(request, sequence)
    at = stage(sequence)
    params = request.sampling_params
    parameters = []
    if params is not None:
        parameters.append((3, ((f"max {fmt.count(params.max_tokens)} tokens", "dim"),)))
        parameters.append((4, ((f"temperature {params.temperature:g}", "dim"),)))
    elif request.pooling_params is not None:
        parameters.append((3, (("pooling", "dim"),)))
    return row(
        [
            (0, ((safe_line(sequence_name(request, sequence)), "title"),)),
            (1, ((f"{sign} {status_word(request, sequence)}", style),)),
            (2, ((at.name.lower(), style),) if at else ()),
            (5, ((f"seq {sequence.seq_id}", "dim"),)),
            (2, ((f"{fmt.count(sequence.num_prompt_tokens)} prompt", "dim"),)),
            (2, ((f"{fmt.count(len(sequence.output_token_ids))} out", "dim"),)),
            (5, _drafts(sequence)),
            *parameters,
            (6, ((f"priority {fmt.count(request.priority)}", "dim"),) if request.priority else ()),
        ],
        width,
    )


def group_headline(group: Group, num_used_blocks: int | None, width: int) -> Line:
    """Returns the name and the present figures of a group in one line.

    Args:
        group: The figures of the group.
        num_used_blocks: The blocks in any table, of which the group has a share; `None` if unknown.
        width: The cells of the line.
    """
    blocks = fmt.plural(group.num_blocks, "block")
    if num_used_blocks:
        blocks += f", {fmt.percent(group.num_blocks, num_used_blocks)} of those in use"
    return row(
        [
            (0, ((safe_line(group.name) or "(none)", "title"),)),
            (0, ((fmt.plural(group.num_requests, "request"), "strong"),)),
            (1, ((f"● {fmt.count(group.num_running)} running", "running"),)),
            (1, ((f"○ {fmt.count(group.num_waiting)} waiting", "waiting"),)),
            (2, ((blocks, "computed"),)),
        ],
        width,
    )


def group_sentence(group: Group) -> str:
    """Returns the sums of a group in one sentence."""
    parts = [
        f"{group.num_prompt_tokens:,} prompt and {group.num_output_tokens:,} output tokens",
        fmt.plural(group.num_preemptions, "preemption"),
        f"{fmt.seconds(group.waited)} in the queue",
    ]
    if group.ttft is not None:
        parts.append(f"median TTFT {fmt.seconds(group.ttft)}")
    if group.harm is not None:
        parts.append(f"delayed others, or each other, for {fmt.seconds(group.harm)}")
    return f"All its requests together: {'; '.join(parts)}."


def _drafts(sequence: SequenceState) -> Line:
    """Returns the number of accepted draft tokens, if any were drafted."""
    if not sequence.num_draft_tokens:
        return ()
    accepted, drafted = (
        fmt.count(sequence.num_accepted_tokens or 0),
        fmt.count(sequence.num_draft_tokens),
    )
    return ((f"{accepted} of {drafted} drafted", "dim"),)
