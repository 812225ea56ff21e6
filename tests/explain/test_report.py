"""Explanations as text and as JSON."""

import json
from collections import Counter
from typing import Any

import pytest

from seqtop.explain.chain import BlockHolder, Part, PartKind
from seqtop.explain.explanation import Explanation, explain
from seqtop.explain.outliers import FieldDifference, Outliers, SlowRequest
from seqtop.explain.report import (
    as_json,
    as_text,
    describe,
    headline,
    outliers_as_json,
    outliers_as_text,
)
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SequenceStatus
from tests.support.events import preemption, wait_reason
from tests.support.latency_run import latency_run
from tests.support.scripted import Script, ScriptedSource


def known_run() -> Explanation:
    source, history = latency_run()
    return explain(history, source.state.requests["short"], history.last)


def waiting_request() -> tuple[Script, MemoryStore]:
    """A run of one step, in which request `a` waited."""
    history = MemoryStore()
    script = Script(ScriptedSource(history=history))
    script.arrive("a")
    script.step(decode=[])
    return script, history


def part(kind: PartKind, cause: str, **changes: Any) -> Part:
    return Part(kind, cause, 0.0, 1, 1, **changes)


def behind_nobody() -> Part:
    """A part whose head of the queue has no name."""
    return part("queued", "no_blocks", is_behind=True)


def test_text() -> None:
    lines = as_text(known_run()).splitlines()
    assert lines[0] == "short: TTFT 102 ms, end to end 252 ms (stop)"
    held = "long held the most, 7 of 7 used, admitted at step 0 with a prompt of 100 tokens"
    missing = "too few blocks are free (3 more blocks needed)"
    figures = "2.00 ms 52.0 ms 1 50.0 ms 20% queued"
    assert lines[3].split() == f"{figures} {missing}; {held}".split()
    assert lines[5].split() == ["102", "ms", "first", "token"]
    assert lines[6].endswith(
        f"preempted    preempted to make room for long, 40 computed tokens lost; {missing}; {held}"
    )
    assert lines[7].endswith("prefill      again after the preemption; 41 tokens")


@pytest.mark.parametrize(
    ("expected", "part"),
    [
        ("3 steps", part("prefill", "", num_steps=3)),
        ("", part("prefill", "", num_steps=1)),
        ("41 tokens; 2 steps", part("prefill", "", num_steps=2, num_tokens=41)),
        ("between steps", part("host", "", seconds=0.5, longest=0.5, longest_step=4)),
        (
            "between steps, the longest 500 ms before step 4",
            part("host", "", seconds=0.6, longest=0.5, longest_step=4),
        ),
        (
            "no step was running, the longest 5.00 s before step 1,020",
            part("queued", "between_steps", seconds=6.0, longest=5.0, longest_step=1020),
        ),
        (
            "30 steps, of which step 19: 5.00 s",
            part("decode", "", seconds=5.12, num_steps=30, longest=5.0, longest_step=19),
        ),
        (
            "2 steps, of which step 19: 1.00 s",
            part("decode", "", seconds=1.09, num_steps=2, longest=1.0, longest_step=19),
        ),
        (
            "3 steps",
            part("decode", "", seconds=1.25, num_steps=3, longest=1.0, longest_step=19),
        ),
        ("2 steps", part("decode", "", seconds=0.2, num_steps=2, longest=0.11, longest_step=19)),
        ("behind others in the queue: too few blocks are free", behind_nobody()),
        (
            "too few blocks are free (1 more block needed)",
            part("queued", "no_blocks", num_missing=1),
        ),
        ("too few blocks are free", part("queued", "no_blocks")),
        ("the scheduler is paused", part("queued", "paused", num_missing=7)),
        ("the engine gave a reason of its own (FROZEN)", part("queued", "FROZEN")),
        (
            "behind a in the queue: too few blocks are free",
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
                preemption=preemption("a", mode="swap", by="b"),
            ),
        ),
        (
            (
                "b held the most, 7 of 1,200 used, admitted at a step that is not recorded with a"
                " prompt of 1 token"
            ),
            part("queued", "", holder=BlockHolder("b", 7, 1_200, 1, None)),
        ),
    ],
)
def test_a_part_in_words(expected: str, part: Part) -> None:
    assert describe(part, "a") == expected


def test_json() -> None:
    document = json.loads(as_json(known_run()))
    assert document["request_id"] == "short"
    total = sum(part["seconds"] for part in document["parts"])
    assert total == pytest.approx(document["e2e_seconds"])
    wait = document["parts"][1]
    assert (wait["kind"], wait["cause"], wait["step"]) == ("queued", "no_blocks", 1)
    assert wait["holder"] == {
        "request_id": "long", "num_blocks": 7, "num_used_blocks": 7, "num_prompt_tokens": 100,
        "admitted_step": 0,
    }  # fmt: skip
    preempted = next(part for part in document["parts"] if part["kind"] == "preempted")
    assert preempted["preemption"]["num_lost_tokens"] == 40


