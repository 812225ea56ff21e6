"""Tests of the misses of a run: causes, admissions, sums over time, and what is not known."""

import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileWriter
from seqtop.misses import cache_misses
from seqtop.misses.cache_misses import CacheMisses, Lookup, Totals
from seqtop.misses.pool_replay import GROWTH
from seqtop.misses.report import as_text, describe
from seqtop.sequence import RequestMetrics, SequenceGroupMetadata, SequenceStatus
from seqtop.state import EngineState
from seqtop.whatif.replay import RecordingSink
from seqtop.wire import codec, parsing
from seqtop.wire.messages import (
    ControlCall,
    Event,
    MissCause,
    RequestFinished,
    SequenceUpdate,
    Step,
)
from seqtop.wire.redaction import redact
from tests.support.cache_runs import WORKLOADS, CacheRequest, documents, misses_of, run
from tests.support.events import engine_info
from tests.support.scripted_cache import ScriptedCache, missed

A = [1, 2, 3, 4, 5, 6, 7, 8, 9]
"""A prompt of two blocks of 4 and one token."""
FINISHED = SequenceStatus.FINISHED_STOPPED


@functools.cache
def evictions() -> list[bytes]:
    """The messages of a run with many evictions."""
    return run([*documents(random.Random(5), count=40, num_documents=12)], num_gpu_blocks=40)


@functools.cache
def preemptions() -> list[bytes]:
    return run(WORKLOADS["documents, preemptions"].requests(), num_gpu_blocks=90)


def events() -> list[Event]:
    """Returns new messages of the run: a state changes those that it applies."""
    return [parsing.event(payload) for payload in evictions()]


def test_the_sums_are_those_of_the_state() -> None:
    misses, state = misses_of(evictions()), EngineState()
    for event in events():
        state.apply(event)
    totals = misses.totals()
    assert totals.tokens == state.num_missed_tokens
    assert sum(lookup.num_missed_tokens for lookup in misses.lookups) == sum(
        state.num_missed_tokens.values()
    )
    assert state.stats is not None
    assert totals.num_hits * 16 == state.stats.prefix_cache_hits


class Admission(NamedTuple):
    """The facts about one admission that the messages of a run say."""

    position: int
    step: Step
    update: SequenceUpdate
    num_cached_tokens: int
    is_again: bool
    reused_after: list[int | None]
    """By `misses`, the blocks taken since the step of an eviction."""


def admissions(payloads: list[bytes]) -> Iterator[Admission]:
    """Yields the admissions of a run, and counts the blocks that are taken, by its messages."""
    preempted: set[str] = set()
    taken, ends = 0, dict[int | None, int]()
    for position, payload in enumerate(payloads):
        step = parsing.event(payload)
        if not isinstance(step, Step):
            continue
        preempted |= {preemption.request_id for preemption in step.preemptions}
        groups: dict[int, SequenceGroupMetadata] = {}
        for group in step.execute.seq_group_metadata_list if step.execute else ():
            if isinstance(group, SequenceGroupMetadata):
                groups |= dict.fromkeys(group.seq_data, group)
        # Those that run get their blocks first.
        taken += sum(
            len(update.new_blocks) for update in step.sequences if update.prefix_misses is None
        )
        for update in step.sequences:
            if update.prefix_misses is not None:
                group = groups[update.seq_id]
                num_cached = group.seq_data[update.seq_id].get_num_cached_tokens()
                reused = [
                    # In the step that is not over, nothing has been counted yet.
                    taken - ends[miss.step]
                    if miss.cause == "evicted" and miss.step in ends
                    else None
                    for miss in update.prefix_misses
                ]
                is_again = group.request_id in preempted
                yield Admission(position, step, update, num_cached, is_again, reused)
                taken += len(group.block_tables[update.seq_id]) - num_cached // 16
        ends[step.step] = taken


