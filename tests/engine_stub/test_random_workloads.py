"""Anything at once: beams, samples, aborts, priorities, both ways of preemption, any pool."""

import pytest

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.sequence import SamplingParams, SequenceGroup, SequenceStatus
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.running import MakeEngine

BLOCK_SIZE = 4
MAX_MODEL_LEN = 48


class Inspected:
    """An engine whose every step is held to the invariants, inside and on the wire."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.groups: list[SequenceGroup] = []
        self.findings: list[Finding] = []
        self.modes: set[str] = set()
        self._checker = Checker()
        self._publisher = StepPublisher(self)
        self.publish(engine_info(engine, engine_id="test", control=False))

    def publish(self, event: Event) -> None:
        self.findings += self._checker.apply(parsing.event(codec.encode(event)))

    def add(self, prompt: list[int], params: SamplingParams | BeamSearchParams, rank: int) -> None:
        request_id = f"r{len(self.groups)}"
        for group in self.engine.add_request(request_id, prompt, params, priority=rank):
            self.groups.append(group)
            self._publisher.arrived(group)

    def step(self) -> None:
        record = self.engine.step()
        self.modes |= {preemption.mode for preemption in record.preemptions}
        self._publisher.stepped(record)
        self.engine.block_manager.check()
        limits, scheduler = self.engine.config, self.engine.scheduler
        assert record.num_prefill_tokens + record.num_decode_tokens <= limits.max_num_batched_tokens
        assert record.num_running <= limits.max_num_seqs
        for queue, status, num_seqs in (
            (scheduler.running, SequenceStatus.RUNNING, record.num_running),
            (scheduler.waiting, SequenceStatus.WAITING, record.num_waiting),
            (scheduler.swapped, SequenceStatus.SWAPPED, record.num_swapped),
        ):
            assert sum(not seq.is_finished() for group in queue for seq in group.seqs) == num_seqs
            for group in queue:
                unfinished = [seq for seq in group.seqs if not seq.is_finished()]
                assert {seq.status for seq in unfinished} == {status}
                assert len({seq.get_len() for seq in unfinished}) == 1
                assert len({seq.get_num_computed_tokens() for seq in unfinished}) == 1
        for group in self.engine.seq_groups.values():
            for seq in group.seqs:
                if not seq.is_finished():
                    shown = self._checker.state.sequences[seq.seq_id]
                    table = self.engine.block_manager.get_block_table(seq)
                    assert (shown.status, shown.block_table) == (seq.status, table)
        assert not self.findings

    def drain(self) -> None:
        for _ in range(5_000):
            if not self.engine.has_unfinished_requests():
                break
            self.step()
        assert not self.engine.has_unfinished_requests(), "somebody starves"
        assert not self._checker.end()
        assert all(group.is_finished() for group in self.groups)
        stats = self.engine.block_manager.stats
        assert stats.used == 0
        assert stats.free + stats.cached == stats.total
        assert stats.free_cpu == stats.total_cpu
        assert self.engine.worker.seq_groups == {}
        self._assert_same_ends()

    def _assert_same_ends(self) -> None:
        """A viewer's last state has each request's outputs, in order."""
        state = self._checker.state
        for group in self.groups:
            request = state.requests[group.request_id]
            assert request.seq_ids == [seq.seq_id for seq in group.seqs]
            for seq in group.seqs:
                shown = state.sequences[seq.seq_id]
                assert tuple(shown.output_token_ids) == seq.get_output_token_ids()
                assert shown.text == seq.output_text
                assert shown.cumulative_logprob == seq.get_cumulative_logprob()
                assert shown.status is seq.status


@pytest.mark.parametrize("num_cpu_blocks", [0, 8, 60])
def test_a_crowd_of_beams_through_a_small_pool(
    make_engine: MakeEngine, num_cpu_blocks: int
) -> None:
    run = Inspected(make_engine(num_gpu_blocks=24, num_cpu_blocks=num_cpu_blocks, max_num_seqs=12))
    for index in range(8):
        run.add([9] * 6 + [index + 1] * (index % 4 + 1),
                BeamSearchParams(beam_width=3, max_tokens=12, ignore_eos=True), 0)  # fmt: skip
    run.drain()
    wanted = {0: {"recompute"}, 8: {"recompute", "swap"}, 60: {"swap"}}
    assert run.modes == wanted[num_cpu_blocks]
