"""A batch that is taken on is what preparing the step anew would have given."""

from operator import attrgetter

import pytest
import torch

from engine_stub.model_executor.attention import DecodeContext
from engine_stub.model_executor.cpu.decode_cache import DecodeCache
from engine_stub.worker.decode_fast_path import DecodeRun
from engine_stub.worker.input_batch import InputBatch, prepare_batch
from seqtop.sequence import SequenceGroupMetadata
from tests.engine_stub.worker.test_input_batch import BLOCK_SIZE, advanced, group, make_cache


class Runner:
    """Prepares steps as the model runner does, on a pool of its own."""

    def __init__(self) -> None:
        self.cache = make_cache()
        self.decode_cache = DecodeCache(self.cache)
        self.run: DecodeRun | None = None

    def prepare(self, groups: list[SequenceGroupMetadata]) -> InputBatch:
        batch = prepare_batch(groups, self.cache, {}, self.decode_cache)
        self.run = DecodeRun.begin(groups, batch, self.decode_cache)
        return batch

    def take_on(self, groups: list[SequenceGroupMetadata]) -> InputBatch | None:
        assert self.run is not None
        return self.run.next(groups)


def decodes() -> list[SequenceGroupMetadata]:
    return [group(index, length, length - 1, 1) for index, length in enumerate((9, 4, 30))]


def running(groups: list[SequenceGroupMetadata]) -> Runner:
    """A runner in a run of decodes of `groups`, whose last step is done."""
    runner = Runner()
    while runner.run is None:
        runner.prepare(groups)
        advanced(groups)
    return runner


def test_steps_taken_on_are_those_prepared_anew() -> None:
    ours, theirs = decodes(), decodes()
    runner, other = running(ours), running(theirs)
    # Past the ends of blocks, at which each sequence writes to another one.
    for _ in range(2 * BLOCK_SIZE + 1):
        batch, expected = runner.take_on([*ours]), other.prepare(theirs)
        assert batch is not None
        for of in map(attrgetter, ("input_ids", "positions", "sample_indices")):
            assert torch.equal(of(batch), of(expected))
        assert [row.seq_id for row in batch.sampling_rows] == [
            row.seq_id for row in expected.sampling_rows
        ]
        assert [(each.start, each.end) for each in batch.attend.segments] == [
            (each.start, each.end) for each in expected.attend.segments
        ]
        advanced(ours)
        advanced(theirs)


def test_the_pool_gets_what_a_run_has_computed() -> None:
    ours, theirs = decodes(), decodes()
    runner, other = running(ours), running(theirs)
    generator = torch.Generator().manual_seed(0)
    for num_steps in (1, BLOCK_SIZE + 1, 3):
        for _ in range(num_steps):
            batch, expected = runner.take_on(ours), other.prepare(theirs)
            assert batch is not None
            for layer in range(2):
                q, kv = (torch.randn(3, 2, size, generator=generator) for size in (8, 16))
                attended = batch.attend(layer, q, kv)
                torch.testing.assert_close(attended, expected.attend(layer, q, kv))
            advanced(ours)
            advanced(theirs)
        assert not torch.equal(runner.cache.pool, other.cache.pool)
        runner.decode_cache.write_back()
        assert torch.equal(runner.cache.pool, other.cache.pool)


def test_until_the_copy_has_no_room_left() -> None:
    groups = decodes()
    runner = running(groups)
    num_steps = 0
    while runner.take_on(groups) is not None:
        advanced(groups)
        num_steps += 1
        assert num_steps < 1000
    assert num_steps > 8
    batch = runner.prepare(groups)
    assert all(isinstance(each.context, DecodeContext) for each in batch.attend.segments)


def test_another_sequence_one_less_or_another_order_is_another_batch() -> None:
    groups = decodes()
    runner = running(groups)
    assert runner.take_on([*groups, group(7, 9, 8, 1)]) is None
    assert runner.take_on(groups[:2]) is None
    assert runner.take_on([groups[1], groups[0], groups[2]]) is None
    assert runner.take_on(groups) is not None


def test_a_group_that_is_sent_anew_is_another_one() -> None:
    groups = decodes()
    runner = running(groups)
    again = group(0, 9, 8, 1)
    assert runner.take_on([again, *groups[1:]]) is None


@pytest.mark.parametrize("change", ["chunk", "no sample", "computed again"])
def test_a_step_that_does_not_decode_is_another_batch(change: str) -> None:
    groups = decodes()
    runner = running(groups)
    if change == "chunk":
        groups[0].token_chunk_size = 2
    elif change == "no sample":
        groups[0].do_sample = False
    else:
        for data in groups[0].seq_data.values():
            data.reset_state_for_recompute()
    assert runner.take_on(groups) is None


def test_no_run_begins_with_a_prompt_or_without_a_copy() -> None:
    cache = make_cache()
    decode_cache = DecodeCache(cache)
    prompt = [group(0, 5, 0, 5)]
    assert (
        DecodeRun.begin(prompt, prepare_batch(prompt, cache, {}, decode_cache), decode_cache)
        is None
    )
    plain = prepare_batch(decodes(), cache, {})
    assert DecodeRun.begin(decodes(), plain, decode_cache) is None
    assert DecodeRun.begin(decodes(), plain, None) is None