@pytest.mark.parametrize("messages", [evictions, preemptions])
def test_admissions_are_those_of_the_messages(messages: Callable[[], list[bytes]]) -> None:
    payloads = messages()
    misses = misses_of(payloads)
    told = [*admissions(payloads)]
    assert len(told) == len(misses.lookups) > 30
    for number, (lookup, own) in enumerate(zip(misses.lookups, told, strict=True), 1):
        prefix_misses = own.update.prefix_misses or []
        num_missed = sum(miss.num_tokens for miss in prefix_misses)
        assert lookup[:9] == (
            number,
            own.position,
            own.step.step,
            own.step.time,
            f"req-{own.update.seq_id}",
            own.update.seq_id,
            own.num_cached_tokens + num_missed,
            own.num_cached_tokens,
            prefix_misses,
        )
        assert lookup.num_missed_tokens == num_missed
        assert (lookup.is_again, lookup.reused_after) == (own.is_again, own.reused_after)
        text = " ".join(describe(lookup, with_text=False))
        for reused in [after for after in own.reused_after[:3] if after is not None]:
            assert f"reused {reused:,} block{'s' * (reused != 1)} later" in text


@pytest.mark.parametrize("first", [1, 150])
@pytest.mark.parametrize("messages", [evictions, preemptions])
def test_sums_at_every_position_are_those_of_the_admissions(
    messages: Callable[[], list[bytes]], first: int
) -> None:
    payloads = messages()
    misses = misses_of(payloads, first=first)
    assert misses.totals(first - 1) == Totals(0, 0, 0, 0, 0, 0, 0, 0, {}, [0] * 13)
    assert misses.span(first - 1) is None
    own: list[Lookup] = []
    rest = [*misses.lookups]
    for position in range(first, len(payloads)):
        while rest and rest[0].position == position:
            own.append(rest.pop(0))
        totals = misses.totals(position)
        blocks = [(lookup.num_tokens - 1) // 16 for lookup in own]
        hits = [lookup.num_hit_tokens // 16 for lookup in own]
        tokens: Counter[str] = Counter()
        needed, num_again, num_new = [0] * len(GROWTH), 0, 0
        for lookup, num_blocks, num_hits in zip(own, blocks, hits, strict=True):
            for miss in lookup.misses:
                tokens[miss.cause] += miss.num_tokens
                if miss.cause == "new_tokens" and not lookup.is_again:
                    num_new += miss.num_tokens // 16
            for num_needed, percent in lookup.needed:
                assert not lookup.is_again
                needed[GROWTH.index(percent)] += num_needed
            sizes = [percent for _, percent in lookup.needed]
            assert all(one != other for one, other in itertools.pairwise(sizes))
            num_again += (num_blocks - num_hits) * lookup.is_again
        assert totals.num_lookups == len(own)
        assert (totals.num_blocks, totals.num_hits) == (sum(blocks), sum(hits))
        assert (totals.num_again, totals.tokens) == (num_again, tokens)
        assert [0, *totals.needed] == needed
        classes = totals.num_new, totals.num_larger, totals.num_unexplained, *totals.needed
        assert sum(classes) == totals.num_missed_first
        assert misses.until(position) == own[::-1]
        if first == 1:
            assert totals.num_new == num_new
        if own:
            assert misses.span(position) == (own[0].time, own[-1].time)
            removed = [sum(totals.needed[:count]) for count in range(len(GROWTH))]
            assert totals.misses() == [totals.num_missed_first - count for count in removed]
    assert misses.totals() == totals
    assert misses.until() == own[::-1]
    assert not rest
    times = sorted({lookup.time for lookup in own})
    rng = random.Random(first)
    for _ in range(200):
        start, end = sorted(rng.choice(times) + rng.choice((-1e-6, 0.0, 1e-6)) for _ in range(2))
        summed: Counter[str] = Counter()
        for lookup in own:
            if start < lookup.time <= end:
                for miss in lookup.misses:
                    summed[miss.cause] += miss.num_tokens
        assert misses.tokens_between(start, end) == summed


def test_older_sums_are_kept_for_every_second_time() -> None:
    """Of nine rows, where eight are allowed, the first and the third are left out."""
    for max_rows, num_admitted, kept in [
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 9, [1, 3, 4, 5, 6, 7, 8]),
        (8, 11, [3, 5, 6, 7, 8, 9, 10]),
        (3, 4, [1, 2, 3]),
        (3, 5, [2, 3, 4]),
        (7, 8, [1, 3, 4, 5, 6, 7]),
    ]:
        cache = ScriptedCache({"max_rows": max_rows})
        for number in range(num_admitted):
            cache.arrive(f"r{number}", [number])
            cache.step(cache.admit(f"r{number}", [], missed("partial_block", 1)))
        misses, last = cache.misses, cache.position
        sums = [misses.totals(position).num_lookups for position in range(last + 1)]
        rows = [at for at in range(1, last + 1) if sums[at] != sums[at - 1]]
        assert [(at - 2) // 2 for at in rows] == kept
        assert [sums[at] for at in rows] == [number + 1 for number in kept]
        assert misses.span() == (100.5 + kept[0], 100.5 + kept[-1])
        assert misses.tokens_between(0.0, 100.5 + kept[0]) == {"partial_block": kept[0] + 1}


def test_a_difference_to_the_nearest_cached_prefix_is_shown_as_text() -> None:
    story = "Once upon a time there was a little girl who had a red ball and a dog. "
    requests = [
        CacheRequest(0.0, story + "She went to the park.", [5, 6]),
        CacheRequest(1.0, story + "She lived in a house.", [5, 6]),
    ]
    misses = misses_of(run(requests, block_size=4))
    lookup = misses.lookups[-1]
    assert lookup.difference is not None
    assert lookup.difference.request_id == "req-0"
    text = " ".join(describe(lookup, with_text=True))
    assert "The nearest cached prefix, of req-0, differs from token" in text
    assert "“lived in a house.” here, “went to the park.” there." in text
    without = describe(lookup, with_text=False)[-1]
    assert re.fullmatch(r"The nearest cached .* of req-0, differs from token \d+ on\.", without)


def test_a_difference_without_texts_has_the_ids_of_the_tokens() -> None:
    lookups = [lookup for lookup in misses_of(evictions()).lookups if lookup.difference]
    assert lookups
    assert "; the text is not known." in describe(lookups[-1], with_text=True)[-1]


def test_a_sample_of_the_contents_gives_nearly_the_same_curve() -> None:
    payloads = run(WORKLOADS["documents"].requests())
    exact, sampled = misses_of(payloads), misses_of(payloads, max_contents=250)
    assert sampled.rate < 1
    totals = sampled.totals()
    classes = totals.num_new, totals.num_larger, totals.num_unexplained, *totals.needed
    assert sum(classes) == pytest.approx(totals.num_missed_first, rel=0.1)
    # A block of the sample stands for all that are not in it.
    last = next(lookup for lookup in sampled.until() if lookup.needed)
    assert all(needed.num_blocks % round(1 / sampled.rate) == 0 for needed in last.needed)
    for one, other in zip(
        exact.curve(exact.totals()), sampled.curve(sampled.totals()), strict=True
    ):
        error = abs(one.num_missed_blocks - other.num_missed_blocks)
        assert error <= 0.1 * exact.totals().num_missed


def test_a_late_start_counts_what_it_cannot_know() -> None:
    misses = misses_of(evictions(), first=len(evictions()) // 2)
    totals = misses.totals()
    assert misses.starts_late
    assert totals.num_unexplained > 0
    classes = totals.num_new, totals.num_larger, totals.num_unexplained, *totals.needed
    assert sum(classes) == totals.num_missed_first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"enable_prefix_caching": False}, "Prefix caching is off."),
        ({"not_available": {"prefix_misses": "it is blind"}}, "it is blind"),
        ({"kv_cache_groups": ["full", "window"]}, "several block tables"),
        ({"num_gpu_blocks": 0}, "The size of the pool is not known."),
        ({"block_size": -1}, "The size of the pool is not known."),
        ({"num_gpu_blocks": 2**62}, "The size of the pool is not known."),
    ],
)
def test_an_unknown_curve_has_a_reason(change: dict[str, object], reason: str) -> None:
    info = codec.encode(msgspec.structs.replace(events()[0], **change))
    misses = misses_of([info, *evictions()[1:]])
    assert reason in misses.reason
    assert misses.curve(misses.totals()) == []
    assert misses.totals().tokens


