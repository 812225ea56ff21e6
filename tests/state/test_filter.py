"""The filter language, word by word."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.filter import (
    NO_FILTER,
    UNITS,
    FilterError,
    UnknownFieldError,
    number_test,
    parse,
    quantity,
    share,
)
from seqtop.wire.arrays import Ints

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
        "re:/^tell.*sea$/",
        r"re:/(\/|once)/",
        "re:/a time/ upon",
        "status:run",
        "status:waiting,running",
        "status=running",
        "status!=stop,length",
        "status=stop,RUNNING",
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
        "pre>0",
        "blk>=4",
        "tok/s>0",
        "id:req-",
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
        "prompt!=7,1500",
        "id:nowhere,none",
        "id:3abc",
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
        ("prompt:many", "prompt: needs a number, not 'many'"),
        ("hit>50", "hit is a share, and at most 100%: perhaps hit>50%"),
        ("hit>150%", "hit is a share, and at most 100%"),
        ("prompt>", "prompt> needs a value"),
        ("id>5", "id is a text: id:5 finds it in any place"),
        ("why<=9", "why is a text: why:9 finds it in any place"),
        ('prompt>""', "prompt> needs a value"),
        ("status:,", "status: needs a value"),
        ("prompt>3parsecs", "no unit 'parsecs': there are k, M, G, us, ms, s, m, h"),
        ("re:abc", "a regular expression needs slashes: re:/abc/"),
        ("re:/abc", "the regular expression has no closing /"),
        ("re:/(/", "the regular expression is invalid"),
        ("status:run re:/[/", "the regular expression is invalid"),
        ("-re:/(a+)+$/", "a parenthesis cannot be repeated"),
    ],
)
def test_says_what_is_wrong(source: str, words: str) -> None:
    with pytest.raises(FilterError, match="^" + words.replace("(", r"\(")):
        parse(source)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ({"request_id": "a" * 126 + "sea"}, False),
        ({"request_id": "a" * 125 + "sea"}, True),
        ({"prompt": "a" * 998 + "sea"}, False),
        ({"prompt": "a" * 997 + "sea"}, True),
    ],
)
def test_an_expression_searches_the_beginning_of_a_text(text: dict[str, str], holds: bool) -> None:
    request = request_of(**{"prompt": "", **text})
    assert parse("re:/s.a/").matches(request, sequence_of(text=""), NOW) is holds
    assert parse("sea").matches(request, sequence_of(text=""), NOW)


def test_time_alone_changes_only_what_still_waits() -> None:
    waiting = request_of(metrics=RequestMetrics(100.0, 100.0, None, None, None))
    wanted = parse("queue>9")
    assert wanted.grows
    assert parse("-QUEUE>9 prompt>9").grows
    assert not parse("fox prompt>9").grows
    assert not NO_FILTER.grows
    sequence = sequence_of(status=SequenceStatus.WAITING)
    assert not wanted.matches(waiting, sequence, 108.0)
    assert wanted.matches(waiting, sequence, 110.0)


@given(st.text() | st.text('re:/status!-<>=" 09k,.[(\\', max_size=30))
def test_any_text_parses_or_is_refused(source: str) -> None:
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
    for source in (
        "status:waiting",
        "status=waiting",
        "waiting",
        "status:preempt",
        "preempt",
        "status=Preempted",
    ):
        assert matches(source, **preempted), source
    for source in ("status!=waiting", "-waiting", "status:running", "running"):
        assert not matches(source, **preempted), source


def test_a_word_of_the_status_column_finds_that_status() -> None:
    assert matches("running")
    assert matches("RUNNING upon")
    assert not matches("runnin"), "a text that is nowhere"
    assert not matches('"running"'), "quoted, it is only a text"


def test_the_name_of_a_status_may_have_an_ending() -> None:
    stopped = {"status": SequenceStatus.FINISHED_STOPPED}
    assert matches("status:stopped", **stopped)
    assert matches("status=STOPPED", **stopped)
    assert not matches("status=aborted,ignored", **stopped)


def test_a_field_that_resembles_none_is_told_apart() -> None:
    with pytest.raises(UnknownFieldError):
        parse("zzz:1")
    for source in ("promt>1000", "re:abc", "prompt>"):
        with pytest.raises(FilterError) as error:
            parse(source)
        assert not isinstance(error.value, UnknownFieldError)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1500", 1500.0),
        ("+2.5", 2.5),
        ("-.5", -0.5),
        ("3.", 3.0),
        ("2k", 2e3),
        ("2K", 2e3),
        ("2M", 2e6),
        ("2G", 2e9),
        ("250us", 0.00025),
        ("250ms", 0.25),
        ("250MS", 0.25),
        ("2s", 2.0),
        ("2m", 120.0),
        ("2h", 7200.0),
        ("", None),
        ("many", None),
        ("1.2.3", None),
        ("9" * 400, None),
    ],
)
def test_numbers_with_their_units(text: str, value: float | None) -> None:
    assert quantity(text) == (None if value is None else pytest.approx(value))


def test_a_share_may_be_a_percentage() -> None:
    assert share("95%") == share(".95") == 0.95
    assert share("95") == 95.0
    assert share("most") is share("most%") is None
    half = sequence_of(num_prompt_hits=750)
    scheduled = request_of(num_scheduled_steps=1)
    held = [
        source
        for source in ("hit=50%", "hit>=0.5", "hit<51%", "hit>50%", "hit<50%")
        if parse(source).matches(scheduled, half, NOW)
    ]
    assert held == ["hit=50%", "hit>=0.5", "hit<51%"]


@pytest.mark.parametrize(
    ("comparison", "held"),
    [
        ("<", [1]),
        ("<=", [1, 2]),
        (">", [3]),
        (">=", [2, 3]),
        ("=", [2]),
        ("==", [2]),
        (":", [2]),
        ("!=", [1, 3]),
    ],
)
def test_comparisons_with_a_number(comparison: str, held: list[int]) -> None:
    holds = number_test("kv", comparison, 2.0)
    assert [value for value in (1, 2, 3) if holds(value)] == held
    assert [
        value for value in (1, 2, 3) if matches(f"computed{comparison}2", num_computed_tokens=value)
    ] == held
    with pytest.raises(FilterError, match=f"^kv{comparison} needs a number$"):
        number_test("kv", comparison, None)


def test_words_searched_for_in_texts_are_highlighted() -> None:
    wanted = parse('  fox.  -owl re:/[A-Z]+/ "a b" out>3 text:sea  ')
    assert wanted.source == 'fox.  -owl re:/[A-Z]+/ "a b" out>3 text:sea'
    text = "foxy FOX. owl A B sea"
    matches = [
        match and match[0] for match in (pattern.search(text) for pattern in wanted.patterns)
    ]
    assert matches == ["FOX.", "foxy", "A B"]


def test_only_the_new_part_of_an_output_is_searched_until_a_reset() -> None:
    wanted = parse("-owl")

    def has_owl(text: str, seq_id: int = 7) -> bool:
        return not wanted.matches(request_of(), sequence_of(text=text, seq_id=seq_id), NOW)

    assert not has_owl("a fox sat")
    assert not has_owl("a fox sat", 8)
    assert not has_owl("an owl and a fox")
    wanted.reset(8)
    assert has_owl("an owl and a fox", 8)
    assert not has_owl("an owl and a fox")
    wanted.reset()
    assert has_owl("an owl and a fox")
    assert not has_owl("a fox")
    assert has_owl("owl"), "a shorter output is another one"


def test_a_text_is_found_wherever_the_output_is_cut() -> None:
    wanted, text = parse('"a.b (C"'), "xx A.B (c"
    for cut in range(len(text)):
        wanted.reset()
        for part in (text[:cut], text[: len(text) - 1]):
            assert not wanted.matches(request_of(), sequence_of(text=part), NOW)
        assert wanted.matches(request_of(), sequence_of(text=text), NOW)
        assert wanted.matches(request_of(), sequence_of(text=text + " and on"), NOW)


def test_a_regular_expression_needs_no_prompt() -> None:
    assert not parse("re:/sea/").matches(request_of(prompt=None), sequence_of(), NOW)
    assert not parse("re:/none/").matches(request_of(prompt=None), sequence_of(), NOW)
    assert not parse("none").matches(request_of(prompt=None), sequence_of(), NOW)


def test_the_request_id_and_the_prompt_are_searched_once() -> None:
    wanted = parse("sea")
    assert wanted.matches(request_of(), sequence_of(), NOW)
    assert wanted.matches(request_of(prompt=None), sequence_of(), NOW)
    wanted.reset(7)
    assert not wanted.matches(request_of(prompt=None), sequence_of(), NOW)
    assert not wanted.matches(request_of(), sequence_of(), NOW)
