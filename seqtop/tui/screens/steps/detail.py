"""One step in full: its figures, its events, and the sequences of its batch."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical

from seqtop.sequence import SequenceStatus
from seqtop.state import step_summary
from seqtop.state.fields import STATUS_WORDS
from seqtop.state.step_summary import StepSummary
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.bars import row, rows
from seqtop.tui.rendering.charts import TIME_SIGNS, part_name
from seqtop.tui.rendering.engine_figures import cuda_graph, encoder, lora_slots
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import ListView
from seqtop.tui.rendering.sequence_label import GLYPHS
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.rendering.wrapped_text import wrapped
from seqtop.tui.screens.steps.cells import share_bar
from seqtop.tui.screens.steps.step_log import StepLog
from seqtop.tui.ui_state import UiState
from seqtop.wire.batch import Member, members
from seqtop.wire.messages import EngineInfo, Step

MAX_SENTENCES = 4
"""The most preemptions, and waits, that are described; further ones are counted."""

_RESTARTED = "The engine was restarted before this step: step numbers begin again."
_NOT_SHOWN = -1
_WIDE = 90
"""The cells of a line from which on a member's columns are wider."""
LEAST_LINES, MOST_LINES = 8, 24
"""The lines of the pane, with its frame. Within them, it has as many as a step needs."""


class StepDetail(Vertical):
    """The details of the step under the cursor."""

    def __init__(self, ui: UiState, log: StepLog) -> None:
        super().__init__(id="step-detail")
        self._log = log
        self._facts = LineView(id="step-facts")
        self.members = Members(ui)
        self._position: int | None = _NOT_SHOWN
        self._tallest = 0
        """The most lines that a step has needed at this width."""
        self._width = 0

    def compose(self) -> ComposeResult:
        yield self._facts
        yield self.members

    def show(self, position: int | None) -> None:
        """Shows the step at `position`. Called under the lock of `ui`."""
        if position == self._position or not self.display or not self.size:
            return
        self._position = position
        step = None if position is None else self._log.step(position)
        if step is None or position is None:
            text = "No steps yet." if position is None else "This step cannot be read."
            self._facts.set_lines([((text, "dim"),)])
            self.members.set_members(())
            return
        restarted = self._log.is_after_restart(position)
        width = self._facts.text_width
        figures, info = self._log.summary(position), self._log.info(position)
        lines = facts(step, info, width, figures=figures, restarted=restarted)
        self._facts.styles.height = min(len(lines), max(self.size.height - 3, 1))
        self._facts.set_lines(lines)
        batch = tuple(members(step))
        self.members.set_members(batch)
        # The pane does not shrink: its border would move with the cursor.
        needed = len(lines) + self.members.gutter.height + len(batch) + self.gutter.height
        if needed > self._tallest:
            self._tallest = needed
            self.styles.max_height = min(max(needed, LEAST_LINES), MOST_LINES)

    def on_resize(self) -> None:
        if self._width != self.size.width:  # lines are broken anew
            self._width, self._tallest = self.size.width, 0
        position, self._position = self._position, _NOT_SHOWN
        if position != _NOT_SHOWN:
            with self.members.ui.lock:
                self.show(position)


class Members(ListView):
    """The list of sequences in a step's batch."""

    _ui: UiState

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._members: Sequence[Member] = ()
        self._has_drafts = self._has_blocks = False
        self._cursor = 0

    @property
    def ui(self) -> UiState:
        return self._ui

    @property
    def chosen(self) -> Member | None:
        """The sequence under the cursor."""
        return self._members[self._cursor] if self._members else None

    def set_members(self, members: Sequence[Member]) -> None:
        """Replaces the list and puts the cursor on its first row."""
        self._members = members
        updates = [member.update for member in members if member.update is not None]
        self._has_drafts = any(update.num_draft_tokens for update in updates)
        self._has_blocks = any(update.new_blocks for update in updates)
        self._cursor = 0
        self.set_height(len(members))
        self.scroll_to(y=0, animate=False)
        self.refresh_changed()

    @property
    def num_rows(self) -> int:
        return len(self._members)

    @property
    def cursor_row(self) -> int | None:
        return self._cursor if self._members else None

    @property
    def cursor_mark(self) -> str:
        return super().cursor_mark if self.has_focus else ""

    def page(self, start: int, stop: int) -> Sequence[int]:
        return range(max(start, 0), min(stop, len(self._members)))

    def is_selected(self, key: int) -> bool:
        return key == self._cursor

    def select(self, key: int) -> None:
        self._cursor = key
        self.reveal(key)
        self.refresh_changed()

    def line(self, key: int) -> Line:
        return member_line(
            self._members[key],
            self.text_width - 1,
            has_drafts=self._has_drafts,
            has_blocks=self._has_blocks,
        )

    def on_focus(self) -> None:
        self.refresh_changed()

    def on_blur(self) -> None:
        self.refresh_changed()


