"""Tests of the misses of a run: causes, admissions, sums over time, and what is not known."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileWriter
from seqtop.misses.cache_misses import Lookup, Totals
from seqtop.misses.pool_replay import GROWTH, PoolReplay
from seqtop.misses.report import as_text, describe
from seqtop.sequence import SequenceGroupMetadata
from seqtop.state import EngineState
from seqtop.whatif.replay import RecordingSink
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, SequenceUpdate, Step
from seqtop.wire.redaction import redact
from tests.support.cache_runs import WORKLOADS, CacheRequest, documents, misses_of, run
from tests.support.scripted_cache import ScriptedCache, missed

DOCUMENTS = run([*documents(random.Random(5), count=40, num_documents=12)], num_gpu_blocks=40)
"""A run with many evictions."""


def events() -> list[Event]:
    """Returns new messages of the run: a state changes those that it applies."""
    return [parsing.event(payload) for payload in DOCUMENTS]


def test_the_sums_are_those_of_the_state() -> None:
    misses, state = misses_of(DOCUMENTS), EngineState()
    for event in events():
        state.apply(event)
    totals = misses.totals()
    assert totals.tokens == state.num_missed_tokens
    assert sum(lookup.num_missed_tokens for lookup in misses.lookups) == sum(
        state.num_missed_tokens.values()
    )
    assert state.stats is not None
    assert totals.num_hits * 16 == state.stats.prefix_cache_hits


RUNS = [DOCUMENTS, run(WORKLOADS["documents, preemptions"].requests(), num_gpu_blocks=90)]


class Admission(NamedTuple):
    """What the messages of a run say of one admission."""

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


@pytest.mark.parametrize("payloads", RUNS, ids=["documents", "preemptions"])
def test_admissions_are_those_of_the_messages(payloads: list[bytes]) -> None:
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
@pytest.mark.parametrize("payloads", RUNS, ids=["documents", "preemptions"])
def test_sums_at_every_position_are_those_of_the_admissions(
    payloads: list[bytes], first: int
) -> None:
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
    lookups = [lookup for lookup in misses_of(DOCUMENTS).lookups if lookup.difference]
    assert lookups
    assert "; the text is not known." in describe(lookups[-1], with_text=True)[-1]


def test_a_sample_of_the_contents_gives_nearly_the_same_curve() -> None:
    payloads = run(WORKLOADS["documents"].requests())
    exact, sampled = misses_of(payloads), misses_of(payloads, max_contents=250)
    assert sampled.rate < 1
    for one, other in zip(
        exact.curve(exact.totals()), sampled.curve(sampled.totals()), strict=True
    ):
        error = abs(one.num_missed_blocks - other.num_missed_blocks)
        assert error <= 0.1 * exact.totals().num_missed


def test_a_late_start_counts_what_it_cannot_know() -> None:
    misses = misses_of(DOCUMENTS, first=len(DOCUMENTS) // 2)
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
    misses = misses_of([info, *DOCUMENTS[1:]])
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
    assert misses.totals().num_lookups == misses_of(DOCUMENTS).totals().num_lookups - num_impossible


def test_a_sequence_without_a_table_takes_blocks_for_its_known_tokens() -> None:
    state = EngineState()
    for event in events():
        state.apply(event)
    assert state.info is not None
    pool = PoolReplay(state, state.info)
    sequence = next(iter(state.sequences.values()))
    sequence.block_table = []
    num_known = len(state.requests[sequence.request_id].prompt_token_ids)
    num_known += len(sequence.output_token_ids)
    pool.admit(sequence, 2**39, 0, [])
    assert pool.num_taken == -(-num_known // 16)


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
    misses = misses_of(DOCUMENTS)
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
