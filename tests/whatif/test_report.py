"""Predictions in words: every line of a table, a chart and the loads of given figures."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from seqtop.diff.comparison import Difference
from seqtop.history.step_time import Size, StepTime
from seqtop.whatif import advice_report, advise, report
from seqtop.whatif.advise import Advice, Trial
from seqtop.whatif.changed_requests import ChangedRequest
from seqtop.whatif.figures import Distribution, RunFigures
from seqtop.whatif.predict import (
    Basis,
    Calibration,
    ModelDistance,
    Prediction,
    Question,
    TraceSummary,
)
from seqtop.whatif.proof import Proof
from seqtop.whatif.replay import ReplayResult
from seqtop.whatif.sweep import Capacity, Point, Sweep

STORED = Path(__file__).with_name("answers.txt")
PROVEN = Proof(1_000, 1_000, None, "", starts_late=False)
MODEL = StepTime(
    per_step=0.002,
    per_prefill_token=0.00001,
    per_decode_token=0.0001,
    per_gap=0.0005,
    largest=Size(1, 2_000),
)
RECORDED = RunFigures(
    num_steps=1_000,
    makespan=10.0,
    num_requests=4,
    num_output_tokens=5_000,
    num_preemptions=0,
    queue_steps=Distribution(1.0, 2.0, 3.0),
    ttft=Distribution(0.1, 0.2, 0.4),
    itl=Distribution(0.01, 0.02, 0.04),
    e2e=Distribution(1.0, 2.0, 4.0),
    num_within_slo=3,
)
FASTER = replace(RECORDED, makespan=5.0, num_steps=500, num_preemptions=2, ttft=Distribution())
QUESTION = Question(source="a.seqtop", changes=["max_num_seqs=16"])
BASIS = Basis("a.seqtop", PROVEN, 4, 0, [], RECORDED, MODEL)


def predicted(**fields: Any) -> Prediction:
    values: dict[str, Any] = {
        "unchanged": ReplayResult(figures=RECORDED),
        "predicted": ReplayResult(figures=FASTER, num_steps=500),
    }
    return Prediction(
        QUESTION, BASIS, {"max_num_seqs": 16}, {"max_num_seqs": 8}, **(values | fields)
    )


ANSWERS: dict[str, report.Answer] = {
    "prediction": predicted(),
    "guess": replace(
        predicted(
            predicted=ReplayResult(
                figures=FASTER,
                num_steps=1500,
                num_extrapolated=1001,
                share_extrapolated=0.25,
                num_following=3,
                cut={"x": 1.0, "y": 2.0, "z": 3.0},
                refused={"p": "it is too long", "q": "it is, too"},
            ),
            changed=[ChangedRequest("r", 2.0, 1.0, {"seq_limit": -1.0}, 0, 0)],
            distance=ModelDistance(99, 0.4, 0.3, 0.5),
        ),
        question=replace(QUESTION, arrivals="closed-loop", scale_arrivals=1.5, without=["s", "t"]),
        basis=replace(BASIS, num_free_lengths=1000, num_requests=2000, unfinished=["x"]),
    ),
    "one run": replace(
        predicted(unchanged=None),
        basis=replace(
            BASIS,
            proof=None,
            trace=TraceSummary("csv", {"no length": 1000}),
            settings={"a": 0.5, "b": "c", "max_num_seqs": 8},
        ),
    ),
    "uncertain times": replace(
        predicted(),
        basis=replace(
            BASIS,
            step_time=replace(
                MODEL,
                given=["step"],
                uncertain=["prefill", "decode"],
                held_out_error=0.05,
                total_error=-0.0123,
            ),
            calibrations=[Calibration("b.seqtop", 1, 1.25), Calibration("c.seqtop", 2000, None)],
        ),
    ),
    "no times": replace(
        predicted(), basis=replace(BASIS, step_time=None, times_unknown="they are not recorded")
    ),
    "not proven": replace(
        predicted(predicted=None, unchanged=None),
        basis=replace(
            BASIS,
            proof=Proof(
                1001,
                999,
                Difference("admission", "one", "other", 0, -1, "of a limit"),
                "engine 2",
                starts_late=True,
            ),
        ),
    ),
    "only repeated": replace(
        predicted(predicted=None, unchanged=None),
        question=Question(source="a"),
        basis=replace(BASIS, proof=replace(PROVEN, num_steps=1, is_complete=False)),
    ),
    "sweep": Sweep(
        question=QUESTION,
        basis=BASIS,
        slo={"ttft": 0.5},
        recorded={"max_num_seqs": 8, "watermark": 0.01},
        points=[
            Point(settings={"max_num_seqs": 8, "watermark": 0.5}, figures=RECORDED),
            Point(
                settings={"max_num_seqs": 16, "watermark": 0.5},
                figures=replace(FASTER, e2e=Distribution(p90=1.0)),
                is_beyond=True,
                num_refused=1,
            ),
            Point(
                settings={"max_num_seqs": 0, "watermark": 0.5},
                figures=RunFigures(),
                error="it is 0",
            ),
            Point(settings={"max_num_seqs": 1, "watermark": 0.5}, figures=RunFigures()),
        ],
    ),
    "sweep without objectives": Sweep(
        question=replace(QUESTION, changes=[], scale_arrivals=2.0),
        basis=replace(BASIS, unfinished=["x", "y"]),
        slo={},
        recorded={"max_num_seqs": 8},
        points=[
            Point(settings={"max_num_seqs": 8}, figures=RunFigures()),
            Point(
                settings={"max_num_seqs": 4}, figures=replace(RECORDED, e2e=Distribution(p90=0.5))
            ),
        ],
    ),
    "capacity": Capacity(
        question=QUESTION,
        basis=BASIS,
        slo={"ttft": 0.5},
        requests_per_second=2.0,
        highest=1.0,
        lowest_missed=2.0,
        points=[
            Point(load=1.0, figures=RECORDED, is_beyond=True),
            Point(load=2.0, figures=replace(RECORDED, num_within_slo=2), num_refused=2),
        ],
    ),
    "no capacity": Capacity(
        question=QUESTION,
        basis=BASIS,
        slo={"ttft": 0.5},
        requests_per_second=None,
        lowest_missed=0.25,
        points=[Point(load=0.25, figures=RunFigures(), is_beyond=True)],
    ),
    "any capacity": Capacity(
        question=QUESTION,
        basis=BASIS,
        slo={"ttft": 0.5},
        requests_per_second=2.0,
        highest=8.0,
        points=[
            Point(load=8.0, figures=RECORDED),
            Point(load=4.0, figures=RECORDED, is_beyond=True),
        ],
    ),
    "no sweep": Sweep(question=QUESTION, basis=BASIS, slo={}, recorded={}),
}


def a_trial(num_within: int, *, load: float | None = None, **settings: Any) -> Trial:
    within = {"ttft": num_within, "e2e": 4}
    figures = replace(
        RECORDED,
        num_within=within,
        num_within_slo=num_within,
        num_preemptions=1_000 * num_within,
        tpot=Distribution(0.01, 0.02, 0.03),
    )
    return Trial(settings=settings, figures=figures, highest_load=load)


AS_RECORDED = a_trial(2, load=0.0)
BETTER = a_trial(3, load=1.25, max_num_seqs=16, scheduling_policy="/policies/mine.py")
GUESSED = replace(a_trial(1, block_size=32), is_beyond=True, num_refused=1)


def advice(*trials: Trial, recorded: Trial | None = AS_RECORDED, **fields: Any) -> Advice:
    values: dict[str, Any] = {"slo": {"ttft": 0.5, "e2e": 5.0}, "requests_per_second": 2.0}
    basis = replace(BASIS, settings={"max_num_seqs": 8})
    return Advice(
        question=QUESTION, basis=basis, trials=[*trials], recorded=recorded, **(values | fields)
    )


ADVICE = {
    "advice": advice(
        *(BETTER, AS_RECORDED, GUESSED),
        num_tried=1_000,
        refused={str(number): f"for reason {number}" for number in range(4)},
        not_searched={"block_size": "it is fixed"},
        limit="no free blocks",
        is_partial=True,
    ),
    "advice of the recorded settings": advice(
        *(AS_RECORDED, GUESSED),
        requests_per_second=None,
        refused={str(number): f"for reason {number}" for number in range(3)},
    ),
    "no advice": advice(recorded=None),
}


@pytest.mark.parametrize(
    ("best", "recorded", "fields", "sentence"),
    [
        (None, None, {}, "no advice: nothing was predicted"),
        (None, AS_RECORDED, {}, "no advice: nothing was predicted"),
        (BETTER, None, {}, "no advice: nothing was predicted"),
        (
            a_trial(4),
            a_trial(4),
            {},
            "no setting that was tried does better than the recorded ones, goodput 100%",
        ),
        (
            a_trial(2, max_num_seqs=16),
            AS_RECORDED,
            {},
            (
                "no setting that was tried does better than the recorded ones, goodput 50%;"
                " TTFT is the objective that is missed most"
            ),
        ),
        (
            a_trial(4, max_num_seqs=16),
            AS_RECORDED,
            {"limit": "no free blocks"},
            (
                "max_num_seqs 8 → 16 lifts goodput from 50% to 100%; requests still wait for:"
                " no free blocks"
            ),
        ),
        (
            replace(a_trial(2, other=1), figures=replace(AS_RECORDED.figures, ttft=Distribution())),
            AS_RECORDED,
            {"slo": {}},
            "no setting that was tried does better than the recorded ones, goodput 50%",
        ),
        (
            replace(
                a_trial(2, other=1),
                figures=replace(AS_RECORDED.figures, ttft=Distribution(0.1, 0.1, 0.1)),
            ),
            AS_RECORDED,
            {},
            (
                "other None → 1 leaves goodput at 50%, and lowers the latencies;"
                " TTFT is the objective that is missed most"
            ),
        ),
    ],
)
def test_advice_in_one_sentence(
    best: Trial | None, recorded: Trial | None, fields: dict[str, Any], sentence: str
) -> None:
    trials = [best] if best is not None else []
    assert advise.sentence(advice(*trials, recorded=recorded, **fields)) == sentence


def test_the_loads_that_hold_in_one_sentence() -> None:
    of_better = "1.25x (2.5/s) with max_num_seqs=16, scheduling_policy=mine"
    of_recorded = "none tried as recorded"
    sentences = [
        advice_report.load_sentence(own)
        for own in (
            *(advice(BETTER), advice(AS_RECORDED), advice(BETTER, recorded=a_trial(1))),
            *(advice(GUESSED, recorded=None), advice()),
        )
    ]
    begin = "load that holds for 99%: "
    assert sentences == [
        f"{begin}{of_recorded}; {of_better}",
        begin + of_recorded,
        begin + of_better,
        *("", begin + of_recorded),
    ]


def test_every_line_of_an_answer(request: pytest.FixtureRequest) -> None:
    """`pytest tests/whatif/test_report.py --update` stores them anew."""
    texts = [f"=== {name}\n{report.as_text(answer)}" for name, answer in ANSWERS.items()]
    texts += [f"=== {name}\n{advice_report.as_text(own)}" for name, own in ADVICE.items()]
    whole = "\n\n".join(texts) + "\n"
    if request.config.getoption("--update"):
        STORED.write_text(whole, encoding="utf-8", newline="")
    assert whole.splitlines() == STORED.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_the_json_of_an_answer_has_all_of_it(answer: report.Answer) -> None:
    document = json.loads(report.as_json(answer))
    assert document.pop("is_proven") is (
        answer is not ANSWERS["not proven"] and answer is not ANSWERS["only repeated"]
    )
    assert document == json.loads(msgspec.json.encode(answer))


@pytest.mark.parametrize(
    ("share", "bar"),
    [
        (-1.0, ""),
        (0.0, ""),
        (1 / 192, "▏"),
        (3 / 192, "▍"),
        (7 / 192, "▉"),
        (8 / 192, "█"),
        (15 / 192, "█▉"),
        (1.0, 24 * "█"),
        (2.0, 24 * "█"),
    ],
)
def test_a_bar_is_as_long_as_its_share(share: float, bar: str) -> None:
    assert report._bar(share) == bar.ljust(24)


def test_caveats_are_sentences_of_the_text() -> None:
    assert report.caveats(predicted()) == []
    guess = ANSWERS["guess"]
    assert isinstance(guess, Prediction)
    found = report.caveats(guess)
    lines = [line.strip() for line in report.as_text(guess).splitlines()]
    assert len(found) == 7
    assert all(sentence in lines for sentence in found)
