"""Every benchmark runs, at a size that says nothing, and yields figures. How fast is not asked."""

import importlib
import math
import re

import msgspec
import pytest
from rich.console import Console

from benchmarks import report
from benchmarks.figure import Figure, Findings, Growth, Limit, amount
from benchmarks.machine import Machine
from benchmarks.report import Row
from benchmarks.running import ROWS, in_turn
from benchmarks.scenes import Crowd
from seqtop.state import EngineState

OF_ANOTHER_SCRIPT = "generation"
"""`engine.py` measures for minutes even in a hurry."""


def rows_of(findings: Findings, name: str = "painting") -> list[Row]:
    return [Row(name, "Paint", findings, Machine.now())]


@pytest.mark.release("measures for seconds")
@pytest.mark.parametrize("name", [*(name for name in ROWS if name != OF_ANOTHER_SCRIPT), "gpu"])
def test_a_row_yields_figures_with_a_target_and_a_peer(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    findings = module.measure(tiny=True)
    assert any(figure.met is not None for figure in findings.figures)
    assert any(figure.peer and figure.peer_value is not None for figure in findings.figures)
    for figure in findings.figures:
        assert math.isfinite(figure.value)
        assert figure.value >= 0
        assert figure.measured


def test_a_crowd_runs_from_its_arrivals_to_its_ends() -> None:
    long, short = Crowd(3), Crowd(3)
    steps = (long.step(range(3)) for _ in range(20))
    for events, num_tokens in (
        ((*long.arrivals(), *steps, *long.ends()), 21),
        ((short.info, *short.short_lives(5)), 5),
    ):
        state = EngineState()
        for event in events:
            state.apply(event)
        sequences = state.sequences.values()
        assert (state.num_finished, state.num_anomalies) == (3, 0)
        assert [len(sequence.output_token_ids) for sequence in sequences] == [num_tokens] * 3


@pytest.mark.release("measures for seconds")
def test_rows_are_run_in_processes_of_their_own() -> None:
    rows = in_turn(["seek"], tiny=True, console=Console(quiet=True))
    assert [row.name for row in rows] == ["seek"]
    assert rows[0].machine.cores >= 1


@pytest.mark.parametrize(("power", "slope"), [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)])
def test_the_slope_is_the_exponent(power: float, slope: float) -> None:
    growth = Growth("x", "rows", "ms", [(size, 3 * size**power) for size in (1, 10, 100)], 1.0)
    assert growth.slope == pytest.approx(slope)


def test_amounts_are_for_people() -> None:
    shown = [
        amount(*shown_amount)
        for shown_amount in [(0.0312, "%"), (1234.5, "x"), (0.5, "ms"), (2e6, "MB")]
    ]
    assert shown == ["3.12 %", "1,234×", "0.5 ms", "2,000,000 MB"]


def test_a_page_has_every_figure_and_says_what_is_missed() -> None:
    figures = [
        Figure("kept", "once", 1.0, "ms", Limit(2.0)),
        Figure("missed", "once", 3.0, "ms", Limit(2.0), note="As yet."),
    ]
    growth = [
        Growth("flat", "r", "ms", [(1, 1), (10, 1)], 0.1),
        Growth("steep", "r", "ms", [(1, 1), (10, 10)], 0.1),
    ]
    page = report.markdown(rows_of(Findings(figures, growth)))
    assert re.search(r"\| kept \| once \| 1 ms \| ≤ 2 ms .* yes \|", page)
    assert "- Paint, missed: 3 ms; the target is ≤ 2 ms. As yet." in page
    assert "| 0.00 | ≤ 0.1 | yes |" in page
    assert "- Paint, growth of steep: slope 1.00; the target is ≤ 0.1." in page
    assert "growth of flat" not in page


def test_rows_that_are_not_run_again_are_kept() -> None:
    old = rows_of(Findings([]), "seek") + rows_of(Findings([]), "painting")
    new = rows_of(Findings([Figure("x", "once", 1.0, "ms")]), "painting")
    kept = report.merged(old, new, ROWS)
    assert [row.name for row in kept] == ["painting", "seek"]
    assert kept[0].findings.figures
    assert msgspec.json.decode(report.to_json(kept), type=report.Document).rows == kept