@pytest.mark.parametrize(("num_tokens", "num_impossible"), [(2**62, 1), (-1, 1), (2**39, 0)])
def test_impossible_numbers_of_tokens_cost_nothing(num_tokens: int, num_impossible: int) -> None:
    changed = events()
    updates = (update for event in changed if isinstance(event, Step) for update in event.sequences)
    miss = next(miss for update in updates for miss in update.prefix_misses or ())
    miss.num_tokens = num_tokens
    changed[-1] = msgspec.structs.replace(
        next(event for event in reversed(changed) if isinstance(event, Step)), step=2**64 - 1
    )
    misses = misses_of([codec.encode(event) for event in changed])
    assert misses.num_impossible == num_impossible
    assert ("1 admission left out" in as_text(misses, with_text=False)) == bool(num_impossible)
    whole = misses_of(evictions()).totals()
    assert misses.totals().num_lookups == whole.num_lookups - num_impossible


def test_a_redacted_run_has_causes_and_no_curve() -> None:
    misses = misses_of([codec.encode(redact(event)) for event in events()])
    assert "redacted" in misses.reason
    assert misses.totals().tokens["evicted"] > 0


def record(path: Path) -> None:
    with FileWriter(path) as writer:
        sink = RecordingSink(writer)
        for event in events():
            sink.publish(event)


