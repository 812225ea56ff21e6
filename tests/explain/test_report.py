"""Explanations as text and as JSON."""

import json
from collections import Counter
from typing import Any

import pytest

from seqtop.explain.chain import Holder, Part, PartKind
from seqtop.explain.explanation import Explanation, explain
from seqtop.explain.report import as_json, as_text, describe, headline
from seqtop.history.memory_store import MemoryStore
from seqtop.wire.messages import Preemption, WaitReason
from tests.support.latency_run import latency_run
from tests.support.scripted import Script, ScriptedSource


def known_run() -> Explanation:
    source, history = latency_run()
    return explain(history, source.state.requests["short"], history.last)


def part(kind: PartKind, cause: str, **changes: Any) -> Part:
    return Part(kind, cause, 0.0, 1, 1, **changes)


def test_text() -> None:
    lines = as_text(known_run()).splitlines()
    assert lines[0] == "short: TTFT 102 ms, end to end 252 ms (stop)"
    held = "long held the most, 7 of 7 used, admitted at step 0 with a prompt of 100 tokens"
    missing = "no free blocks (3 blocks missing)"
    assert lines[3].split() == [
        "2.00", "ms", "1", "50.0", "ms", "20%", "queued", *f"{missing}; {held}".split()
    ]  # fmt: skip
    assert lines[5].split() == ["102", "ms", "first", "token"]
    assert lines[6].endswith(
        f"preempted   preempted to make room for long, 40 computed tokens lost; {missing}; {held}"
    )
    assert lines[7].endswith("prefill     again after the preemption; 41 tokens")


@pytest.mark.parametrize(
    ("expected", "part"),
    [
        ("3 steps", part("prefill", "", num_steps=3)),
        ("", part("prefill", "", num_steps=1)),
        ("41 tokens; 2 steps", part("prefill", "", num_steps=2, num_tokens=41)),
        ("between steps, the longest 500 ms before this one", part("host", "", longest=0.5)),
        ("no free blocks (1 block missing)", part("queued", "no_blocks", num_missing=1)),
        ("no free blocks", part("queued", "no_blocks")),
        ("the scheduler was paused", part("queued", "paused", num_missing=7)),
        ("waited for FROZEN", part("queued", "FROZEN")),
        (
            "behind a in the queue: no free blocks",
            part("queued", "no_blocks", is_behind=True, others=Counter("a")),
        ),
        (
            "in one batch with prefills of others: e, d, c, b and 1 more",
            part("decode", "mixed_batch", others=Counter("abbcccddddeeeee")),
        ),
        (
            "preempted to make room for b",
            part(
                "preempted",
                "",
                preemption=Preemption(
                    request_id="a", mode="swap", num_lost_tokens=0, for_request_id="b"
                ),
            ),
        ),
        (
            (
                "b held the most, 7 of 1,200 used, admitted at a step that is not recorded with a"
                " prompt of 1 token"
            ),
            part("queued", "", holder=Holder("b", 7, 1_200, 1, None)),
        ),
    ],
)
def test_a_part_in_words(expected: str, part: Part) -> None:
    assert describe(part, "a") == expected


def test_json() -> None:
    document = json.loads(as_json(known_run()))
    assert document["request"] == "short"
    assert sum(each["seconds"] for each in document["parts"]) - document["e2e"] < 1e-6
    wait = document["parts"][1]
    assert (wait["kind"], wait["cause"], wait["step"]) == ("queued", "no_blocks", 1)
    assert wait["holder"] == {
        "request_id": "long", "num_blocks": 7, "num_used_blocks": 7, "num_prompt_tokens": 100,
        "admitted_step": 0,
    }  # fmt: skip
    preempted = next(each for each in document["parts"] if each["kind"] == "preempted")
    assert preempted["preemption"]["num_lost_tokens"] == 40


def test_the_headline_of_an_unfinished_request() -> None:
    script = Script(ScriptedSource(history=MemoryStore()))
    history = script.source.history
    assert history is not None
    script.arrive("a")
    script.step(decode=[])
    request = script.source.state.requests["a"]
    assert headline(explain(history, request, history.last)) == (
        "no first token yet, 52.0 ms since its arrival"
    )
    script.step(prefill={"a": 40})
    script.step()
    assert headline(explain(history, request, history.last)) == (
        "TTFT 102 ms, 152 ms since its arrival"
    )


def test_text_is_safe() -> None:
    script = Script(ScriptedSource(history=MemoryStore()))
    script.arrive("head\x1b[2J")
    script.arrive("b")
    script.step(
        decode=[], waits=[WaitReason(request_id="head\x1b[2J", cause="no_blocks", num_missing=0)]
    )
    history, state = script.source.history, script.source.state
    assert history is not None
    explanation = explain(history, state.requests["b"], history.last)
    assert "\x1b" not in as_text(explanation)
    assert "\x1b" not in as_json(explanation)
