"""The misses of objectives, by limit and by cause."""

from collections import Counter

from seqtop.sequence import SequenceStatus
from seqtop.state import slo_misses
from seqtop.state.slo import Slo
from seqtop.state.slo_misses import DECODE, PREFILL, describe, split
from seqtop.wire.messages import WaitReason
from tests.support.scripted import Script, ScriptedSource


def late_requests() -> Script:
    """One that computes its prompt for long, one that waits for blocks, one that decodes slowly."""
    script = Script(ScriptedSource())
    script.arrive("prefill")
    script.step(prefill={"prefill": 20})
    wait_for_blocks(script, "prefill")
    script.step(prefill={"blocks": 40})
    script.step(stop={"prefill": SequenceStatus.FINISHED_STOPPED})
    return script


def wait_for_blocks(script: Script, runs: str) -> None:
    """Lets a request wait for blocks in four steps of a second, in which another one runs."""
    script.arrive("blocks")
    reason = WaitReason(request_id="blocks", cause="no_blocks", num_missing=2)
    for _ in range(4):
        script.time += 1.0
        script.step(decode=[runs], waits=[reason])


def test_misses_are_divided_by_limit_and_by_cause() -> None:
    state = late_requests().source.state
    slo = Slo(ttft=2.0, itl=0.5)
    misses = split(state, slo)
    assert misses.num_requests == misses.num_missed == 2
    assert misses.causes["ttft"]["no free blocks"] == 1
    assert misses.causes["itl"] == Counter({DECODE: 1})
    lines = describe(misses, slo)
    assert lines[0] == "2 of 2 requests that ended or are late miss a limit (100%)"
    assert "no free blocks 1" in next(line for line in lines if "TTFT ≤ 2.00 s" in line)


def test_the_wait_for_the_first_token_is_no_part_of_the_times_between_tokens() -> None:
    script = Script(ScriptedSource())
    script.arrive("first")
    script.arrive("waits")
    script.step(prefill={"first": 40})
    script.step(decode=[], prefill={"waits": 20})
    script.step(decode=[], preempt={"waits": "first"})
    script.time += 5.0
    script.step(decode=[], prefill={"waits": 40})
    for _ in range(2):
        script.time += 1.0
        script.step(decode=["waits"])
    assert script.source.state.requests["waits"].num_preemptions == 1
    assert split(script.source.state, Slo(itl=0.9)).causes["itl"] == Counter({DECODE: 1})


def test_a_long_prefill_is_its_own_cause() -> None:
    script = Script(ScriptedSource())
    script.arrive("long", num_prompt=40)
    script.step(prefill={"long": 20})
    script.time += 3.0
    script.step(prefill={"long": 20})
    assert split(script.source.state, Slo(ttft=1.0)).causes["ttft"] == Counter({PREFILL: 1})


def test_requests_that_may_still_meet_their_limits_are_not_judged() -> None:
    script = Script(ScriptedSource())
    script.arrive("new")
    script.step()
    misses = split(script.source.state, Slo(ttft=100.0))
    assert (misses.num_requests, misses.num_missed) == (0, 0)
    assert describe(misses, Slo(ttft=100.0)) == ["No request has ended or missed a limit so far."]
    assert slo_misses.split(script.source.state, Slo()).causes == {}


def test_a_late_request_without_a_token_waits_for_what_it_lacks() -> None:
    script = Script(ScriptedSource())
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    wait_for_blocks(script, "runs")
    misses = split(script.source.state, Slo(ttft=2.0))
    assert misses.causes["ttft"] == Counter({"no free blocks": 1})