def test_the_command_prints_causes_curve_and_requests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / "run.seqtop")
    misses = misses_of(evictions())
    assert main(["explain", str(tmp_path / "run.seqtop"), "--cache"]) == 0
    text = capsys.readouterr().out
    totals = misses.totals()
    assert f"{totals.tokens['evicted']:,}" in text
    for point in misses.curve(totals):
        if point.percent in (10, 20, 50):
            assert f"+{point.percent}%" in text
            assert f"{point.num_missed_blocks:,}" in text
    assert "to make room for req-" in text
    assert main(["explain", str(tmp_path / "run.seqtop"), "--cache", "--json"]) == 0
    document = msgspec.json.decode(capsys.readouterr().out)
    assert document["num_missed_tokens"] == totals.tokens
    assert [point["num_missed_blocks"] for point in document["curve"]] == totals.misses()
    assert document["lookups"][0]["misses"][0]["cause"]


def test_a_step_that_ends_before_an_earlier_one_counts_at_the_end_of_that() -> None:
    cache = ScriptedCache()
    for number, time in enumerate((100.0, 105.0, 103.0, 104.0, 106.0)):
        cache.arrive(f"r{number}", [number])
        cache.step(cache.admit(f"r{number}", [0], missed("partial_block", 1)), time=time)
    misses = cache.misses
    assert misses.span() == (100.0, 106.0)
    for start, end, count in [(0.0, 100.0, 1), (100.0, 104.9, 0), (104.9, 105.0, 3), (99, 106, 5)]:
        assert sum(misses.tokens_between(start, end).values()) == count
    assert [lookup.time for lookup in misses.until()] == [106.0, 104.0, 103.0, 105.0, 100.0]


@pytest.mark.parametrize(
    ("tokens", "main"),
    [
        ([], None),
        ([("partial_block", 3)], "partial_block"),
        ([("new_tokens", 1), ("partial_block", 3)], "new_tokens"),
        ([("partial_block", 3), ("evicted", 1)], "evicted"),
        ([("evicted", 16), ("new_tokens", 16)], "evicted"),
        ([("new_tokens", 16), ("evicted", 16), ("evicted", 16)], "evicted"),
        ([("evicted", 32), ("new_tokens", 16), ("new_tokens", 32)], "new_tokens"),
    ],
)
def test_the_main_cause_has_the_most_tokens(
    tokens: list[tuple[MissCause, int]], main: MissCause | None
) -> None:
    lookup = Lookup(
        1, 1, 0, 1.0, "a", 1, 99, 0, [missed(*own) for own in tokens], [], [], False, None
    )
    assert lookup.main_cause == main
    assert lookup.num_missed_tokens == sum(count for _, count in tokens)


