"""Titles and reasons of what an engine cannot give."""

import re
from pathlib import Path

from seqtop.state import not_available

PROTOCOL = Path(__file__).parents[2].joinpath("docs/protocol.md").read_text(encoding="utf-8")


def test_titles_and_reasons_are_safe_text() -> None:
    entries = not_available.entries({"hit": "no\x1b[2J such\nthing", "end": "?", "new\rkey": ""})
    assert [title for title, _ in entries][:2] == ["Hit", "cause of the engine's end"]
    assert all("".join(entry).isprintable() for entry in entries)


def test_all_of_them_are_in_one_line_with_each_reason_once() -> None:
    reasons = {"why": "no queue", "cached_blocks": "no pool", "waited": "no queue"}
    line = "not available: Why, Waited (no queue); cached blocks (no pool)"
    assert not_available.describe(reasons) == line


def test_a_hostile_engine_cannot_fill_the_screen() -> None:
    assert len(not_available.entries({str(number): "" for number in range(1_000)})) == 100


def test_a_count_that_is_not_there_is_no_zero() -> None:
    assert not_available.count(None) == "n/a"
    assert not_available.count(0) == "0"


def test_the_protocol_has_every_figure() -> None:
    table = PROTOCOL.split("and of these figures:")[1].split("\n\n")[1]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(not_available.FIGURES)
