"""Reports of rows: a table on the terminal, JSON, and docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure, Findings, Growth, amount
from benchmarks.machine import Machine

TEMPLATE = Path(__file__).with_name("performance.md.in")
PROFILE = Path(__file__).with_name("profile.md")
"""The distribution of time, described in words, from `benchmarks.hot`."""


class Row(msgspec.Struct):
    """The results of one module, with machine and time."""

    name: str
    title: str
    findings: Findings
    machine: Machine
    seconds: float = 0.0
    """The duration of the measurement."""


class Document(msgspec.Struct):
    """The contents of the JSON file."""

    rows: list[Row]


def to_json(rows: list[Row]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(Document(rows)), indent=1) + b"\n"


def merged(old: Sequence[Row], new: Sequence[Row], order: Sequence[str]) -> list[Row]:
    """Returns the rows of both in the order of names; new rows replace old ones."""
    found = {row.name: row for row in (*old, *new)}
    return [found[name] for name in order if name in found]


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table("what", "figure", "target", "peer", "ratio", "met", title="seqtop's figures")
    for row in rows:
        table.add_section()
        table.add_row(f"[bold]{row.title}[/]")
        for figure in row.findings.figures:
            table.add_row(
                f"{figure.what}\n[dim]{figure.measured}[/]",
                amount(figure.value, figure.unit),
                figure.target,
                _peer(figure),
                _ratio(figure),
                {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[figure.met],
            )
        for growth in row.findings.growth:
            table.add_row(
                f"[dim]growth: {growth.what}[/]",
                f"slope {growth.slope:.2f}",
                f"≤ {growth.limit:g}" if growth.limit < float("inf") else "",
                _points(growth),
                "",
                "[green]yes[/]" if growth.met else "[red]no[/]",
            )
    console.print(table)
    for line in machines(rows):
        console.print(line, markup=False, highlight=False)


def markdown(rows: Sequence[Row]) -> str:
    """Returns the page, with the text of the template in this folder."""
    dates = sorted(row.machine.date for row in rows)
    return Template(TEMPLATE.read_text()).substitute(
        date=dates[-1][:10],
        machines="\n".join(f"- {line}" for line in machines(rows)),
        table="\n".join(_table_lines(rows)),
        growth="\n".join(_growth_lines(rows)),
        missed="\n".join(_missed_lines(rows)),
        profile=PROFILE.read_text().rstrip(),
    )


def machines(rows: Sequence[Row]) -> list[str]:
    """Returns a line per machine and checkout, with the rows measured there."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        machine = row.machine
        key = (machine.cpu, machine.cores, machine.usable, machine.python, machine.commit)
        found.setdefault(key, []).append(row)
    lines = []
    for (cpu, cores, usable, python, commit), group in found.items():
        loads = [
            load for row in group for load in (row.machine.load_before, row.machine.load_after)
        ]
        libraries = ", ".join(
            f"{name} {version}" for name, version in group[0].machine.libraries.items()
        )
        dates = sorted(row.machine.date for row in group)
        lines.append(
            f"{', '.join(row.name for row in group)}: {cpu}, {usable} of {cores} cores,"
            f" load {min(loads):.1f} to {max(loads):.1f}; Python {python}, {libraries};"
            f" commit {commit}, {dates[0]} to {dates[-1]} UTC,"
            f" {sum(row.seconds for row in group):.0f} s"
        )
    return lines


def _peer(figure: Figure) -> str:
    if not figure.peer:
        return ""
    value = figure.peer_value
    return figure.peer if value is None else f"{amount(value, figure.unit)}: {figure.peer}"


def _ratio(figure: Figure) -> str:
    return "" if figure.ratio is None else amount(figure.ratio, figure.ratio_unit)


def _points(growth: Growth) -> str:
    return "; ".join(
        f"{size:,.0f} {growth.of}: {amount(value, growth.unit)}" for size, value in growth.points
    )


def _table_lines(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | measured as | figure | target | peer in the same run | ratio | met |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        lines.append(f"| **{row.title}** | `python -m benchmarks.{row.name}` | | | | | |")
        for figure in row.findings.figures:
            cells = (
                figure.what,
                figure.measured,
                amount(figure.value, figure.unit),
                figure.target,
                _peer(figure),
                _ratio(figure),
                {True: "yes", False: "**no**", None: ""}[figure.met],
            )
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _growth_lines(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | at | slope | target | met |", "|---|---|---|---|---|"]
    for row in rows:
        for growth in row.findings.growth:
            target = f"≤ {growth.limit:g}" if growth.limit < float("inf") else ""
            met = ("yes" if growth.met else "**no**") if target else ""
            lines.append(
                f"| {growth.what} ({row.name}) | {_points(growth)} | {growth.slope:.2f}"
                f" | {target} | {met} |"
            )
    return lines


def _missed_lines(rows: Sequence[Row]) -> list[str]:
    found = [
        f"- {row.title}, {figure.what}: {amount(figure.value, figure.unit)}"
        + (f", {_ratio(figure)}" if figure.ratio is not None else "")
        + f"; the target is {figure.target}."
        + (f" {figure.note}" if figure.note else "")
        for row in rows
        for figure in row.findings.figures
        if figure.met is False
    ]
    found += [
        f"- {row.title}, growth of {growth.what}: slope {growth.slope:.2f}; the target is"
        f" ≤ {growth.limit:g}."
        for row in rows
        for growth in row.findings.growth
        if not growth.met
    ]
    return found or ["Nothing: every target is met."]