@pytest.mark.parametrize(
    ("cached", "external", "tokens", "known", "expected"),
    [
        # Blocks of 4, of which the last token is not looked up. The tokens of 9 are known.
        (0, None, [("new_tokens", 8), ("partial_block", 1)], 9, (9, 0, 2, 0, 2, 0)),
        (0, None, [("new_tokens", 4), ("partial_block", 4)], 8, (8, 0, 1, 0, 1, 0)),
        (8, None, [("partial_block", 1)], 9, (9, 8, 2, 2, 0, 0)),
        (7, None, [("partial_block", 2)], 9, (9, 7, 2, 1, 1, 0)),
        (8, 4, [("partial_block", 1)], 9, (9, 4, 2, 1, 1, 0)),
        (4, 8, [("partial_block", 1)], 9, (5, 0, 1, 0, 1, 0)),
        (-5, None, [("partial_block", 9)], 9, (9, 0, 2, 0, 2, 0)),
        (12, None, [("partial_block", 1)], 9, (13, 12, 3, 3, 0, 0)),
        # What was found is more than is looked up.
        (8, None, [("partial_block", 0)], 9, (None, None, 1, 1, 0, 0)),
        (0, None, [], 9, (None, None, 0, 0, 0, 0)),
        # Of blocks behind those whose tokens are known, nothing else is.
        (0, None, [("new_tokens", 16), ("partial_block", 1)], 9, (17, 0, 4, 0, 2, 2)),
        (4, None, [("new_tokens", 12), ("partial_block", 1)], 0, (17, 4, 4, 1, 0, 3)),
        (0, None, [("new_tokens", 2**40)], 9, (2**40, 0, 2**38 - 1, 0, 2, 2**38 - 3)),
        (1, None, [("new_tokens", 2**40 - 1)], 9, (2**40, 1, 2**38 - 1, 0, 2, 2**38 - 3)),
        (1, None, [("new_tokens", 2**40)], 9, None),
        (0, None, [("new_tokens", 2**40 + 1)], 9, None),
        (8, None, [("new_tokens", -1)], 9, None),
        (8, None, [("new_tokens", 8), ("evicted", -1)], 9, None),
        # Such a request is not looked up.
        (0, None, [("not_cacheable", 9)], 9, (9, 0, 0, 0, 0, 0)),
        (0, None, [("not_cacheable", 8), ("partial_block", 1)], 9, (9, 0, 0, 0, 0, 0)),
    ],
)
def test_an_admission_counts_the_full_blocks_before_the_last_token(
    cached: int,
    external: int | None,
    tokens: list[tuple[MissCause, int]],
    known: int,
    expected: tuple[int | None, int | None, int, int, int, int] | None,
) -> None:
    """The cache is empty, so that found blocks differ.

    Expected are tokens, found ones, blocks, found ones, new ones and unexplained ones.
    """
    cache = ScriptedCache()
    cache.arrive("a", [*range(known)])
    update = cache.admit(
        "a",
        [0, 1, 2],
        *(missed(*own) for own in tokens),
        cached=cached,
        num_tokens=1,
        num_external_tokens=external,
    )
    cache.step(update)
    misses = cache.misses
    totals = misses.totals()
    if expected is None:
        assert misses.num_impossible == 1
        assert not misses.lookups
        assert totals.num_lookups == 0
        return
    num_tokens, num_hit_tokens, num_blocks, num_hits, num_new, num_unexplained = expected
    assert misses.num_impossible == 0
    assert [lookup[6:8] for lookup in misses.lookups] == (
        [] if num_tokens is None else [(num_tokens, num_hit_tokens)]
    )
    num_known = min(num_hits, known and 2)
    assert totals == Totals(
        1, num_blocks, num_hits, 0, num_new, 0, num_unexplained, num_known,
        {cause: count for cause, count in tokens if count}, [0] * 13,
    )  # fmt: skip


