"""An engine in the shape of nano-vllm, which knows nothing of seqtop; its model is a sum."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count


class Status(Enum):
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Seq:
    seq_id: int
    token_ids: list[int]
    max_tokens: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    block_table: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status is Status.FINISHED


@dataclass
class Config:
    model: str = "a sum"
    block_size: int = 4
    num_blocks: int = 24
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 64
    max_model_len: int = 64
    enable_chunked_prefill: bool = False
    enable_prefix_caching: bool = True
    admits_after_preemption: bool = False
    """True if a step may admit a request that it has preempted."""


class BlockManager:
    """Blocks with reference counts; the content of free ones is found by the tokens up to it."""

    def __init__(self, config: Config) -> None:
        self.block_size = config.block_size
        self.free: deque[int] = deque(range(config.num_blocks))
        self.references = [0] * config.num_blocks
        self.content: dict[int, tuple[int, ...]] = {}

    def find(self, seq: Seq) -> None:
        """Gives a sequence the cached blocks of its prefix, but for its last token."""
        for end in range(self.block_size, len(seq.token_ids), self.block_size):
            key = tuple(seq.token_ids[:end])
            block = next((block for block, held in self.content.items() if held == key), None)
            if block is None:
                break
            if not self.references[block]:
                self.free.remove(block)
            self.references[block] += 1
            seq.block_table.append(block)
        seq.num_cached_tokens = seq.num_computed_tokens = len(seq.block_table) * self.block_size

    def grow(self, seq: Seq, num_tokens: int) -> bool:
        """Gives a sequence blocks for its first tokens; returns whether there are enough."""
        missing = -(-num_tokens // self.block_size) - len(seq.block_table)
        if missing > len(self.free):
            return False
        for _ in range(missing):
            block = self.free.popleft()
            self.references[block] = 1
            self.content.pop(block, None)
            seq.block_table.append(block)
        return True

    def store(self, seq: Seq) -> None:
        for index in range(seq.num_computed_tokens // self.block_size):
            key = tuple(seq.token_ids[: (index + 1) * self.block_size])
            if key not in self.content.values():
                self.content[seq.block_table[index]] = key

    def release(self, seq: Seq) -> None:
        for block in reversed(seq.block_table):
            self.references[block] -= 1
            if not self.references[block]:
                self.free.append(block)
        seq.block_table.clear()
        seq.num_computed_tokens = 0


class Engine:
    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.waiting: deque[Seq] = deque()
        self.running: deque[Seq] = deque()
        self.blocks = BlockManager(self.config)
        self._ids = count()
        self.num_preemptions = 0

    def add_request(self, prompt: list[int], max_tokens: int) -> Seq:
        seq = Seq(next(self._ids), prompt, max_tokens)
        self.waiting.append(seq)
        return seq

    def abort(self, seq: Seq) -> None:
        (self.waiting if seq in self.waiting else self.running).remove(seq)
        self.blocks.release(seq)

    def step(self) -> None:
        batch = self._schedule()
        for seq, chunk in batch:
            seq.num_computed_tokens += chunk
            self.blocks.store(seq)
            if seq.num_computed_tokens == len(seq.token_ids):
                seq.token_ids.append(sum(seq.token_ids) % 1009)
            if len(seq.token_ids) == seq.num_prompt_tokens + seq.max_tokens:
                seq.status = Status.FINISHED
                self.running.remove(seq)
                self.blocks.release(seq)

    def _schedule(self) -> list[tuple[Seq, int]]:
        """Returns the sequences of the next batch, and the tokens to compute of each."""
        batch: dict[int, tuple[Seq, int]] = {}
        budget, num_preemptions = self.config.max_num_batched_tokens, self.num_preemptions
        for seq in [*self.running]:
            chunk = min(len(seq.token_ids) - seq.num_computed_tokens, budget)
            while seq in self.running and chunk:
                if self.blocks.grow(seq, seq.num_computed_tokens + chunk):
                    batch[seq.seq_id] = seq, chunk
                    budget -= chunk
                    break
                self._preempt()
        if self.num_preemptions > num_preemptions and not self.config.admits_after_preemption:
            return [*batch.values()]
        while self.waiting and len(self.running) < self.config.max_num_seqs and budget:
            seq = self.waiting[0]
            if self.config.enable_prefix_caching:
                self.blocks.find(seq)
            needed = len(seq.token_ids) - seq.num_computed_tokens
            chunk = min(needed, budget)
            may_run = chunk == needed or self.config.enable_chunked_prefill
            if not may_run or not self.blocks.grow(seq, seq.num_computed_tokens + chunk):
                self.blocks.release(seq)
                break
            seq.status = Status.RUNNING
            self.running.append(self.waiting.popleft())
            batch[seq.seq_id] = seq, chunk
            budget -= chunk
        return [*batch.values()]

    def _preempt(self) -> None:
        seq = self.running.pop()
        seq.status = Status.WAITING
        self.blocks.release(seq)
        self.waiting.appendleft(seq)
        self.num_preemptions += 1
