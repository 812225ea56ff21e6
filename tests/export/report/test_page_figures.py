"""The figures and sentences of the page of a run of three requests that is written by hand."""

import math
import re
from pathlib import Path

import msgspec
import pytest

from seqtop.export.report import page
from seqtop.export.report.contents import Contents
from seqtop.history.copying import save
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.slo import parse
from seqtop.wire.messages import RequestFinished, StepStats
from tests.export.report.test_page import read, shown, written
from tests.support.broken_recordings import record
from tests.support.events import (
    arrival,
    delta,
    engine_info,
    full,
    preemption,
    stats,
    step,
    update,
    wait_reason,
)
from tests.support.scripted import ScriptedSource

RUNNING, STOPPED = SequenceStatus.RUNNING, SequenceStatus.FINISHED_STOPPED


def ended(number: int, end: float, status: SequenceStatus, queue: float) -> RequestFinished:
    metrics = RequestMetrics(float(number), end, number + queue, 11.0, queue, end)
    return RequestFinished(request_id=f"req-{number}", time=end, status=status, metrics=metrics)


def busy(used: int, queries: int, **figures: int) -> StepStats:
    return stats(
        num_running=2, num_used_blocks=used, num_free_blocks=10 - used,
        prefix_cache_queries=queries, prefix_cache_hits=2, **figures,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """Steps from 10 to 20 s; the first request ends after 11 s, the second after 13 s."""
    both = full("req-1", 1, chunk=3), full("req-2", 2, chunk=3)
    slots = [wait_reason("req-3", "seq_limit")]
    events = (
        engine_info(num_gpu_blocks=10),
        arrival(1),
        arrival(2),
        arrival(3),
        step(
            0,
            *both,
            start_time=10.0,
            time=11.0,
            sequences=[
                update(1, RUNNING, 3, tokens=[5], blocks=[0]),
                update(2, RUNNING, 3, tokens=[6], blocks=[1]),
            ],
            wait_reasons=slots,
            stats=busy(2, 6, num_prefill_tokens=6, num_waiting=1),
        ),
        step(
            1,
            delta("req-1", 1, tokens=[5]),
            delta("req-2", 2, tokens=[6]),
            start_time=11.0,
            time=12.0,
            sequences=[
                update(1, computed=4, tokens=[5, 6], blocks=[2, 3]),
                update(2, computed=4, tokens=[6]),
            ],
            wait_reasons=slots,
            stats=busy(4, 6, num_decode_tokens=2, num_waiting=1),
        ),
        ended(1, 12.0, SequenceStatus.FINISHED_STOPPED, 9.0),
        step(
            2,
            start_time=12.0,
            time=14.0,
            sequences=[update(2, SequenceStatus.WAITING, 0, table=[])],
            preemptions=[preemption("req-2", lost=4, by="req-3")],
            wait_reasons=[wait_reason("req-2", "no_blocks", 2)],
            stats=busy(0, 8, num_preemptions=1),
        ),
        ended(2, 15.0, SequenceStatus.FINISHED_LENGTH_CAPPED, 8.0),
        step(3, start_time=16.0, time=20.0, stats=busy(0, 8, num_preemptions=1)),
    )
    path = tmp_path_factory.mktemp("page") / "run.seqtop"
    record(path, events)
    return read(path, parse("e2e=12"))


def section(run: Contents, title: str) -> str:
    """Returns the words of a part of the page."""
    (part,) = re.findall(f"<h2>{title}</h2>(.*?)(?:<h2>|$)", written(run), flags=re.DOTALL)
    return " ".join(shown(part).split())


def test_the_samples_of_the_run(run: Contents) -> None:
    assert run.samples() == {
        "ttft": [9.0, 10.0], "itl": [0.5, 0.5, 1.0], "tpot": [0.5, 4.0], "queue": [8.0, 9.0],
        "e2e": [11.0, 13.0],
    }  # fmt: skip
    assert run.lengths() == {"prompt": [3.0, 3.0, 3.0], "output": [2.0, 3.0]}
    assert (run.num_met, run.duration) == (1, 10.0)
    for end in (run.start - 1.0, math.inf):
        assert msgspec.structs.replace(run, end=end).duration == 0.0
    assert sum(it.seconds for it in run.intervals) == pytest.approx(10.0)
    assert sum(it.sums["generated"] for it in run.intervals) == pytest.approx(5.0)


def test_the_tiles_of_a_page(run: Contents) -> None:
    tiles = re.findall(r'<div class="tile">(.*?)<b>(.*?)</b><small>(.*?)</small>', written(run))
    more = "2 requests; 1 more had not come so far"
    assert tiles == [
        ("Requests", "3", "stop 1, length 1, unfinished 1"),
        ("Output tokens per second", "0.5", "5 tokens"),
        ("Prompt tokens per second", "0.6", "6 computed, of prompts"),
        ("TTFT, p50", "9.50 s", f"p90 9.90 s, p99 9.99 s, {more}"),
        ("ITL, p50", "500 ms", "p90 900 ms, p99 990 ms, 3 gaps"),
        ("TPOT, p50", "2.25 s", f"p90 3.65 s, p99 3.96 s, {more}"),
        ("Queue, p50", "8.50 s", f"p90 8.90 s, p99 8.99 s, {more}"),
        ("E2E, p50", "12.0 s", f"p90 12.8 s, p99 13.0 s, {more}"),
        ("Goodput, requests per second", "0.1", "1 of 2 met E2E ≤ 12.0 s"),
        ("Prefix cache hits", "25%", "of prompt tokens, since the engine's start"),
        ("Preemptions", "1", "4 computed tokens lost"),
        ("KV blocks used at most", "40%", "4 of 10"),
        ("Recorded time", "10.0 s", "4 steps"),
    ]


@pytest.mark.parametrize(
    ("title", "words"),
    [
        (
            "What limited the batches",
            ("max_num_seqs 50% 2 25% no free blocks 25% 1 25% nothing waits 25% 1 50%"),
        ),
        (
            "Requests",
            (
                "All 3 requests, in order of arrival. 3 arrived before the first recorded step."
                " queued prefill decode preempted swapped between steps req-1: 3 prompt tokens,"
                " TTFT 10.0 s, E2E 11.0 s, stop req-1 req-2: 3 prompt tokens, TTFT 9.00 s, E2E"
                " 13.0 s, length req-2 req-3"
            ),
        ),
        (
            "Groups of requests",
            (
                "are those after step 1, when most blocks were in use; the rest is of the whole"
                " run. prefix Requests Running Waiting Blocks KV Prompt Out Pre Waited TTFT p50"
            ),
        ),
        (
            "Preemptions",
            (
                "1 preemption, those that lost most tokens first. after step 2.00 s 2 req-2 was"
                " preempted to make room for req-3; 4 computed tokens will be recomputed."
            ),
        ),
        (
            "Slowest requests",
            "req-2 -8.00 s 3 2 TTFT 9.00 s, end to end 13.0 s (length) 8.00 s (62%) queued",
        ),
        (
            "Distributions",
            "TTFT p50 9.50 s, p90 9.90 s, p99 9.99 s, largest 10.0 s",
        ),
        ("Over time", "Tokens per second prefill decode 7 0"),
    ],
)
def test_the_words_of_a_page(run: Contents, title: str, words: str) -> None:
    assert words in section(run, title)


def test_bars_show_the_shares_of_the_steps_that_each_reason_limited(run: Contents) -> None:
    part = written(run).split("<h2>What limited the batches</h2>")[1].split("<h2>")[0]
    assert re.findall(r'<rect class="queued" width="([^"]*)"', part) == ["50", "25", "25"]


@pytest.mark.parametrize(
    ("count", "more"), [(5, ""), (6, " and 1 more"), (1_005, " and 1,000 more")]
)
def test_of_many_gaps_five_are_named(run: Contents, count: int, more: str) -> None:
    gaps = [(10.0 + number, f"gap {number}") for number in range(count)]
    (words,) = re.findall(
        '<p class="warning">(.*?)</p>', written(msgspec.structs.replace(run, gaps=gaps))
    )
    assert words == (
        f"{count:,} gaps in the recorded time: gap 0 at 0 s, gap 1 at 1.00 s, gap 2 at 2.00 s,"
        f" gap 3 at 3.00 s, gap 4 at 4.00 s{more}."
    )


def test_a_scale_has_no_more_than_four_powers_of_ten(tmp_path: Path) -> None:
    """A request that did not wait makes no scale that is too long to read."""
    events = arrival(1), arrival(2), step(0), ended(1, 20.0, STOPPED, 0.0)
    path = tmp_path / "run.seqtop"
    record(path, (engine_info(), *events, ended(2, 20.0, STOPPED, 9.0)))
    caption = "Queue p50 4.50 s, p90 8.10 s, p99 8.91 s, largest 9.00 s; the first bar also has all"
    words = section(read(path), "Distributions")
    assert f"{caption} below 900 µs" in words
    assert "p99: 8.91 s 1.00 ms 3.00 ms 10.0 ms 30.0 ms 100 ms 300 ms 1.00 s 3.00 s E2E" in words
    assert "Output tokens p50 0, p90 0, p99 0, largest 0 2 0 p50" in words, "none is below 0"


def test_the_tokens_of_each_kind_are_drawn_over_time(run: Contents) -> None:
    chart = written(run).split("<h3>Tokens per second</h3>")[1].split("<h3>")[0]
    for style in ("prefill", "decode"):
        assert re.search(rf'<path class="{style}" d="M\d', chart) is not None


def test_a_chart_over_time_is_as_wide_as_the_recorded_time(run: Contents) -> None:
    chart = written(run).split("<h3>The engine's time</h3>")[1].split("<h3>")[0]
    assert re.findall(r'<text class="end" x="56" y="\d+">([^<]*)</text>', chart) == ["100%", "0"]
    assert max(float(x) for x in re.findall(r"H([\d.]+)", chart)) == 712.0


def test_a_step_that_ends_before_it_begins_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record(path, (engine_info(), step(0), step(1, start_time=103.0, time=102.0)))
    (share,) = read(path).limits()
    assert (share.num_steps, share.seconds) == (2, 0.5)


def test_the_phases_of_a_request_on_the_axis(run: Contents) -> None:
    """They are 65 units a second from the first step on, and end with the request."""
    part = written(run).split("<h2>Requests</h2>")[1].split("<h2>")[0]
    rows = re.findall(r"<g><title>(\S+): .*?</g>", part)
    assert rows == ["req-1", "req-2", "req-3"]
    first, second, third = re.findall(r"<g>.*?</g>", part)
    assert 'class="between" d="M62 8h130v12h-130z"' in first
    assert 'class="decode" d="M127 8h65v12h-65z"' in first
    assert 'class="between" d="M62 22h325v12h-325z"' in second
    assert 'class="between" d="M62 36h650v12h-650z"' in third


def test_a_long_chart_has_the_requests_around_the_slowest(
    run: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 2)
    monkeypatch.setattr(page, "ROWS_AROUND", 2)
    words = section(run, "Requests")
    assert words.startswith(
        "2 of 3 requests: those that arrived around req-2, the slowest. The axis begins"
        " 0 s after the first recorded step. 3 arrived before the first recorded step."
    )
    assert ("req-1:" in words, "req-2:" in words, "req-3:" in words) == (True, True, False)
    monkeypatch.setattr(run, "slowest", [])
    assert "The first 2 of 3 requests." in section(run, "Requests")


def test_prompts_are_shown_with_the_text(run: Contents) -> None:
    text = written(run, with_text=True)
    assert text.count("<details><summary>prompt</summary><pre>a b c</pre></details>") == 3
    assert text.count("<details><summary>output</summary><pre>unknown</pre></details>") == 3


def test_gaps_and_starts_of_the_engine_are_named_first(tmp_path: Path) -> None:
    source = ScriptedSource(engine_info(max_num_seqs=8), arrival(1), step(0), step(1))
    source.replace(source.state, num_missed=3)
    source.apply(step(5))
    state = EngineState()
    state.apply(engine_info(incarnation="two", max_num_seqs=9))
    state.time = 110.0
    source.replace(state)
    source.apply(step(12))
    save(source.history, tmp_path / "run.seqtop")
    contents = read(tmp_path / "run.seqtop")
    assert [len(own.steps) for own in contents.runs] == [3, 1]
    assert contents.info == state.info
    words = re.findall('<p class="warning">(.*?)</p>', written(contents))
    assert words[:2] == [
        "The recording has 2 runs of the engine; the settings are those of the last one.",
        (
            "2 gaps in the recorded time: 3 messages missing at 1.50 s, the engine was restarted at"
            " 10.0 s."
        ),
    ]
    assert "max_num_seqs 9" in section(contents, "Engine and settings")
