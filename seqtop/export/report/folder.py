"""The report of many recordings: a line for each, those that miss the objectives most first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from seqtop.export.report.page import TABLE, date_text, foot, head, html_text, verdict_html
from seqtop.history import FileStore, RecordingError
from seqtop.history.replay import Reader, Replay
from seqtop.state.slo import FIGURES, Slo
from seqtop.state.verdict import of_whole
from seqtop.text import format as fmt
from seqtop.whatif.figures import FigureCounter, RunFigures
from seqtop.wire.messages import Event

SHARE = 0.99
"""The share of the requests that have to meet all objectives."""


class RecordingSummary(msgspec.Struct, kw_only=True):
    """The figures of a recording in a report of many."""

    name: str
    """The name of the file."""
    problem: str = ""
    """The reason why it could not be read; empty if it could."""
    engine: str = ""
    """The name of the engine; empty if it is unknown."""
    start: float | None = None
    """Epoch seconds; `None` if it is unknown."""
    figures: RunFigures = msgspec.field(default_factory=RunFigures)
    num_unfinished: int = 0
    """Requests without an end in the recording."""
    verdict: str = ""
    """A sentence on what limited the engine."""

    @property
    def share_met(self) -> float | None:
        """The share of the requests that met all objectives; `None` without objectives or ends."""
        return self.figures.share_within_slo


class _FigureReader(Reader):
    """Counts the figures of a recording."""

    needs_state = False

    def __init__(self, slo: Slo) -> None:
        self.counter = FigureCounter(slo)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Counts an event."""
        self.counter.count(event)


def summarize(path: Path, slo: Slo) -> RecordingSummary:
    """Reads a recording; one that cannot be read has a summary with the reason."""
    name = path.name
    try:
        with FileStore(path) as recording:
            recording.require()
            reader = _FigureReader(slo)
            Replay(recording, [reader]).run()
            end = recording.at(recording.last)
            return RecordingSummary(
                name=name,
                problem=recording.damage or "",
                engine=end.info.engine_id if end.info else "",
                start=recording.at(recording.first).time
                or (end.info.start_time if end.info else None),
                figures=reader.counter.figures(),
                num_unfinished=len(end.requests) - len(end.finished),
                verdict=of_whole(end).sentence,
            )
    except RecordingError as error:
        return RecordingSummary(name=name, problem=str(error))


def write(summaries: Iterable[RecordingSummary], slo: Slo) -> Iterator[str]:
    """Yields the page of many recordings."""
    found = sorted(summaries, key=_order)
    title = fmt.plural(len(found), "recording")
    yield from head(title, is_wide=True)
    yield verdict_html(sentence(found, slo))
    columns = _columns(slo)
    heads = "".join(f'<th class="number">{title}</th>' for title in columns)
    yield f"{TABLE}<tr><th>Recording</th><th>Engine</th>{heads}<th>Limited by</th></tr>"
    for summary in found:
        yield _row(summary, columns.values())
    yield "</table></div>"
    yield (
        '<p class="dim">A share is that of the requests that ended, aborted ones apart. Those'
        " without an end are counted beside them.</p>"
    )
    yield foot("Of each recording, requests of its whole time are counted.")


def sentence(summaries: Sequence[RecordingSummary], slo: Slo) -> str:
    """Returns a sentence on the recordings that miss the objectives, and the worst of them."""
    if not slo:
        return "No objectives were given, so the longest TTFT comes first"
    limits = ", ".join(f"{FIGURES[key]} {fmt.seconds(limit)}" for key, limit in slo.limits.items())
    judged = [own for own in summaries if own.share_met is not None]
    missed = [own for own in judged if (own.share_met or 0.0) < SHARE]
    goal = f"{limits} for {SHARE:.0%} of the requests"
    if not judged:
        return f"No request ended, so nothing is known of {goal}"
    if not missed:
        return f"All of {len(judged):,} recordings with ended requests keep {goal}"
    engines = {own.engine for own in missed}
    worst = missed[0]
    found = ", ".join(filter(None, (f"{worst.share_met:.1%}", worst.verdict)))
    return (
        f"{len(missed):,} of {len(judged):,} recordings, of {fmt.plural(len(engines), 'engine')},"
        f" miss {goal}; the worst is {worst.name} of {worst.engine or 'an unknown engine'}:"
        f" {found}"
    )


def _order(summary: RecordingSummary) -> tuple[bool, float, float, str]:
    share = 2.0 if summary.share_met is None else summary.share_met
    return bool(summary.problem), share, -(summary.figures.ttft.p99 or 0.0), summary.name


def _columns(slo: Slo) -> dict[str, Callable[[RecordingSummary], str]]:
    """Returns the columns of figures: a title, and the text of a recording."""

    def time(value: float | None) -> str:
        return fmt.UNKNOWN if value is None else fmt.seconds(value)

    columns: dict[str, Callable[[RecordingSummary], str]] = {
        "Begin": lambda own: fmt.UNKNOWN if own.start is None else date_text(own.start),
        "Duration": lambda own: time(own.figures.makespan or None),
        "Requests": lambda own: f"{own.figures.num_requests:,}",
        "Unfinished": lambda own: f"{own.num_unfinished:,}",
    }
    if slo:
        columns["Met"] = lambda own: (
            fmt.UNKNOWN if own.share_met is None else f"{own.share_met:.1%}"
        )
    return columns | {
        "TTFT p50": lambda own: time(own.figures.ttft.p50),
        "TTFT p99": lambda own: time(own.figures.ttft.p99),
        "ITL p99": lambda own: time(own.figures.itl.p99),
        "Preemptions": lambda own: f"{own.figures.num_preemptions:,}",
    }


def _row(summary: RecordingSummary, columns: Iterable[Callable[[RecordingSummary], str]]) -> str:
    name, engine = html_text(summary.name), html_text(summary.engine)
    cells = "".join(f'<td class="number">{column(summary)}</td>' for column in columns)
    last = html_text("; ".join(filter(None, (summary.problem, summary.verdict))), limit=300)
    return f"<tr><td>{name}</td><td>{engine}</td>{cells}<td>{last}</td></tr>"
