"""The kinds of decisions that a recorded run has."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine_stub.core import scheduler
from seqtop.diff.run import RunDecisions
from seqtop.history import FileStore
from seqtop.history.replay import Replay
from seqtop.sequence import ExecuteModelRequest, RequestMetrics, SamplingParams, SequenceStatus
from seqtop.whatif.decision_kinds import (
    BUNDLED,
    KINDS,
    VLLM,
    WATERMARK,
    DecisionCounter,
    kinds_of,
)
from seqtop.whatif.driver import DRIVERS
from seqtop.wire.messages import (
    ControlCall,
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    WaitCause,
)
from tests.support.decided_runs import recorded
from tests.support.events import (
    arrival,
    delta,
    engine_info,
    full,
    preemption,
    step,
    update,
    wait_reason,
)
from tests.support.scheduler_recordings import LOADS, record_all

ABORTED = SequenceStatus.FINISHED_ABORTED
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


def counted(*events: Event, **settings: Any) -> Counter[str]:
    """The numbers by kind in a run of an engine whose pool has 300 blocks."""
    info = engine_info(**{"engine": "engine_stub 1", "num_gpu_blocks": 300} | settings)
    counter = DecisionCounter()
    for position, event in enumerate((info, *events)):
        counter.apply(position, event, ())
    return +counter.counts


def arrived(number: int, priority: int = 0, **params: Any) -> RequestArrived:
    event = arrival(number)
    event.priority, event.sampling_params = priority, SamplingParams(**params)
    return event


def ended(number: int, status: SequenceStatus) -> RequestFinished:
    metrics = RequestMetrics(0.0, 0.0, None, None, None)
    return RequestFinished(request_id=f"req-{number}", time=1.0, status=status, metrics=metrics)


def waits(cause: WaitCause, missing: int = 0) -> Step:
    return step(0, wait_reasons=[wait_reason("req-1", cause, missing)])


TWO = (arrived(1), arrived(2), step(0, full("req-1", 1, chunk=3), full("req-2", 2, chunk=3)))


@pytest.mark.parametrize(
    ("events", "counts"),
    [
        (TWO, {"admitted": 2}),
        ((*TWO, step(1, delta("req-1", 1), delta("req-2", 2))), {"admitted": 2, "batched": 1}),
        ((*TWO, step(1, delta("req-1", 1), delta("req-1", 1))), {"admitted": 2}),
        (
            (*TWO, step(1, delta("req-1", 1), full("req-2", 2, chunk=3))),
            {"admitted": 2, "mixed": 1, "chunked": 1},
        ),
        ((step(0, delta("other", 9)),), {}),
        (
            (arrived(1), step(0, full("req-1", 1, chunk=3, cached=1))),
            {"admitted": 1, "prefix_shared": 1},
        ),
        (
            (arrived(1, prompt_logprobs=1), step(0, full("req-1", 1, chunk=3))),
            {"admitted": 1, "prefix_ignored": 1},
        ),
        ((arrival(1), step(0, full("req-1", 1, chunk=3))), {"admitted": 1, "prefix_ignored": 1}),
        (
            (
                *TWO,
                step(1, preemptions=[preemption("req-1", by="req-1"), preemption("other", by="x")]),
                step(2, full("req-1", 1, chunk=3, cached=2)),
            ),
            {
                "admitted": 2,
                "recomputed": 2,
                "preempted_itself": 1,
                "readmitted": 1,
                "prefix_shared": 1,
            },
        ),
        (
            (
                *TWO,
                step(1, preemptions=[preemption("req-1", mode="swap", by="req-2")]),
                step(2, full("req-1", 1, chunk=3, cached=2)),
                step(3, full("req-1", 1, chunk=3)),
            ),
            {"admitted": 2, "swapped_out": 1, "swapped_in": 1, "chunked": 1},
        ),
        (
            (step(0, sequences=[update(1), update(2, parent=1), update(3, drafted=0)]),),
            {"forked": 1, "drafted": 1},
        ),
        ((step(0, uncached_blocks=[1, 2]),), {"evicted": 1}),
        ((step(0, execute=ExecuteModelRequest([], num_lookahead_slots=1)),), {"lookahead": 1}),
        ((step(0, execute=ExecuteModelRequest([], blocks_to_copy=[(1, 2)])),), {"copied": 1}),
        (
            (waits("seq_limit"), waits("token_budget"), waits("token_budget")),
            {"seq_limit": 1, "token_budget": 2},
        ),
        ((waits("no_blocks"),), {"held_back": 1}),
        ((waits("no_blocks", 1), waits("no_blocks", 3)), {"watermark": 2}),
        ((waits("no_blocks", 4),), {"no_blocks": 1}),
        ((waits("paused"), waits("unknown"), waits("lora_slots")), {"paused": 1}),
        (
            (*TWO, ended(1, SequenceStatus.FINISHED_STOPPED)),
            {"admitted": 2, "stopped": 1},
        ),
        ((ended(1, SequenceStatus.FINISHED_LENGTH_CAPPED),), {"length": 1}),
        ((ended(1, SequenceStatus.FINISHED_IGNORED),), {"ignored": 1}),
        ((ended(1, SequenceStatus.FINISHED_ABORTED),), {"aborted_running": 1}),
        (
            (arrived(3), *TWO, *(ended(number, ABORTED) for number in (1, 3))),
            {"admitted": 2, "aborted_running": 1, "aborted_waiting": 1},
        ),
        (
            (
                *TWO,
                step(1, preemptions=[preemption("req-1", mode="swap"), preemption("req-2")]),
                *(ended(number, ABORTED) for number in (1, 2)),
            ),
            {
                "admitted": 2,
                "swapped_out": 1,
                "recomputed": 1,
                "aborted_swapped": 1,
                "aborted_waiting": 1,
            },
        ),
        (
            (arrived(1, 1), arrived(2, 0), step(0, full("req-2", 2, chunk=3))),
            {"admitted": 1, "priority": 1},
        ),
        (
            (arrived(2, 0), arrived(1, 1), step(0, full("req-2", 2, chunk=3))),
            {"admitted": 1},
        ),
        (
            (arrived(1, 1), arrived(2, 1), arrived(3, 0), step(0, full("req-2", 2, chunk=3))),
            {"admitted": 1},
        ),
        (
            (
                *(arrived(1, 1), step(0, full("req-1", 1, chunk=3))),
                *(arrived(2, 0), step(0, full("req-2", 2, chunk=3))),
            ),
            {"admitted": 2},
        ),
    ],
)
def test_the_decisions_of_a_few_steps(events: tuple[Event, ...], counts: dict[str, int]) -> None:
    assert counted(*events) == counts


def test_the_counted_decisions_depend_on_the_engine() -> None:
    blocks = [waits("no_blocks", missing) for missing in (0, 1, 3, 4)]
    assert counted(*blocks) == {"held_back": 1, "watermark": 2, "no_blocks": 1}
    assert counted(*blocks, num_gpu_blocks=299) == {"held_back": 1, "watermark": 1, "no_blocks": 2}
    assert counted(*blocks, engine="vLLM 0.33.0") == {"no_blocks": 4}
    calls = [
        ControlCall(name=name, argument=False, num_schedule_calls=1)
        for name in ("reset_prefix_cache", "set_pause_state", "reset_prefix_cache")
    ]
    assert counted(step(1, control_calls=calls)) == {"cache_reset": 2}
    slots = step(0, execute=ExecuteModelRequest([], num_lookahead_slots=1))
    for settings, count in (({"speculative": "ngram"}, 0), ({"speculative": None}, 1)):
        assert counted(slots, scheduler_settings=settings)["lookahead"] == count
    own = arrival(1), step(0, full("req-1", 1, chunk=3))
    assert not counted(*own, enable_prefix_caching=False)["prefix_ignored"]


def test_requests_that_a_recording_begins_with_are_counted() -> None:
    """Those that have not ended, in their order and with their parameters."""
    events: tuple[Event, ...] = (
        *(engine_info(engine="engine_stub 1"), arrived(1, 1), arrived(2, prompt_logprobs=1)),
        *(arrived(3), ended(3, SequenceStatus.FINISHED_IGNORED), arrived(4)),
        step(0, *(full(f"req-{number}", number, chunk=3) for number in (2, 3, 4))),
        waits("no_blocks"),
    )
    counter = DecisionCounter()
    Replay(recorded(events, first=6), [counter]).run()
    assert +counter.counts == {"admitted": 2, "prefix_ignored": 1, "priority": 2, "held_back": 1}


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
