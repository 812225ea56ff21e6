"""Filters of the list of engines."""

import pytest

from seqtop.state.filter import FilterError
from seqtop.transport.connection import ConnectionState
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
        ('"rank-1"', [1]),
        ('-"rank-1"', [0, 2]),
        ('"waiting>0"', []),
        ("WAITING>=1", [0]),
        ("kv<101%", [0, 1]),
        ("!kv<101%", []),
        ("-live -10.0.0.7", []),
        ("-tcp:", [0, 1]),
    ],
)
def test_engines_that_match(fleet: SeqtopApp, source: str, engines: list[int]) -> None:
    matches = parse_engine_filter(source)
    assert [number for number, ui in enumerate(fleet.engines.all) if matches(ui)] == engines


FIELDS = "there are kv, running, waiting, swapped, free, prefill, decode, preemptions"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("prompt>3", f"engines have no field for 'prompt>3'; {FIELDS}"),
        ("live -prompt!=3", f"engines have no field for '-prompt!=3'; {FIELDS}"),
        ("re:/x/", f"engines have no field for 're:/x/'; {FIELDS}"),
        ("kv>much", "kv> needs a number"),
        ("kv:", "kv: needs a number"),
        ("running>1parsec", "no unit 'parsec': there are k, M, G, us, ms, s, m, h"),
    ],
)
def test_words_that_are_no_filter_are_refused(source: str, words: str) -> None:
    with pytest.raises(FilterError) as error:
        parse_engine_filter(source)
    assert str(error.value) == words


def test_an_engine_that_is_lost_is_found(fleet: SeqtopApp) -> None:
    fleet.engines.all[1].source.connection.state = ConnectionState.LOST
    matches = parse_engine_filter("lost")
    assert [matches(ui) for ui in fleet.engines.all] == [False, True, False]