def test_blocks_that_the_repeated_pool_has_and_the_engine_missed_differ() -> None:
    """And is explained by no size; a request that is admitted again is in no class."""
    cache = ScriptedCache()
    for name in "abc":
        cache.arrive(name, A)
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.step(cache.admit("a", [0, 1, 2], *new))
    cache.step(cache.admit("b", [3, 4, 5], *new))
    assert cache.misses.totals()[:8] == (2, 4, 0, 0, 2, 0, 2, 2)
    preemption, update = cache.preempt("b")
    cache.step(update, preemptions=[preemption])
    cache.step(cache.admit("b", [3, 4, 5], *new))
    assert cache.misses.totals()[:8] == (3, 6, 0, 2, 2, 0, 2, 4)
    assert [lookup.is_again for lookup in cache.misses.lookups] == [False, False, True]
    assert all(not lookup.needed for lookup in cache.misses.lookups)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([], (2, 4, 0, 0, 2, 0, 2, 2)),
        ([ControlCall("set_pause_state", 1, 0)], (2, 4, 0, 0, 2, 0, 2, 2)),
        ([ControlCall("reset_prefix_cache", False, 0)], (2, 4, 0, 0, 2, 2, 0, 0)),
    ],
)
def test_no_pool_finds_what_was_cached_before_a_reset(
    calls: list[ControlCall], expected: tuple[int, ...]
) -> None:
    cache = ScriptedCache()
    cache.arrive("a", A)
    cache.arrive("b", A)
    cache.step(cache.admit("a", [0, 1, 2], missed("new_tokens", 8), missed("partial_block", 1)))
    cache.step(cache.end("a"))
    cache.step(control_calls=calls)
    gone = missed("evicted", 8), missed("partial_block", 1)
    cache.step(cache.admit("b", [3, 4, 5], *gone))
    assert cache.misses.totals()[:8] == expected


def test_neighbours_that_one_size_would_have_found_are_one() -> None:
    cache = ScriptedCache(num_gpu_blocks=20)
    new = missed("new_tokens", 40), missed("partial_block", 1)
    cache.arrive("a", [*range(41)])
    cache.step(cache.admit("a", [*range(11)], *new))
    cache.step(cache.end("a"))  # its last blocks are freed first
    cache.arrive("b", [99] * 71)
    cache.step(cache.admit("b", [*range(19, 1, -1)], missed("new_tokens", 71)))
    cache.step(cache.end("b"))
    # Beside those 18 blocks, 20 have room for 2, 21 for 3, 26 for 8.
    cache.arrive("c", [*range(40), 99, 99, 99, 99, 99])
    gone = missed("evicted", 32, 2, "b"), missed("new_tokens", 4), missed("partial_block", 1)
    cache.step(cache.admit("c", [*range(12)], *gone, cached=8))
    needed = [(1, 5), (1, 10), (1, 15), (1, 20), (2, 30), (2, 40)]
    assert cache.misses.lookups[-1].needed == needed
    totals = cache.misses.totals()
    assert totals[:8] == (3, 10 + 17 + 11, 2, 0, 10 + 17 + 1, 0, 0, 0)
    assert totals.needed == [1, 1, 1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0]
    assert totals.misses() == [36, 35, 34, 33, 32, 30, *[28] * 8]
    points = cache.misses.curve(totals)
    assert [point.num_gpu_blocks for point in points[:6]] == [20, 21, 22, 23, 24, 26]


@pytest.mark.parametrize(
    ("is_late", "classes"), [(False, (31, 2, 0)), (True, (30, 1, 1))], ids=["all", "late"]
)
def test_contents_that_were_forgotten_had_been_evicted_by_all_sizes(
    is_late: bool, classes: tuple[int, int, int]
) -> None:
    """Unless the run is not known from its start on, so that they may never have been there."""
    cache = ScriptedCache({"max_contents": 30}, num_gpu_blocks=2)
    new = missed("new_tokens", 4), missed("partial_block", 1)
    for number in range(31):
        cache.arrive(f"r{number}", [number] * 5)
        cache.step(cache.admit(f"r{number}", [0, 1], *new))
        if not number and is_late:
            cache.misses = CacheMisses(max_contents=30)
            cache.misses.start(cache.position, cache.state)
        cache.step(cache.end(f"r{number}"))
    # The largest pool has ten of them, and fifteen more are known.
    for number in (0, 15):
        cache.arrive(f"again{number}", [number] * 5)
        gone = missed("evicted", 4, 9, "r9"), missed("partial_block", 1)
        cache.step(cache.admit(f"again{number}", [0, 1], *gone))
        cache.step(cache.end(f"again{number}"))
    totals = cache.misses.totals()
    assert (totals.num_new, totals.num_larger, totals.num_unexplained) == classes
    assert sum(totals.needed) == totals.num_differing == 0
    assert cache.misses.rate == 1.0


