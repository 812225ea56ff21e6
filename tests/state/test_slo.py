"""Objectives: parsing, and the sequences that miss them."""

import pytest

from seqtop.state.slo import Slo, SloError, missed, parse
from tests.support.scripted import START, Script, ScriptedSource


def test_what_is_still_awaited_can_be_late_already() -> None:
    script = Script(ScriptedSource())
    script.arrive("a")
    state = script.source.state
    found = state.requests["a"], state.sequences[1]
    assert missed(Slo(ttft=1.0, e2e=5.0), *found, START + 2) == {"ttft": 2.0}
    assert missed(Slo(), *found, START + 9) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ttft", "'ttft' is not like ttft=0.5"),
        ("tftt=1", "no objective 'tftt': there are ttft, itl, tpot, queue, e2e"),
        ("ttft=fast", "ttft: 'fast' is not a time, such as 0.5 or 500ms"),
        ("ttft=0", "ttft: '0' is not a time, such as 0.5 or 500ms"),
        ("ttft=5parsec", "ttft: no unit 'parsec': there are k, M, G, us, ms, s, m, h"),
    ],
)
def test_objectives_that_cannot_be_are_refused(text: str, said: str) -> None:
    with pytest.raises(SloError) as refused:
        parse(text)
    assert str(refused.value) == said


def test_objectives_are_read() -> None:
    assert parse("ttft=0.5, itl=50ms,e2e=2m") == Slo(ttft=0.5, itl=0.05, e2e=120.0)
    assert str(parse("ttft=0.5,itl=50ms")) == "TTFT ≤ 500 ms, ITL ≤ 50.0 ms"
