"""One grammar for all dialogs, in which each example works."""

from collections.abc import Callable

import pytest

from seqtop.state.condition import parse_condition
from seqtop.state.filter import FilterError
from seqtop.state.filter import parse as parse_filter
from seqtop.state.groups import name_by
from seqtop.state.slo import SloError
from seqtop.state.slo import parse as parse_slo
from seqtop.tui.dialogs import condition_prompt, group_chooser, seek_prompt, slo_prompt, whatif
from seqtop.tui.screens.fleet import engine_filter
from seqtop.tui.screens.sequences.screen import FILTER_EXAMPLES
from seqtop.whatif.settings import parse_change
from tests.support.scripted import engine_info


def change(text: str) -> None:
    for word in text.split():
        parse_change(word, engine_info())


EXAMPLES: tuple[tuple[Callable[[str], object], list[str]], ...] = (
    (parse_filter, FILTER_EXAMPLES.split("  ")),
    (engine_filter.parse_engine_filter, engine_filter.EXAMPLES.split("  ")),
    (parse_condition, [example for example, _ in condition_prompt.EXAMPLES]),
    (parse_slo, [*(example for example, _ in slo_prompt.EXAMPLES), whatif.OBJECTIVES]),
    (seek_prompt.parse, [example for example, _ in seek_prompt.EXAMPLES]),
    (change, [whatif.EXAMPLE]),
    (name_by, [group_chooser.EXAMPLE]),
)


@pytest.mark.parametrize(
    ("parse", "example"), [(parse, text) for parse, texts in EXAMPLES for text in texts]
)
def test_an_example_works(parse: Callable[[str], object], example: str) -> None:
    parse(example)


@pytest.mark.parametrize(
    "text",
    ["prompt>1k status:waiting", "prompt > 1k status : waiting", "prompt>1k, status:waiting",
     "prompt>1k,status:waiting", "prompt >1k , status= waiting"],
)  # fmt: skip
def test_filters_take_commas_and_blanks(text: str) -> None:
    found = parse_filter(text)
    assert len(found.tests) == 2
    assert found.patterns == (), "no word is a text"


@pytest.mark.parametrize(
    "text", ["kv>95% waiting>10", "kv > 95%, waiting > 10", "kv>0.95,waiting>10"]
)
def test_conditions_take_commas_and_blanks(text: str) -> None:
    condition = parse_condition(text)
    assert len(condition.tests) == 2
    assert condition.filter is None


@pytest.mark.parametrize(
    "text", ["ttft=500ms itl=50ms", "ttft<0.5,itl<=50ms", "TTFT ≤ 500ms, itl < 0.05"]
)
def test_objectives_take_the_comparisons_of_filters(text: str) -> None:
    assert parse_slo(text).limits == {"ttft": 0.5, "itl": 0.05}


def test_quoted_texts_stay_as_they_are() -> None:
    (pattern,) = parse_filter('"prompt > 1, out:2"').patterns
    assert pattern.search("prompt > 1, out:2")
    (expression,) = parse_filter("re:/prompt > 1, out:2/").patterns
    assert expression.search("prompt > 1, out:2")


@pytest.mark.parametrize(
    ("parse", "text", "reason"),
    [
        (parse_filter, "foo>3", "no field 'foo'"),
        (parse_condition, "foo>3", "no field 'foo'"),
        (parse_slo, "foo=3", "no objective 'foo'"),
        (parse_filter, "prompt>abc", "prompt> needs a number"),
        (parse_condition, "kv>abc", "kv> needs a number"),
    ],
)
def test_errors_are_alike(parse: Callable[[str], object], text: str, reason: str) -> None:
    with pytest.raises((FilterError, SloError)) as raised:
        parse(text)
    assert str(raised.value).startswith(reason)