def test_the_headline_of_an_unfinished_request() -> None:
    script, history = waiting_request()
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
    script = Script(ScriptedSource())
    script.arrive("head\x1b[2J")
    script.arrive("b")
    script.step(decode=[], waits=[wait_reason("head\x1b[2J", "no_blocks", 0)])
    history, state = script.source.history, script.source.state
    explanation = explain(history, state.requests["b"], history.last)
    assert "\x1b" not in as_text(explanation)
    assert "\x1b" not in as_json(explanation)


def test_a_request_that_was_aborted_before_its_first_token() -> None:
    script, history = waiting_request()
    request = script.source.state.requests["a"]
    before = json.loads(as_json(explain(history, request, history.last)))
    assert before["since_arrival_seconds"] == pytest.approx(0.052, abs=1e-6)
    assert before["ttft_seconds"] is before["e2e_seconds"] is before["finish_reason"] is None
    script.step(stop={"a": SequenceStatus.FINISHED_ABORTED})
    explanation = explain(history, script.source.state.requests["a"], history.last)
    assert as_text(explanation).splitlines() == [
        "a: no first token, end to end 102 ms (abort)",
        "   from       to  step     time  share  part",
        "    0 s  2.00 ms     0  2.00 ms   2.0%  queued  no step was running",
        "2.00 ms   102 ms     0   100 ms    98%  queued  the scheduler gave no reason; 2 steps",
    ]
    document = json.loads(as_json(explanation))
    assert document["arrival_time"] == 1_700_000_000.0
    assert document["ttft_seconds"] is None
    assert document["e2e_seconds"] == pytest.approx(0.102, abs=1e-6)
    assert document["since_arrival_seconds"] == document["e2e_seconds"]
    assert document["finish_reason"] == "abort"
    assert document["parts"][1] == {
        "kind": "queued",
        "cause": "unknown",
        "start_seconds": pytest.approx(0.002, abs=1e-6),
        "end_seconds": pytest.approx(0.102, abs=1e-6),
        "seconds": pytest.approx(0.1, abs=1e-6),
        "step": 0,
        "num_steps": 2,
        "num_tokens": 0,
        "longest_seconds": pytest.approx(0.05, abs=1e-6),
        "longest_step": 0,
        "before_first_token": True,
        "is_behind": False,
        "requests": [],
        "num_missing": 0,
        "scheduler_seconds": 0.0,
        "preemption": None,
        "holder": None,
        "text": "the scheduler gave no reason; 2 steps",
    }


def test_the_first_token_has_a_line_of_its_own_before_the_parts_after_it() -> None:
    lines = as_text(known_run()).splitlines()
    assert [line.split()[-2:] == ["first", "token"] for line in lines] == [
        number == 5 for number in range(9)
    ]
    document = json.loads(as_json(known_run()))
    assert document["ttft_seconds"] == pytest.approx(0.102, abs=1e-6)
    assert [part["before_first_token"] for part in document["parts"]] == [True] * 3 + [False] * 3
    assert [part["cause"] for part in document["parts"]] == [
        "between_steps", "no_blocks", None, "no_blocks", "recompute", None,
    ]  # fmt: skip
    assert [part["num_missing"] for part in document["parts"]] == [0, 3, 0, 3, 0, 0]


def test_a_table_of_outliers() -> None:
    slow = [SlowRequest(f"req-{number}\x1b", 2.5 - number, {"ttft": 2.5}) for number in range(2)]
    outliers = Outliers(
        "they missed TTFT ≤ 1.00 s",
        slow,
        1_998,
        [
            FieldDifference("out", "output tokens", 1.0, "median 7", "median 3"),
            FieldDifference("lora", "lora", 0.25, "none 100%", "\x1b 100%"),
            FieldDifference("tps", "tokens", 1.0, "median 3.0", "median 4.0", is_cause=False),
        ],
    )
    text = outliers_as_text(outliers)
    assert "\x1b" not in text
    assert text.splitlines()[0] == "2 slow requests of 2,000: they missed TTFT ≤ 1.00 s"
    assert [line.split()[-2:] for line in text.splitlines()[1:3]] == [["2.50", "s"], ["1.50", "s"]]
    assert [line.split("  ")[-1].strip() for line in text.splitlines()[3:]] == [
        *("possible cause", "output tokens", "lora", "result", "tokens"),
    ]
    (title, row) = text.splitlines()[3:5]
    assert row.split("  ")[:2] == ["", "100%"]
    for word, value in (("slow", "median 7"), ("others", "median 3"), ("possible", "output")):
        assert title.index(word) == row.index(value)
    document = json.loads(outliers_as_json(outliers))
    assert document["rule"] == "they missed TTFT ≤ 1.00 s"
    assert (document["num_others"], len(document["slow"])) == (1_998, 2)
    assert document["slow"][1]["seconds"] == 1.5
    assert document["slow"][1]["missed"] == {"ttft": 2.5}
    assert document["differences"][1]["distance"] == 0.25
    assert "\x1b" not in outliers_as_json(outliers)


def test_a_request_that_is_alone_is_named_in_the_singular() -> None:
    text = outliers_as_text(Outliers("the rule", [SlowRequest("a", 1.0, {})], 0, []))
    assert text.startswith("1 slow request of 1: the rule\n  a: 1.00 s\nNo field")
