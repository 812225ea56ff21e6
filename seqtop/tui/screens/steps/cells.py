"""The columns and the cells of the list of steps, as pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from rich.cells import cell_len

from seqtop.state.step_costs import TIME_PARTS
from seqtop.state.step_summary import StepSummary, limited_by
from seqtop.text import format as fmt
from seqtop.text.column_layout import UNLIMITED, Column, fit
from seqtop.tui.rendering.bars import bar
from seqtop.tui.rendering.charts import TIME_SIGNS, stacked_cells
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, merged
from seqtop.wire.messages import EngineInfo

Cell: TypeAlias = Callable[[StepSummary, EngineInfo | None, int], Line]
"""Draws a cell for a step, the engine that ran it and a width."""

_RESTARTED: StyledText = ("engine restarted; ", "accent")


@dataclass(frozen=True, kw_only=True)
class StepColumn(Column):
    """A column of the list of steps."""

    help: str
    """Its meaning, for the help."""
    cell: Cell
    occurs: Callable[[StepSummary], object] | None = None
    """Returns whether a step has its figure, if few steps have; `None` for the other columns."""


@lru_cache(maxsize=64)
def arrange(width: int, occurring: frozenset[str]) -> tuple[StepColumn, ...]:
    """Returns the columns that fit into `width` cells, one cell apart.

    Args:
        width: The cells of a row.
        occurring: The keys of the columns of `RARE` that some step on display had a figure for.
            The others are left out.
    """
    columns = [column for column in COLUMNS if column.occurs is None or column.key in occurring]
    return fit(columns, width)


def row(
    columns: tuple[StepColumn, ...],
    step: StepSummary,
    info: EngineInfo | None,
    *,
    restarted: bool = False,
) -> Line:
    """Returns the row of one step.

    Args:
        columns: The columns, with the widths that they have in the table.
        step: The step's figures.
        info: The engine that ran the step.
        restarted: Whether the engine was restarted just before the step.
    """
    spans: list[StyledText] = []
    for index, column in enumerate(columns):
        if index:
            spans.append((" ", PLAIN))
        cell = column.cell(step, info, column.width)
        if restarted and column.key == "limit":
            cell = fitted((_RESTARTED, *cell), column.width)
        spans.extend(cell)
    return tuple(spans)


def share_bar(step: StepSummary, width: int) -> Line:
    """Returns the breakdown of the time from the step before to the end of this one as a bar."""
    period = step.period
    parts = step.parts
    shares = [parts.get(part, 0.0) / period if period > 0 else 0.0 for part in TIME_PARTS]
    return merged(stacked_cells(shares, [TIME_SIGNS[part] for part in TIME_PARTS], width))


def _batch(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    prefills, decodes = len(step.chunks), step.num_decodes
    spans: list[StyledText] = []
    for number, glyph, style in ((prefills, "◐", "prefill"), (decodes, "●", "running")):
        text = f"{glyph}{fmt.count(number)}".ljust(4)
        spans.append((text, style) if number else (" " * 4, PLAIN))
    return fitted((spans[0], (" ", PLAIN), spans[1]), width)


def _tokens(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    budget = info.max_num_batched_tokens if info is not None else None
    if budget is None:
        return fitted(((fmt.count(step.num_tokens), PLAIN),), width)
    numbers = f" {fmt.count(step.num_tokens)}/{fmt.count(budget)}"
    size = max(width - max(cell_len(numbers), 10), 0)
    parts = (
        (step.stats.num_prefill_tokens, "prefill", "█"),
        (step.stats.num_decode_tokens, "running", "━"),
    )
    return fitted(
        (
            *bar(size, budget, parts),
            (numbers.rjust(width - size), PLAIN),
        ),
        width,
    )


def _limit(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    return fitted(((limited_by(step, info), "waiting" if step.waits else "dim"),), width)


def _swaps(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    text = " ".join(
        f"{arrow}{fmt.count(number)}"
        for arrow, number in (("⇣", step.num_swapped_out), ("⇡", step.num_swapped_in))
        if number
    )
    return _right(text or "0", width, "swapped" if text else "dim")


def _preempt(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    number = step.num_preemptions
    if not number:
        return _right("0", width, "dim")
    return _right(f"↺{fmt.count(number)}", width, "preempted")


def _kv(step: StepSummary, info: EngineInfo | None, width: int) -> Line:
    total = info.num_gpu_blocks if info else None
    return _right(fmt.percent(step.stats.num_used_blocks, total), width, PLAIN)


def _chunks(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    shown = "+".join(fmt.count(chunk) for chunk in step.chunks[:width])
    return fitted(((shown, "prefill"),), width)


def _host(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
    """Returns the time between the step before and this one, without what was waited on purpose."""
    if step.gap is not None and step.was_idle:
        return _right("idle", width, "dim")
    host = None if step.gap is None else step.parts.get("host", 0.0)
    return _right(fmt.seconds(host), width, PLAIN if host else "dim")


def _right(text: str, width: int, style: str) -> Line:
    return fitted(((text.rjust(width), style),), width)


def _number(
    of: Callable[[StepSummary], float | None], shown: Callable[[float | None], str] = fmt.count
) -> Cell:
    """Returns a cell with a right-aligned figure; zero is dim."""

    def cell(step: StepSummary, _: EngineInfo | None, width: int) -> Line:
        value = of(step)
        return _right(shown(value), width, PLAIN if value else "dim")

    return cell


COLUMNS = (
    StepColumn(
        key="step",
        title="Step",
        help="its number",
        width=7,
        priority=0,
        cell=lambda step, _, width: _right(fmt.count(step.step), width, "strong"),
    ),
    StepColumn(
        key="clock",
        title="Time",
        help="the time at which its outputs had been processed",
        width=12,
        priority=5,
        cell=lambda step, _, width: fitted(((fmt.clock(step.time), "dim"),), width),
    ),
    StepColumn(
        key="batch",
        title="Batch",
        help="sequences in prefill (◐) and decode (●)",
        width=9,
        priority=0,
        right=False,
        cell=_batch,
    ),
    StepColumn(
        key="tokens",
        title="Tokens",
        help="prefill (█) and decode (━) tokens, of max_num_batched_tokens",
        width=15,
        max_width=UNLIMITED,
        share=1 / 8,
        priority=0,
        right=False,
        cell=_tokens,
    ),
    StepColumn(
        key="limit",
        title="Limited by",
        help="why the head of the queue was not scheduled",
        width=27,
        min_width=1,
        max_width=32,
        priority=0,
        right=False,
        cell=_limit,
    ),
    StepColumn(
        key="chunks",
        title="Chunks",
        help="tokens of each chunk of a prefill",
        width=16,
        priority=9,
        right=False,
        cell=_chunks,
        occurs=lambda step: step.chunks,
    ),
    StepColumn(
        key="preempt",
        title="Pre",
        help="preemptions",
        width=3,
        priority=1,
        cell=_preempt,
    ),
    StepColumn(
        key="waiting",
        title="Wait",
        help="requests that wait after it",
        width=5,
        priority=4,
        cell=_number(lambda step: step.stats.num_waiting),
    ),
    StepColumn(
        key="swaps",
        title="Swaps",
        help="blocks out to (⇣) and in from (⇡) host memory",
        width=7,
        priority=6,
        cell=_swaps,
        occurs=lambda step: step.num_swapped_out or step.num_swapped_in,
    ),
    StepColumn(
        key="copies",
        title="Copy",
        help="copied blocks",
        width=4,
        priority=8,
        cell=_number(lambda step: step.num_copied),
        occurs=lambda step: step.num_copied,
    ),
    StepColumn(
        key="kv",
        title="KV",
        help="share of the blocks that is in block tables",
        width=5,
        priority=2,
        cell=_kv,
    ),
    StepColumn(
        key="blocks",
        title="Used",
        help="blocks in block tables",
        width=6,
        priority=8,
        cell=_number(lambda step: step.stats.num_used_blocks),
    ),
    StepColumn(
        key="time",
        title="Took",
        help="seconds from the start of scheduling to the outputs",
        width=7,
        priority=1,
        cell=_number(lambda step: step.duration, fmt.seconds),
    ),
    StepColumn(
        key="host",
        title="Host",
        help="seconds between the step before and this one, not those paced on purpose",
        width=7,
        priority=3,
        cell=_host,
    ),
    StepColumn(
        key="shares",
        title="Breakdown",
        help="parts of the time since the step before, by their signs",
        width=12,
        max_width=UNLIMITED,
        priority=3,
        right=False,
        cell=lambda step, _, width: share_bar(step, width),
    ),
    StepColumn(
        key="scheduler",
        title="Sched",
        help="seconds of scheduling",
        width=7,
        priority=7,
        cell=_number(lambda step: step.stats.scheduler_time, fmt.seconds),
    ),
    StepColumn(
        key="forward",
        title="Forward",
        help="seconds of the forward pass",
        width=7,
        priority=7,
        cell=_number(lambda step: step.stats.model_forward_time, fmt.seconds),
    ),
    StepColumn(
        key="execute",
        title="Ex-fwd",
        help="seconds of executing the model outside of the forward pass",
        width=7,
        priority=7,
        cell=_number(lambda step: step.parts.get("execute"), fmt.seconds),
    ),
    StepColumn(
        key="rest",
        title="Rest",
        help="seconds of processing the outputs, and what else is in the step",
        width=7,
        priority=7,
        cell=_number(lambda step: step.parts.get("rest"), fmt.seconds),
    ),
)
RARE = {column.key: column.occurs for column in COLUMNS if column.occurs is not None}
"""By the key of each column that is hidden until it has a figure, whether a step has one."""
