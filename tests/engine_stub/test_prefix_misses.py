"""The published cause of each missed block is the one that a spy inside the cache has seen."""

import contextlib
import random
from collections import Counter
from typing import NamedTuple, TypeAlias, get_args

import pytest

from engine_stub.config import PreemptionVictim
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.core.block_manager import BlockManager, ComputedBlocks
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.prefix_cache.prefix_history import MAX_RUNS
from seqtop.sequence import LoRARequest, SamplingParams, Sequence, SequenceGroup
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, PreemptionMode
from tests.support.running import MakeEngine

BLOCK_SIZE = 4
MAX_MODEL_LEN = 48
ADAPTERS = (None, None, LoRARequest("poems", 1, "/poems"), LoRARequest("songs", 2, "/songs"))

Content: TypeAlias = tuple[int, tuple[int, ...]]
"""The adapter, and all tokens up to the end of a block."""


class Cause(NamedTuple):
    cause: str
    step: int | None = None
    request_id: str | None = None


class Spy:
    """Keeps all that the cache ever did, by tokens instead of hashes, and without a limit.

    It stands between the scheduler and the block manager, and looks into the pool at each lookup.
    """

    def __init__(self, manager: BlockManager) -> None:
        self.step = 0
        self.request_ids: dict[int, str] = {}
        self.causes: dict[int, list[Cause]] = {}
        """The causes of each sequence that the step admitted, block by block."""
        self._content: dict[int, Content] = {}
        self._evicted: dict[Content, Cause] = {}
        self._requested: dict[Content, Cause] = {}
        computing: list[Sequence] = []
        pool = manager.device
        get_new_blocks, cache_full_blocks = pool.get_new_blocks, pool.cache_full_blocks
        cache_blocks, allocate_slots = manager.cache_blocks, manager.allocate_slots

        def taken(num_blocks: int, seq_id: int) -> list[int]:
            blocks = get_new_blocks(num_blocks, seq_id)
            for block in blocks:
                if content := self._content.pop(block, None):
                    self._evicted[content] = Cause("evicted", self.step, self.request_ids[seq_id])
            return blocks

        def cached(
            seq_id: int, blocks: list[int], hashes: list[bytes], num_cached: int, num_full: int
        ) -> None:
            (seq,) = computing
            for position in range(num_cached, num_full):
                if not pool.cached_prefix([hashes[position]]):
                    self._content[blocks[position]] = content_of(seq, position)
            cache_full_blocks(seq_id, blocks, hashes, num_cached, num_full)

        def computed_by(seq: Sequence) -> None:
            computing[:] = [seq]
            cache_blocks(seq)

        def allocated(seqs: list[Sequence], computed: ComputedBlocks) -> None:
            self._admit(seqs, computed)
            allocate_slots(seqs, computed)

        pool.get_new_blocks, pool.cache_full_blocks = taken, cached
        manager.cache_blocks, manager.allocate_slots = computed_by, allocated

    def _admit(self, seqs: list[Sequence], computed: ComputedBlocks) -> None:
        for seq in seqs:
            self.causes[seq.seq_id] = []
            num_blocks = -(-seq.get_len() // BLOCK_SIZE)
            for position in range(len(computed.blocks), num_blocks):
                cause = self._cause(seq, position, computed)
                self.causes[seq.seq_id].append(cause)
        for seq in seqs:
            for position in range(len(computed.blocks), (seq.get_len() - 1) // BLOCK_SIZE):
                self._requested[content_of(seq, position)] = Cause(
                    "not_stored", self.step, self.request_ids[seq.seq_id]
                )

    def _cause(self, seq: Sequence, position: int, computed: ComputedBlocks) -> Cause:
        if not computed.use_cache:
            return Cause("not_cacheable")
        if (position + 1) * BLOCK_SIZE > seq.get_len() - 1:
            return Cause("partial_block")
        content = content_of(seq, position)
        in_cache = set(self._content.values())
        if content in in_cache:
            before = [content_of(seq, earlier) for earlier in range(len(computed.blocks), position)]
            return Cause("unknown" if in_cache.issuperset(before) else "broken_prefix")
        if content in self._evicted:
            return self._evicted[content]
        if content in self._requested:
            return self._requested[content]
        known = {*in_cache, *self._evicted, *self._requested}
        if any(tokens == content[1] for _, tokens in known):
            return Cause("extra_keys")
        return Cause("new_tokens")


def content_of(seq: Sequence, position: int) -> Content:
    return seq.lora_int_id, tuple(seq.get_token_ids()[: (position + 1) * BLOCK_SIZE])


class Watched:
    """An engine with a spy, and a viewer's state that gets its messages."""

    def __init__(self, engine: LLMEngine) -> None:
        self.engine = engine
        self.state = EngineState()
        self.spy = Spy(engine.block_manager)
        self.groups: list[SequenceGroup] = []
        self.seen: Counter[str] = Counter()
        self.num_requests = 0
        self._publisher = StepPublisher(self)
        self.publish(engine_info(engine, engine_id="test", control=False))

    def publish(self, event: Event) -> None:
        self.state.apply(parsing.event(codec.encode(event)))

    def add(
        self,
        prompt: list[int],
        params: SamplingParams | BeamSearchParams,
        adapter: LoRARequest | None = None,
    ) -> None:
        request_id = f"r{self.num_requests}"
        self.num_requests += 1
        for group in self.engine.add_request(request_id, prompt, params):
            for seq in group.seqs:
                seq.lora_request = adapter
            self.groups.append(group)
            self._publisher.arrived(group)

    def step(self) -> None:
        spy, before = self.spy, dict(self.state.num_missed_tokens)
        spy.causes.clear()
        for group in self.engine.seq_groups.values():
            spy.request_ids |= dict.fromkeys((seq.seq_id for seq in group.seqs), group.request_id)
        record = self.engine.step()
        assert not record.errors
        spy.step = record.step + 1
        self._publisher.stepped(record)
        totals: Counter[str] = Counter()
        for seq_id, causes in spy.causes.items():
            sequence = self.state.sequences.get(seq_id)
            if sequence is None:  # a beam that better ones replaced in the same step
                continue
            misses = sequence.prefix_misses
            assert misses is not None
            num_tokens = sum(miss.num_tokens for miss in misses)
            assert len(misses) <= MAX_RUNS
            shown = [
                Cause(miss.cause, miss.step, miss.request_id)
                for miss in misses
                for _ in range(-(-miss.num_tokens // BLOCK_SIZE))
            ]
            assert [cause._replace(request_id=None) if cause.cause == "extra_keys" else cause
                    for cause in shown] == causes  # fmt: skip
            self.seen.update(cause.cause for cause in causes)
            for miss in misses:
                totals[miss.cause] += miss.num_tokens
            assert sequence.num_cached_tokens + num_tokens >= sequence.num_prompt_tokens
        grown = Counter(self.state.num_missed_tokens)
        grown.subtract(before)
        if self.state.sequences.keys() >= spy.causes.keys():
            assert +grown == totals

    def drain(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()
        assert self.state.num_anomalies == 0


def params(rng: random.Random) -> SamplingParams | BeamSearchParams:
    max_tokens = rng.randrange(1, 14)
    match rng.randrange(6):
        case 0:
            return BeamSearchParams(beam_width=2, max_tokens=max_tokens)
        case 1:
            return SamplingParams(temperature=0, max_tokens=max_tokens, prompt_logprobs=1)
        case 2:
            return SamplingParams(n=2, seed=rng.randrange(9), max_tokens=max_tokens)
        case _:
            return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def run_workload(make_engine: MakeEngine, seed: int) -> Counter[str]:
    """Runs a random workload; returns the numbers of missed blocks by cause."""
    rng = random.Random(seed)
    run = Watched(
        make_engine(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=rng.randrange(MAX_MODEL_LEN // BLOCK_SIZE, 40),
            num_cpu_blocks=rng.choice((0, 20)),
            max_num_seqs=rng.randrange(2, 8),
            max_num_batched_tokens=rng.randrange(10, 120),
            max_model_len=MAX_MODEL_LEN,
            preemption_mode=rng.choice(get_args(PreemptionMode)),
            preemption_victim=rng.choice(get_args(PreemptionVictim)),
            num_scheduler_steps=rng.randrange(1, 4),
        )
    )
    stems = [[rng.randrange(1, 257) for _ in range(30)] for _ in range(3)]
    for _ in range(30):
        if run.groups and rng.random() < 0.3:  # the next turn of a conversation
            turn = rng.choice(run.groups).first_seq
            prompt = [*turn.get_token_ids()[:30], *stems[0][: rng.randrange(1, 6)]]
        else:
            prompt = [*rng.choice(stems)[: rng.randrange(1, 31)], *rng.choice(([], [5], [6, 7]))]
        with contextlib.suppress(ValueError):  # beams that the pool could not hold
            run.add(prompt, params(rng), rng.choice(ADAPTERS))
        for _ in range(rng.randrange(8)):
            run.step()
        if rng.random() < 0.1:
            run.engine.abort_request(rng.choice(run.groups).request_id)
    run.drain()
    run.seen["preemptions"] = sum(
        request.num_preemptions for request in run.state.requests.values()
    )
    return run.seen


def test_causes_are_those_of_a_spy_inside_the_cache(
    make_engine: MakeEngine,
) -> None:
    seen: Counter[str] = Counter()
    for seed in (*range(5), 24, 32, 47):  # together they have all causes
        seen += run_workload(make_engine, seed)
    missing = {
        "new_tokens", "evicted", "not_stored", "extra_keys", "broken_prefix", "partial_block",
        "not_cacheable", "unknown", "preemptions",
    } - seen.keys()  # fmt: skip
    assert not missing, seen


@pytest.mark.release
def test_causes_are_those_of_a_spy_in_many_workloads(
    make_engine: MakeEngine,
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(1_000, 1_100):
        seen += run_workload(make_engine, seed)
    assert seen["evicted"] > seen["preemptions"] > 0
