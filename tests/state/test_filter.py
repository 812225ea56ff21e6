"""The filter language, word by word."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.filter import UNITS, FilterError, parse, quantity
from seqtop.wire.columns import Ints

NOW = 110.0


def request_of(**changes: Any) -> RequestState:
    values: dict[str, Any] = {
        "request_id": "req-7",
        "metrics": RequestMetrics(100.0, 105.0, 100.5, 101.0, 0.5),
        "seq_ids": [7],
        "prompt": "Tell me about the Sea",
        "num_preemptions": 2,
    }
    return RequestState(**(values | changes))


def sequence_of(**changes: Any) -> SequenceState:
    values: dict[str, Any] = {
        "seq_id": 7,
        "request_id": "req-7",
        "status": SequenceStatus.RUNNING,
        "num_prompt_tokens": 1_500,
        "num_computed_tokens": 1_503,
        "output_token_ids": Ints.of([1, 2, 3]),
        "text": "Once upon a time",
        "block_table": [4, 5, 6, 7],
    }
    return SequenceState(**(values | changes))


def matches(source: str, **changes: Any) -> bool:
    return parse(source).matches(request_of(), sequence_of(**changes), NOW)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "   ",
        "req-7",
        "REQ-7",
        "upon",
        "sea",
        '"upon a"',
        '"upon a',
        "upon sea",
        "re:/^req-[0-9]$/",
        "re:/TIME$/",
        r"re:/(\/|once)/",
        "re:/a time/ upon",
        "status:run",
        "status:waiting,running",
        "status=running",
        "status!=stop,length",
        "request=req-7",
        "stage:decode",
        "prompt>1000",
        "prompt>1k",
        "prompt>=1500",
        "prompt<=1500",
        "prompt=1500",
        "prompt:1500",
        "prompt!=7",
        "PROMPT>1",
        "blocks>=4",
        "preempt>0",
        "ttft>999ms",
        "ttft<=1s",
        "itl=2",
        "queue:500ms",
        "text:upon",
        'text:"upon a"',
        "prompt_text:sea",
        "total=1503",
        "-status:stop",
        "!status:stop",
        "-nowhere",
        '-"not here"',
        "-e2e>0",
        "status:running prompt>1000 -stop",
    ],
)
def test_holds(source: str) -> None:
    assert matches(source)


@pytest.mark.parametrize(
    "source",
    [
        "req-8",
        "upon nowhere",
        '"a upon"',
        "re:/^seven/",
        "status:waiting",
        "id=req",
        "prompt>1500",
        "prompt<1500",
        "blocks!=4",
        "ttft<1",
        "text=once",
        "-upon",
        "!prompt>1000",
        "e2e>0",
        "e2e!=0",
        "prompt:many",
        "id:nowhere,nobody",
        "id>1",
        "id<1",
    ],
)
def test_does_not_hold(source: str) -> None:
    assert not matches(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("promt>1000", "no field 'promt': perhaps prompt"),
        ("status=run", "no status 'run': perhaps running"),
        ("zzz:1", "no field 'zzz': the help lists them all"),
        ("prompt>many", "prompt> needs a number, not 'many'"),
        ("prompt>", "prompt> needs a value"),
        ("status:,", "status: needs a value"),
        ("prompt>3parsecs", "no unit 'parsecs': there are k, M, G, us, ms, s, m, h"),
        ("re:abc", "a regular expression needs slashes: re:/abc/"),
        ("re:/abc", "the regular expression has no closing /"),
        ("re:/(/", "the regular expression is invalid"),
        ("status:run re:/[/", "the regular expression is invalid"),
    ],
)
def test_says_what_is_wrong(source: str, words: str) -> None:
    with pytest.raises(FilterError, match="^" + words.replace("(", r"\(")):
        parse(source)


def test_time_alone_changes_only_what_still_waits() -> None:
    waiting = request_of(metrics=RequestMetrics(100.0, 100.0, None, None, None))
    wanted = parse("queue>9")
    assert wanted.grows
    assert not parse("prompt>9").grows
    sequence = sequence_of(status=SequenceStatus.WAITING)
    assert not wanted.matches(waiting, sequence, 108.0)
    assert wanted.matches(waiting, sequence, 110.0)


@given(st.text())
def test_any_text_parses_or_is_refused(source: str) -> None:
    try:
        wanted = parse(source)
    except FilterError:
        return
    assert wanted.matches(request_of(), sequence_of(), NOW) in {True, False}


@given(st.text('re:/status!-<>=" 09k,.[(\\', max_size=30))
def test_what_one_is_about_to_type_parses_or_is_refused(source: str) -> None:
    try:
        wanted = parse(source)
    except FilterError:
        return
    assert wanted.matches(request_of(), sequence_of(), NOW) in {True, False}


def test_units_are_the_same_everywhere() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "screens.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"comparisons; units are (.*) \|", docs)
    assert tuple(re.findall("`(.*?)`", listed)) == UNITS
    assert quantity("3us") == quantity("3µs") == quantity("3μs") == quantity("0.003ms")


def test_waiting_includes_preempted_sequences_as_in_the_header() -> None:
    preempted = {"status": SequenceStatus.WAITING}
    for source in ("status:waiting", "status=waiting", "waiting", "status:preempt", "preempt"):
        assert matches(source, **preempted), source
    for source in ("status!=waiting", "-waiting", "status:running", "running"):
        assert not matches(source, **preempted), source


def test_a_word_of_the_status_column_finds_that_status() -> None:
    assert matches("running")
    assert matches("RUNNING upon")
    assert not matches("runnin"), "a text that is nowhere"
    assert not matches('"running"'), "quoted, it is only a text"