def facts(
    step: Step,
    info: EngineInfo | None,
    width: int,
    *,
    figures: StepSummary | None = None,
    restarted: bool = False,
) -> list[Line]:
    """Returns the figures of a step, its events in sentences, and the breakdown of its time.

    Args:
        step: The step.
        info: The engine that ran the step.
        width: The cells of a line.
        figures: The step's figures, with the time since the step before.
        restarted: Whether the engine was restarted just before the step.
    """
    figures = figures or step_summary.summarize(step)
    lines = [headline(figures, info, width)]
    sentences = [
        *([(_RESTARTED, "accent")] if restarted else ()),
        *(
            (step_summary.describe_preemption(preemption), "preempted")
            for preemption in step.preemptions[:MAX_SENTENCES]
        ),
        *(
            (step_summary.describe_wait(reason, info), "waiting")
            for reason in step.wait_reasons[:MAX_SENTENCES]
        ),
    ]
    if swapped := _moved_blocks(figures):
        sentences.append((swapped, "swapped"))
    num_others = max(len(step.preemptions) - MAX_SENTENCES, 0)
    num_others += max(len(step.wait_reasons) - MAX_SENTENCES, 0)
    if num_others:
        sentences.append((f"…and {fmt.count(num_others)} more.", "dim"))
    for sentence, style in sentences:
        lines += wrapped(safe_text(sentence), style, width)
    # Last: a short terminal has no room for all lines, and the table shows the times too.
    return [*lines, *_times(figures, width)]


def headline(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    """Returns the number, the time, the batch and the token budget of a step in one line."""
    stats = step.stats
    limit = info.max_num_batched_tokens if info else None
    budget = f" of {fmt.count(limit)}" if limit is not None else ""
    total = info.num_gpu_blocks if info else None
    prefills = (
        f"{fmt.plural(len(step.chunks), 'prefill')} of"
        f" {fmt.plural(stats.num_prefill_tokens, 'token')}"
    )
    return row(
        [
            (0, ((f"Step {fmt.count(step.step)}", "title"),)),
            (4, ((fmt.clock(step.time), "dim"),)),
            (1, ((f"{GLYPHS['prefill'][0]} {prefills}", "prefill"),) if step.chunks else ()),
            (1, ((f"● {fmt.plural(step.num_decodes, 'decode')}", "running"),)),
            (2, ((f"{fmt.count(step.num_tokens)}{budget} tokens", PLAIN),)),
            (0, ((step_summary.limited_by(step, info), "waiting" if step.waits else "dim"),)),
            (4, lora_slots(stats, info)),
            (4, cuda_graph(stats)),
            (4, encoder(stats, info)),
            (3, ((f"KV {fmt.percent(stats.num_used_blocks, total)}", PLAIN),)),
            (5, ((f"{fmt.count(stats.num_waiting)} waiting", "dim"),)),
        ],
        width,
    )


def _times(step: StepSummary, width: int) -> list[Line]:
    """Returns the time since the step before and its parts, which add up to it."""
    size = max(min(width // 4, 40), 8)
    gap = "" if step.gap is None else f", {fmt.seconds(step.period)} after the step before"
    if step.overlap > 0:
        gap = f", {fmt.seconds(step.overlap)} of it beside the step before"
    items: list[Line] = [
        ((f"took {fmt.seconds(step.duration)}", "strong"), (gap, "dim")),
        share_bar(step, size),
    ]
    parts = step.parts
    for part, sign in TIME_SIGNS.items():
        if part in parts:
            name = part_name(part, has_forward="forward" in parts)
            share = f" {fmt.percent(parts[part], step.period)}"
            figure = (fmt.seconds(parts[part]), PLAIN)
            items.append((sign, (f" {name} ", "dim"), figure, (share, "dim")))
    unknown = step.period - sum(parts.values())
    if unknown > step.period / 1000:
        items.append((("unknown ", "dim"), (fmt.seconds(unknown), PLAIN)))
    return rows(items, width, gap=2)


def _moved_blocks(step: StepSummary) -> str:
    moved = [
        f"{fmt.plural(number, 'block')} {what}"
        for number, what in (
            (step.num_swapped_out, "swapped out to host memory"),
            (step.num_swapped_in, "swapped in"),
            (step.num_copied, "copied"),
        )
        if number
    ]
    return f"{', '.join(moved)}." if moved else ""


def member_line(
    member: Member, width: int, *, has_drafts: bool = False, has_blocks: bool = True
) -> Line:
    """Returns one sequence of the batch: its request, its tokens and its progress.

    Args:
        member: The sequence.
        width: The cells of the line.
        has_drafts: Whether there is a column of draft tokens.
        has_blocks: Whether there is one of new blocks.
    """
    name, update = safe_text(member.request_id), member.update
    if SequenceStatus.is_finished(member.status):
        status = STATUS_WORDS[member.status]
        sign, style = GLYPHS[status]
    else:
        status = "prefill" if member.is_prompt else "decode"
        sign, style = GLYPHS["prefill" if member.is_prompt else "running"]
    num_tokens = member.num_tokens
    num_drafts = update.num_draft_tokens if update is not None else 0
    num_blocks = len(update.new_blocks) if update is not None else 0
    drafts = f"{fmt.count(num_drafts)} drafted" if num_drafts else ""
    blocks = f"+{fmt.plural(num_blocks, 'block')}" if num_blocks else ""
    name_width, gap = (18, "  ") if width >= _WIDE else (10, " ")
    line: Line = (
        *fitted(((name, "strong"),), name_width),
        (f" seq {member.seq_id:<5}", "dim"),
        (f" {sign} {status:<7}", style),
        (f"{fmt.count(num_tokens):>5} {'token' if num_tokens == 1 else 'tokens':<6}", PLAIN),
        (f"{gap}{drafts:<10}" if has_drafts else "", "dim"),
        (f"{gap}{f'{fmt.count(member.num_computed_tokens)} computed':<14}", "dim"),
        (f"{gap}{blocks:<10}" if has_blocks else "", "computed"),
    )
    if update is not None and update.text_delta:
        line = (*line, (f" {safe_text(update.text_delta[:width])}", "delta"))
    return fitted(tuple(span for span in line if span[0]), width)