def test_the_taken_blocks_of_the_newest_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five steps, where four are allowed, the first two are left out."""
    monkeypatch.setattr(cache_misses, "_MAX_STEPS", 4)
    cache = ScriptedCache(num_gpu_blocks=30)
    reused: list[list[int | None]] = []
    for number in range(8):
        cache.arrive(f"r{number}", [number] * 5)
        steps = [missed("evicted", 4, step) for step in (*range(number + 1), None)]
        cache.step(cache.admit(f"r{number}", [2 * number, 2 * number + 1], *steps))
        reused.append([*cache.misses.lookups[-1].reused_after])
    assert reused == [
        [None, None],
        [0, None, None],
        [2, 0, None, None],
        [4, 2, 0, None, None],
        [6, 4, 2, 0, None, None],
        [None, None, 4, 2, 0, None, None],
        [None, None, 6, 4, 2, 0, None, None],
        [None, None, None, None, 4, 2, 0, None, None],
    ]


def test_an_engine_that_starts_again_has_an_empty_cache() -> None:
    cache = ScriptedCache(num_gpu_blocks=8)
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.arrive("a", A)
    cache.step(cache.admit("a", [0, 1, 2], *new))
    cache.publish(engine_info(incarnation="one", block_size=4, num_gpu_blocks=8))
    cache.arrive("b", A)
    cache.step(cache.admit("b", [0, 1, 3], missed("partial_block", 1), cached=8))
    assert cache.misses.totals()[:8] == (2, 4, 2, 0, 2, 0, 0, 0)
    cache.publish(RequestFinished("a", 1.0, FINISHED, RequestMetrics(1.0, 1.0, None, None, None)))
    cache.publish(RequestFinished("b", 1.0, FINISHED, RequestMetrics(1.0, 1.0, None, None, None)))
    cache.publish(engine_info(incarnation="two", block_size=4, num_gpu_blocks=16))
    assert cache.misses.num_gpu_blocks == 16
    cache.arrive("c", A)
    cache.step(cache.admit("c", [0, 1, 2], *new))
    assert cache.misses.totals()[:8] == (3, 6, 2, 0, 4, 0, 0, 0)


def test_a_gap_is_not_counted() -> None:
    cache = ScriptedCache()
    new = missed("new_tokens", 8), missed("partial_block", 1)
    cache.arrive("a", A)
    cache.step(cache.admit("a", [0, 1, 2], *new))
    assert not cache.misses.starts_late
    cache.misses.stop()
    cache.misses.start(9, cache.state)
    cache.position = 9
    assert cache.misses.starts_late
    cache.arrive("b", A)
    cache.step(cache.admit("b", [0, 1, 3], missed("partial_block", 1), cached=8))
    misses = cache.misses
    assert misses.totals()[:8] == (2, 4, 2, 0, 2, 0, 0, 0)
    assert misses.totals(9)[:8] == (1, 2, 0, 0, 2, 0, 0, 0)
    assert [lookup.position for lookup in misses.until()] == [11, 2]


def test_before_its_first_event_nothing_is_known() -> None:
    misses = CacheMisses()
    assert (misses.num_gpu_blocks, misses.block_size, misses.num_impossible) == (0, 0, 0)
    assert misses.reason == "The engine has not described itself."
    assert misses.totals().misses() == [0] * len(GROWTH)
    assert misses.curve(misses.totals()) == []
    assert misses.span() is None
    assert misses.until() == []
    assert misses.tokens_between(0.0, 1e12) == {}
