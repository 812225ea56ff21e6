"""Filters of the list of engines."""

import pytest

from seqtop.connection import ConnectionState
from seqtop.state.filter import FilterError
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.fleet.engine_filter import parse_engine_filter


@pytest.mark.parametrize(
    ("source", "engines"),
    [
        ("", [0, 1, 2]),
        ("RANK", [1]),
        ("-rank", [0, 2]),
        ("10.0.0.7:5557", [2]),
        ("tcp://10.0.0.7", [2]),
        ("stories-3m live", [0, 1]),
        ("connecting", [2]),
        ("waiting>0", [0]),
        ("running=1 stories", [1]),
        ("!waiting>0", [1]),
        ('"rank 1"', []),
    ],
)
def test_engines_that_match(fleet: SeqtopApp, source: str, engines: list[int]) -> None:
    matches = parse_engine_filter(source)
    assert [number for number, ui in enumerate(fleet.engines.all) if matches(ui)] == engines


@pytest.mark.parametrize("source", ["prompt>3", "re:/x/", "kv>much", "running>1parsec"])
def test_what_is_no_filter(source: str) -> None:
    with pytest.raises(FilterError):
        parse_engine_filter(source)


def test_an_engine_that_is_lost_is_found(fleet: SeqtopApp) -> None:
    fleet.engines.all[1].source.connection.state = ConnectionState.LOST
    matches = parse_engine_filter("lost")
    assert [matches(ui) for ui in fleet.engines.all] == [False, True, False]
