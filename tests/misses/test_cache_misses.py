"""Tests of the misses of a run: causes, admissions, sums over time, and what is not known."""

import random
import re
from pathlib import Path

import msgspec
import pytest

from seqtop.cli.main import main
from seqtop.history import FileWriter
from seqtop.misses.pool_replay import PoolReplay
from seqtop.misses.report import as_text, describe
from seqtop.sequence import SequenceGroupMetadata
from seqtop.state import EngineState
from seqtop.whatif.replay import RecordingSink
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, Step
from seqtop.wire.redaction import redact
from tests.support.cache_runs import WORKLOADS, CacheRequest, documents, misses_of, run

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


def num_taken(step: Step) -> int:
    """Returns the blocks that a step took from the pool, by its messages."""
    admitted = {update.seq_id for update in step.sequences if update.prefix_misses is not None}
    taken = sum(len(update.new_blocks) for update in step.sequences)
    for group in step.execute.seq_group_metadata_list if step.execute else ():
        if isinstance(group, SequenceGroupMetadata):
            for seq_id in admitted & group.seq_data.keys():
                num_hits = group.seq_data[seq_id].get_num_cached_tokens() // 16
                taken += len(group.block_tables[seq_id]) - num_hits
    return taken


def test_an_admission_tells_how_many_blocks_were_taken_since_the_eviction() -> None:
    misses = misses_of(DOCUMENTS)
    lookup = next(lookup for lookup in misses.lookups if lookup.main_cause == "evicted")
    step = lookup.misses[0].step
    assert step is not None
    steps = {event.step: event for event in events() if isinstance(event, Step)}
    taken = sum(num_taken(steps[number]) for number in range(step + 1, lookup.step))
    reused_after = lookup.reused_after[0]
    # Other requests may get blocks in the same step before it.
    assert reused_after is not None
    assert 0 < taken <= reused_after < taken + num_taken(steps[lookup.step])
    assert f"reused {reused_after} blocks later" in " ".join(describe(lookup, with_text=False))


def test_sums_up_to_a_position_and_between_times_are_parts_of_all() -> None:
    misses = misses_of(DOCUMENTS, max_rows=30)
    span = misses.span()
    assert span is not None
    middle = sum(span) / 2
    parts = [misses.tokens_between(0, middle), misses.tokens_between(middle, span[1])]
    summed = {cause: sum(part.get(cause, 0) for part in parts) for cause in parts[0] | parts[1]}
    assert summed == misses.totals().tokens
    position = len(DOCUMENTS) * 3 // 4
    assert 0 < misses.totals(position).num_lookups < misses.totals().num_lookups
    until = misses.until(position)
    assert 0 < len(until) < len(misses.until())
    assert all(lookup.position <= position for lookup in until)


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
