"""The kinds of decisions that a recorded run has."""

from collections import Counter
from pathlib import Path

import pytest

from engine_stub.core import scheduler
from seqtop.diff.run import RunDecisions
from seqtop.history import FileStore
from seqtop.whatif.decision_kinds import (
    BUNDLED,
    KINDS,
    VLLM,
    WATERMARK,
    DecisionCounter,
    kinds_of,
)
from seqtop.whatif.driver import DRIVERS
from seqtop.wire.messages import ControlCall, Event
from tests.support.events import arrival, engine_info, step, wait_reason
from tests.support.scheduler_recordings import LOADS, record_all

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunDecisions, Counter[str]]]:
    """The decisions of the ten recordings, and their numbers by kind."""
    found = {}
    for path in record_all(tmp_path_factory.mktemp("runs")):
        counter = DecisionCounter()
        with FileStore(path) as recording:
            found[path.stem] = RunDecisions(recording, readers=[counter]), counter.counts
    return found


def test_the_recordings_have_all_kinds(
    runs: dict[str, tuple[RunDecisions, Counter[str]]],
) -> None:
    total: Counter[str] = Counter()
    for _, counts in runs.values():
        total += counts
    assert {*total} == {kind.name for kind in kinds_of("engine_stub 0.1.0")}
    assert {*runs} == {*LOADS}


def test_the_numbers_are_those_of_the_decisions_that_are_compared(
    runs: dict[str, tuple[RunDecisions, Counter[str]]],
) -> None:
    for name, (run, counts) in runs.items():
        admitted = [cached for step in run.steps for _, cached in step.admitted]
        found = {
            "admissions": len(admitted),
            "recompute": sum(
                mode == "recompute" for own in run.steps for *_, mode in own.preempted
            ),
            "swap": sum(mode == "swap" for own in run.steps for *_, mode in own.preempted),
            "itself": sum(number == for_ for own in run.steps for number, for_, _ in own.preempted),
            "waits": sum(len(own.waits) for own in run.steps),
            "ends": Counter(request.end for request in run.requests),
        }
        waits = ("seq_limit", "token_budget", "no_blocks", "watermark", "held_back")
        aborted = sum(counts[f"aborted_{where}"] for where in ("running", "waiting", "swapped"))
        ends = {
            "FINISHED_STOPPED": counts["stopped"],
            "FINISHED_LENGTH_CAPPED": counts["length"],
            "FINISHED_IGNORED": counts["ignored"],
            "FINISHED_ABORTED": aborted,
        }
        assert found == {
            "admissions": counts["admitted"] + counts["readmitted"] + counts["swapped_in"],
            "recompute": counts["recomputed"],
            "swap": counts["swapped_out"],
            "itself": counts["preempted_itself"],
            "waits": sum(counts[cause] for cause in waits),
            "ends": {end: count for end, count in ends.items() if count},
        }, name


def test_a_kind_is_counted_only_where_the_settings_have_it(
    runs: dict[str, tuple[RunDecisions, Counter[str]]],
) -> None:
    only = {
        "lookahead": {"lookahead"},
        "drafted": {"drafts"},
        "swapped_in": {"swapping", "beams"},
        "forked": {"beams"},
        "copied": {"beams"},
        "priority": {"priorities", "swapping"},
        "ignored": {"arrivals"},
        "prefix_ignored": {"no_cache_use"},
        "watermark": {"large_pool"},
    }
    for kind, names in only.items():
        assert {name for name, (_, counts) in runs.items() if counts[kind]} == names, kind
    assert not runs["priorities"][1]["prefix_shared"]
    assert not runs["whole_prompts"][1]["chunked"]


def test_pauses_and_resets_of_the_prefix_cache() -> None:
    events: list[Event] = [
        engine_info(engine="vLLM 0.33.0"),
        arrival(0),
        step(0, wait_reasons=[wait_reason("req-0", "paused")]),
        step(
            1,
            control_calls=[
                ControlCall(name="reset_prefix_cache", argument=False, num_schedule_calls=1)
            ],
        ),
    ]
    counter = DecisionCounter()
    for position, event in enumerate(events):
        counter.apply(position, event, ())
    assert +counter.counts == {"paused": 1, "cache_reset": 1}


def test_each_engine_with_a_driver_has_kinds() -> None:
    assert {*DRIVERS} == {BUNDLED, VLLM} == {name for kind in KINDS for name in kind.engines}
    assert len({kind.name for kind in KINDS}) == len({kind.title for kind in KINDS}) == len(KINDS)


def test_the_watermark_is_that_of_the_bundled_scheduler() -> None:
    assert WATERMARK == scheduler._WATERMARK


def test_the_document_lists_the_kinds() -> None:
    text = (ROOT / "docs" / "recorded-tests.md").read_text(encoding="utf-8")
    table = text.split("| decision | counted | engine |\n|---|---|---|\n")[1].split("\n\n")[0]
    names = {BUNDLED: "bundled", VLLM: "vLLM"}
    assert table.splitlines() == [
        f"| {kind.title} | {kind.meaning} | {', '.join(map(names.__getitem__, kind.engines))} |"
        for kind in KINDS
    ]
