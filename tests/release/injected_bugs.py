"""Bugs that are injected into the bundled engine, and the rules that find them.

    python -m tests.release injected_bugs

Each bug is a patch of one engine that then runs a seeded load with the default thresholds. A rule
must find it, or it is a miss that is known. The same loads without a patch have no findings. The
bugs are of kinds that were reported of real engines; docs/checks.md has the table.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sortedcontainers import SortedKeyList

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.core.block_pool import BlockPool
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.step_record import AdmissionBlocked
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, RequestArrived, Step, WaitCause
from tests.support.checkpoints import make_checkpoint

BLOCK_SIZE = 8
MAX_STEPS = 400
MISSED = ""
"""In place of a rule, for a bug that none finds."""


class Load(NamedTuple):
    """The requests of a run."""

    num_requests: int = 40
    beams: bool = False
    aborts: bool = False
    priorities: bool = False
    num_long: int = 0
    """The first requests whose outputs last for the whole run."""
    same: bool = False
    """True for prompts with equal beginnings only."""
    tick: float = 0.02
    """Seconds between two readings of the engine's clock."""


class Run:
    """An engine, which a bug patches, and the checker of its events."""

    def __init__(self, model: Path, load: Load, settings: dict[str, Any] | None) -> None:
        self.load = load
        self.now = 1_000.0
        defaults: dict[str, Any] = {
            "block_size": BLOCK_SIZE,
            "num_gpu_blocks": 40,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "max_model_len": 240,
        }
        config = EngineConfig(model=model, device="cpu", **(defaults | (settings or {})))
        self.engine = LLMEngine(config, clock=self._clock)
        self.scheduler, self.manager = self.engine.scheduler, self.engine.block_manager
        self.pool: BlockPool = self.manager.device
        self.published: Callable[[Event], None] = lambda event: None
        """Changes an event before it is published."""
        self.findings: list[Finding] = []
        self.num_steps = self.num_preemptions = 0
        self.error: Exception | None = None
        """The exception by which a step ended the engine."""
        self._checker = Checker()

    def _clock(self) -> float:
        self.now += self.load.tick
        return self.now

    def publish(self, event: Event) -> None:
        self.published(event)
        self.findings += self._checker.apply(parsing.event(codec.encode(event)))

    def go(self) -> None:
        """Runs the load until all have ended, or for `MAX_STEPS`."""
        rng, load, steps = random.Random(3), self.load, StepPublisher(self)
        self.publish(engine_info(self.engine, engine_id="bug", control=False))
        shared = [rng.randrange(1, 257) for _ in range(3 * BLOCK_SIZE)]
        number = 0
        while self.num_steps < MAX_STEPS:
            for _ in range(2 if number < load.num_requests else 0):
                is_long = number < load.num_long
                prompt = shared[: rng.choice((0, 2, 3)) * BLOCK_SIZE if not load.same else None]
                prompt = prompt + [rng.randrange(1, 257) for _ in range(rng.randint(3, 30))]
                params: Any = SamplingParams(
                    temperature=0,
                    ignore_eos=True,
                    max_tokens=180 if is_long else rng.randint(6, 30),
                )
                if load.beams and number % 3 == 0:
                    params = BeamSearchParams(beam_width=2, max_tokens=12, ignore_eos=True)
                priority = number % 3 if load.priorities else 0
                name = f"req-{number}"
                for group in self.engine.add_request(name, prompt, params, priority=priority):
                    steps.arrived(group)
                number += 1
            if not self.engine.has_unfinished_requests():
                break
            try:
                record = self.engine.step()
            except Exception as error:  # noqa: BLE001 - the bug has ended the engine
                self.error = error
                break
            steps.stepped(record)
            self.num_steps += 1
            self.num_preemptions += len(record.preemptions)
            if load.aborts and self.num_steps % 5 == 0:
                self.engine.abort_request(f"req-{rng.randrange(number)}")
        self.findings += self._checker.end()


class Bug(NamedTuple):
    """A defect, what it is done by, and what finds it."""

    name: str
    rule: str
    """The rule that names it, of those that find it; `MISSED` if none does."""
    inject: Callable[[Run], None]
    load: Load = Load()
    settings: dict[str, Any] | None = None


SMALL: dict[str, Any] = {"num_gpu_blocks": 16, "max_num_seqs": 6, "max_model_len": 120}
"""A pool in which requests are preempted."""
SWAP: dict[str, Any] = {**SMALL, "preemption_mode": "swap", "num_cpu_blocks": 60}
UNCACHED: dict[str, Any] = {**SMALL, "enable_prefix_caching": False}
BEAMS = Load(beams=True)
ABORTS = Load(aborts=True)
PRIORITIES = Load(priorities=True)


# --- Who runs


def stop_admitting(run: Run, cause: WaitCause = "no_blocks", since: int = 12) -> None:
    original = run.scheduler._schedule_waiting

    def schedule(budget: int, *, may_admit: bool) -> Any:
        if run.num_steps < since or not run.scheduler.waiting:
            return original(budget, may_admit=may_admit)
        return [], AdmissionBlocked(run.scheduler.waiting.head.request_id, cause, 1)

    vars(run.scheduler)["_schedule_waiting"] = schedule


def lose_slots(run: Run) -> None:
    """A sequence slot is not given back by every fifth request."""
    original = run.scheduler.finish_seq_group
    num_ended = [0]

    def finish(seq_group: Any) -> None:
        original(seq_group)
        num_ended[0] += 1
        if num_ended[0] % 5 == 0 and run.scheduler.config.max_num_seqs > 3:
            fewer = run.scheduler.config.max_num_seqs - 1
            run.scheduler.config = dataclasses.replace(run.scheduler.config, max_num_seqs=fewer)

    vars(run.scheduler)["finish_seq_group"] = finish


def lose_budget(run: Run) -> None:
    """The budget of aborted requests is not given back."""
    original = run.scheduler.abort_seq_group

    def abort(seq_group: Any) -> None:
        original(seq_group)
        config = run.scheduler.config
        less = max(config.max_num_batched_tokens // 2, config.max_num_seqs)
        run.scheduler.config = dataclasses.replace(config, max_num_batched_tokens=less)

    vars(run.scheduler)["abort_seq_group"] = abort


def rank_by(rank: Callable[[Run, Any], Any]) -> Callable[[Run], None]:
    def inject(run: Run) -> None:
        queue = run.scheduler.waiting
        queue._groups = SortedKeyList(key=lambda group: rank(run, group))

    return inject


def last_first(run: Run, group: Any) -> Any:
    return -run.scheduler._rank(group)[1]


def shortest_first(run: Run, group: Any) -> Any:
    return len(group.prompt_token_ids), run.scheduler._rank(group)


def lowest_priority_first(run: Run, group: Any) -> Any:
    priority, turn = run.scheduler._rank(group)
    return -priority, turn


def preempted_last(run: Run) -> None:
    original = run.scheduler._preempt

    def preempt(victim: Any, for_group: Any) -> Any:
        record = original(victim, for_group)
        run.scheduler.waiting.discard(victim)
        run.scheduler._ranks[victim.request_id] = 0, 10_000 + run.num_steps
        run.scheduler.waiting.add(victim)
        return record

    vars(run.scheduler)["_preempt"] = preempt


def preempt_the_first(run: Run) -> None:
    """Of those that run, the last has the first turn: it is served by preempting the first."""
    rank = run.scheduler._rank
    run.scheduler.running = SortedKeyList(key=lambda group: tuple(-key for key in rank(group)))


def forget_the_swapped(run: Run) -> None:
    vars(run.scheduler)["swapped"] = type(run.scheduler.waiting)(run.scheduler._rank)
    vars(run.scheduler.swapped)["add"] = lambda group: None


def accept_any_length(run: Run) -> None:
    run.engine.max_model_len = 10_000
    add = run.engine.add_request

    def longer(name: str, prompt: Any, params: Any, **more: Any) -> Any:
        return add(name, (prompt * 400)[:400] if name == "req-9" else prompt, params, **more)

    vars(run.engine)["add_request"] = longer


def skip_one(run: Run) -> None:
    original = run.scheduler._schedule_decodes

    def schedule(groups: list[Any]) -> Any:
        return original([group for group in groups if group.request_id != "req-0"])

    vars(run.scheduler)["_schedule_decodes"] = schedule


def lose_an_admitted_one(run: Run) -> None:
    original = run.scheduler._running_by_stage

    def stages() -> Any:
        return tuple(
            [group for group in part if group.request_id != "req-3"] for part in original()
        )

    vars(run.scheduler)["_running_by_stage"] = stages


def keep_an_aborted_head(run: Run) -> None:
    original = run.scheduler._schedule_waiting
    heads: list[str] = []

    def schedule(budget: int, *, may_admit: bool) -> Any:
        queue = run.scheduler.waiting
        if not heads and run.num_steps == 8:
            heads.append(queue.head.request_id)
            run.engine.abort_request(heads[0])
        if heads:
            return [], AdmissionBlocked(heads[0], "no_blocks", 0)
        return original(budget, may_admit=may_admit)

    vars(run.scheduler)["_schedule_waiting"] = schedule


def admit_in_vain(run: Run) -> None:
    """A request is preempted when it has decoded one token since its admission."""
    original = run.scheduler._schedule_decodes

    def schedule(groups: list[Any]) -> Any:
        decodes, preemptions = original(groups)
        last = run.scheduler.running[-1] if len(run.scheduler.running) > 1 else None
        if last is not None and last in groups and last.request_id == "req-5" and decodes:
            decodes = [group for group in decodes if group.seq_group is not last]
            preemptions.append(run.scheduler._preempt(last, run.scheduler.running[0]))
        return decodes, preemptions

    vars(run.scheduler)["_schedule_decodes"] = schedule


def exceed_the_budget(run: Run) -> None:
    original = run.scheduler._schedule_waiting
    vars(run.scheduler)["_schedule_waiting"] = lambda budget, **more: original(budget + 30, **more)


def exceed_the_slots(run: Run) -> None:
    config = run.scheduler.config
    run.scheduler.config = dataclasses.replace(config, max_num_seqs=config.max_num_seqs + 1)


# --- Blocks


def leak_of_aborted(run: Run) -> None:
    free, abort = run.manager.free, run.scheduler.abort_seq_group

    def aborted(seq_group: Any) -> None:
        vars(run.manager)["free"] = lambda seq: run.manager._tables.pop(seq.seq_id, None)
        abort(seq_group)
        vars(run.manager)["free"] = free

    vars(run.scheduler)["abort_seq_group"] = aborted


def leak_copied(run: Run) -> None:
    original, free = run.manager.append_slots, run.pool.free_blocks

    def append(*args: Any) -> Any:
        vars(run.pool)["free_blocks"] = lambda blocks: None
        try:
            return original(*args)
        finally:
            vars(run.pool)["free_blocks"] = free

    vars(run.manager)["append_slots"] = append


def leak_last_of_preempted(run: Run) -> None:
    original = run.scheduler._preempt

    def preempt(victim: Any, for_group: Any) -> Any:
        table = run.manager._tables[victim.first_seq.seq_id]
        table.blocks = table.blocks[:-1]
        return original(victim, for_group)

    vars(run.scheduler)["_preempt"] = preempt


def leak_of_swapped_out(run: Run) -> None:
    vars(run.manager)["swap_out"] = _without(run, "_free_table", run.manager.swap_out)


def _without(run: Run, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    original = getattr(run.manager, name)

    def call(*args: Any) -> Any:
        vars(run.manager)[name] = lambda *_: None
        try:
            return method(*args)
        finally:
            vars(run.manager)[name] = original

    return call


def leak_on_host(run: Run) -> None:
    vars(run.manager.host)["free_blocks"] = lambda blocks: None


def free_shared_twice(run: Run) -> None:
    original = run.pool.free_blocks

    def free(blocks: Any) -> None:
        blocks = list(blocks)
        shared = [block for block in blocks if run.pool.ref_count(block) > 1]
        original(blocks)
        original(shared[:1])

    vars(run.pool)["free_blocks"] = free


def give_twice(run: Run) -> None:
    original = run.pool.get_new_blocks

    def get(num_blocks: int, seq_id: int) -> list[int]:
        blocks = original(num_blocks, seq_id)
        if run.num_steps == 9:
            run.pool._free.extendleft(blocks[:1])
        return blocks

    vars(run.pool)["get_new_blocks"] = get


def keep_hits_evictable(run: Run) -> None:
    def touch(blocks: Any) -> None:
        for block in blocks:
            run.pool._ref_counts[block] += 1

    vars(run.pool)["touch"] = touch


def fork_without_reference(run: Run) -> None:
    touch = run.pool.touch
    original = run.manager.fork

    def fork(parent: Any, child: Any) -> None:
        vars(run.pool)["touch"] = lambda blocks: None
        original(parent, child)
        vars(run.pool)["touch"] = touch

    vars(run.manager)["fork"] = fork


def swap_in_another(run: Run) -> None:
    original = run.manager.swap_in

    def swap(seqs: Any) -> Any:
        num_blocks = run.manager.host.num_blocks
        return [((host + 7) % num_blocks, block) for host, block in original(seqs)]

    vars(run.manager)["swap_in"] = swap


def publish_late(run: Run) -> None:
    """The blocks that a decode gets are published a step late."""
    late: dict[int, list[int]] = {}

    def publish(event: Event) -> None:
        for update in event.sequences if isinstance(event, Step) else ():
            blocks, update.new_blocks = update.new_blocks, late.pop(update.seq_id, [])
            if update.block_table is None and blocks:
                late[update.seq_id] = blocks

    run.published = publish


# --- The prefix cache


def with_adapters(run: Run) -> None:
    """Requests have LoRA adapters, which the hashes of their blocks leave out."""

    def publish(event: Event) -> None:
        if isinstance(event, RequestArrived):
            event.lora = ("", "poems", "prose")[int(event.request_id[4:]) % 3]

    run.published = publish


def with_salts(run: Run) -> None:
    def publish(event: Event) -> None:
        if isinstance(event, RequestArrived):
            event.cache_salt = f"salt-{int(event.request_id[4:]) % 4}"

    run.published = publish


def hit_one_more(run: Run) -> None:
    original = run.scheduler._admit_waiting

    def admit(seq_group: Any, *args: Any, **more: Any) -> Any:
        result = original(seq_group, *args, **more)
        seq = seq_group.first_seq
        num_cached = seq.data.get_num_cached_tokens()
        if isinstance(result, AdmissionBlocked) or not num_cached:
            return result
        if result.num_batched_tokens <= BLOCK_SIZE:
            return result
        seq.data.update_num_cached_tokens(num_cached + BLOCK_SIZE)
        fewer = result.num_batched_tokens - BLOCK_SIZE
        return msgspec.structs.replace(result, num_batched_tokens=fewer)

    vars(run.scheduler)["_admit_waiting"] = admit


def find_evicted(run: Run) -> None:
    original = run.pool.get_new_blocks

    def get(num_blocks: int, seq_id: int) -> list[int]:
        hashes = dict(run.pool._block_of_hash)
        blocks = original(num_blocks, seq_id)
        for block_hash, block in hashes.items():
            if block in blocks:
                run.pool._block_of_hash.setdefault(block_hash, block)
        return blocks

    vars(run.pool)["get_new_blocks"] = get


def collide(run: Run) -> None:
    """The hash of a block covers only the number of its tokens."""
    original = run.manager._cached_prefix

    def find(seq: Any) -> list[int]:
        table = run.manager._tables.setdefault(seq.seq_id, _table(run))
        table.hashes = [bytes([index]) * 16 for index in range(seq.get_len() // BLOCK_SIZE)]
        return original(seq)

    vars(run.manager)["_cached_prefix"] = find


def _table(run: Run) -> Any:
    from engine_stub.core.block_table import BlockTable

    return BlockTable()


def cache_partial(run: Run) -> None:
    original = run.manager.cache_blocks

    def cache(seq: Any) -> None:
        computed = seq.data._num_computed_tokens
        if computed % BLOCK_SIZE > BLOCK_SIZE // 2:
            seq.data._num_computed_tokens = -(-computed // BLOCK_SIZE) * BLOCK_SIZE
        original(seq)
        seq.data._num_computed_tokens = computed

    vars(run.manager)["cache_blocks"] = cache


def cache_at_admission(run: Run) -> None:
    original = run.manager.allocate_slots

    def allocate(seqs: Any, computed: Any) -> None:
        original(seqs, computed)
        for seq in seqs:
            num_computed = seq.data._num_computed_tokens
            seq.data._num_computed_tokens = seq.get_len()
            run.manager.cache_blocks(seq)
            seq.data._num_computed_tokens = num_computed

    vars(run.manager)["allocate_slots"] = allocate


def count_hits_twice(run: Run) -> None:
    original = run.manager.allocate_slots

    def allocate(seqs: Any, computed: Any) -> None:
        original(seqs, computed)
        run.manager._prefix_hits += len(computed.blocks) * BLOCK_SIZE

    vars(run.manager)["allocate_slots"] = allocate


def evict_most_recent(run: Run) -> None:
    cached = run.pool._cached
    popitem = type(cached).popitem

    class Stack(type(cached)):  # type: ignore[misc]
        def popitem(self, last: bool = True) -> Any:
            return popitem(self, last=True)

    run.pool._cached = Stack()


# --- Tokens


def one_token_more(run: Run) -> None:
    original = run.engine.output_processor._append_sample

    def append(seq: Any, sample: Any, params: Any) -> None:
        longer = params.clone()
        longer.max_tokens = params.max_tokens + 1
        original(seq, sample, longer)

    vars(run.engine.output_processor)["_append_sample"] = append


def append_twice(run: Run) -> None:
    original = run.engine.output_processor._append_sample

    def append(seq: Any, sample: Any, params: Any) -> None:
        original(seq, sample, params)
        if run.num_steps == 15 and not seq.is_finished():
            seq.append_token_id(sample.output_token, sample.logprobs)

    vars(run.engine.output_processor)["_append_sample"] = append


def _after_preemption(run: Run, change: Callable[[Any], None]) -> None:
    original = run.scheduler._preempt

    def preempt(victim: Any, for_group: Any) -> Any:
        record = original(victim, for_group)
        for seq in unfinished_seqs(victim):
            change(seq)
        return record

    vars(run.scheduler)["_preempt"] = preempt


def keep_computed(run: Run) -> None:
    """A block counts as computed after a preemption."""

    def publish(event: Event) -> None:
        for update in event.sequences if isinstance(event, Step) and event.preemptions else ():
            if update.status is SequenceStatus.WAITING:
                update.num_computed_tokens = BLOCK_SIZE

    run.published = publish


def forget_the_last_token(run: Run) -> None:
    """A preemption loses the token that was sampled last."""

    def forget(seq: Any) -> None:
        if seq.data.get_output_len():
            seq.data._output_token_ids.pop()
            seq.data._update_cached_all_tokens()

    _after_preemption(run, forget)


def skip_a_token(run: Run) -> None:
    """A chunk of a prefill begins a token late."""
    original = run.scheduler._schedule_prefills

    def schedule(groups: list[Any], budget: int) -> Any:
        for group in groups:
            if group.first_seq.get_num_new_tokens() > 1:
                group.first_seq.data.update_num_computed_tokens(1)
        return original(groups, budget)

    vars(run.scheduler)["_schedule_prefills"] = schedule


def compute_again(run: Run) -> None:
    """A chunk of a prefill is computed again and again."""
    original = run.engine.output_processor._advance

    def advance(scheduled: Any, output: Any, index: int) -> Any:
        group = scheduled.seq_group
        before = group.first_seq.get_num_computed_tokens()
        updates = original(scheduled, output, index)
        if scheduled.is_prompt and before and group.first_seq.is_prefill():
            group.first_seq.data._num_computed_tokens = before
        return updates

    vars(run.engine.output_processor)["_advance"] = advance


def count_more_tokens(run: Run) -> None:
    original = run.scheduler.schedule

    def schedule() -> Any:
        outputs = original()
        more = outputs.num_decode_tokens + 2 * (run.num_steps % 7 == 6)
        return dataclasses.replace(outputs, num_decode_tokens=more)

    vars(run.scheduler)["schedule"] = schedule


def drop_text(run: Run) -> None:
    original = run.engine.output_processor.process

    def process(*args: Any) -> Any:
        processed = original(*args)
        if run.num_steps % 10 == 5:
            decodes, others = processed.decodes, processed.others
            decodes.texts[:] = [""] * len(decodes.texts)
            others[:] = [msgspec.structs.replace(update, text_delta="") for update in others]
        return processed

    vars(run.engine.output_processor)["process"] = process


def clock_ahead(run: Run) -> None:
    add = run.engine.add_request

    def arrive(name: str, prompt: Any, params: Any, priority: int = 0) -> Any:
        return add(name, prompt, params, arrival_time=run.now + 5.0, priority=priority)

    vars(run.engine)["add_request"] = arrive


def count_the_prefill(run: Run) -> None:
    """The time in the queue includes that of the first step."""
    original = run.engine._record

    def record(scheduled: Any, processed: Any, timer: Any) -> Any:
        result = original(scheduled, processed, timer)
        for group in scheduled.scheduled:
            if (metrics := group.seq_group.metrics).first_scheduled_time == timer.start_time:
                metrics.time_in_queue = timer.end_time - metrics.arrival_time
        return result

    vars(run.engine)["_record"] = record


# --- Contents of the KV cache


def copy_another_block(run: Run) -> None:
    original = run.manager.append_slots

    def append(*args: Any) -> Any:
        copies = original(*args)
        if run.num_steps % 2:
            copies[:] = [((block + 1) % run.pool.num_blocks, copy) for block, copy in copies]
        return copies

    vars(run.manager)["append_slots"] = append


def no_copies(run: Run) -> None:
    original = run.manager.append_slots

    def append(*args: Any) -> Any:
        original(*args)
        return []

    vars(run.manager)["append_slots"] = append


def sample_another(run: Run) -> None:
    """The sampler returns the likeliest token of another sequence."""
    original = run.engine.worker.execute_model

    def execute(request: Any) -> Any:
        output = original(request)
        own = [group.samples for group in output.outputs if len(group.samples) == 1]
        if len(own) > 1 and run.num_steps % 9 == 4:
            (one,), (other,) = own[:2]
            tokens = one.output_token, one.logprobs
            one.output_token, one.logprobs = other.output_token, other.logprobs
            other.output_token, other.logprobs = tokens
        return output

    vars(run.engine.worker)["execute_model"] = execute


BUGS = (
    Bug("admission stops for good while others decode", "wait-reason", stop_admitting,
        Load(num_long=2)),
    Bug("admission stops for good, and all others end", "wait-reason", stop_admitting),
    Bug("admission stops, and the budget is given as the reason", "wait-reason",
        lambda run: stop_admitting(run, "token_budget"), Load(num_long=2)),
    Bug("ended requests keep sequence slots", "wait-reason", lose_slots),
    Bug("aborted requests keep their part of the budget", "wait-reason", lose_budget,
        Load(aborts=True, num_long=2, num_requests=200), {"max_num_seqs": 6}),
    Bug("an aborted request stays the head of the queue", "wait-reason", keep_an_aborted_head),
    Bug("the last request is the first", "overtaken", rank_by(last_first),
        Load(num_requests=120)),
    Bug("the shortest prompt is the first", "overtaken", rank_by(shortest_first),
        Load(num_requests=120)),
    Bug("the lowest priority is the first", "overtaken", rank_by(lowest_priority_first),
        Load(num_requests=120, priorities=True)),
    Bug("a preempted request is the last", "overtaken", preempted_last, Load(num_requests=120),
        SMALL),
    Bug("a request is preempted for one of lower priority", "priority-inversion",
        preempt_the_first, PRIORITIES, SMALL),
    Bug("swapped requests are forgotten", "overtaken", forget_the_swapped,
        Load(num_requests=120), SWAP),
    Bug("a prompt larger than the pool is accepted", "never-fits", accept_any_length),
    Bug("a running request is skipped", "stalled", skip_one,
        Load(num_long=3, num_requests=120, tick=0.3)),
    Bug("an admitted request is lost", "stalled", lose_an_admitted_one,
        Load(num_long=3, num_requests=120, tick=0.3)),
    Bug("preempted requests are admitted at once, and preempted", "thrash", admit_in_vain,
        Load(num_long=6, num_requests=6), UNCACHED),
    Bug("a chunk exceeds the budget", "budget", exceed_the_budget),
    Bug("a sequence more runs than may", "budget", exceed_the_slots),
    Bug("blocks of aborted requests are not freed", "block-leak", leak_of_aborted, ABORTS),
    Bug("copy-on-write keeps the block that it copied", "block-leak", leak_copied, BEAMS),
    Bug("a preemption keeps the last block", "block-leak", leak_last_of_preempted, Load(), SMALL),
    Bug("a swap keeps the blocks on the device", "block-leak", leak_of_swapped_out, Load(), SWAP),
    Bug("host blocks are not freed after a swap", "host-leak", leak_on_host, Load(), SWAP),
    Bug("a shared block is freed twice", "block-leak", free_shared_twice),
    Bug("a block is given to two sequences", "block-shared", give_twice),
    Bug("blocks that are hit stay evictable", "block-leak", keep_hits_evictable),
    Bug("a fork takes no reference", "block-leak", fork_without_reference, BEAMS),
    Bug("a swap reads another host block", "swap-map", swap_in_another, Load(), SWAP),
    Bug("new blocks are reported a step late", "table-short", publish_late),
    Bug("hashes leave out the LoRA adapter", "block-shared", with_adapters),
    Bug("hashes leave out the cache salt", "block-shared", with_salts),
    Bug("a hit counts a block too many", "hit-not-cached", hit_one_more),
    Bug("evicted blocks are still found", "hit-not-cached", find_evicted, Load(), SMALL),
    Bug("hashes of different blocks are equal", "block-shared", collide),
    Bug("a block is cached when it is partly computed", "cached-before-computed", cache_partial),
    Bug("a prompt is cached when it is admitted", "cached-before-computed", cache_at_admission),
    Bug("an output has a token more than max_tokens", "max-tokens", one_token_more),
    Bug("a token is appended twice", "output-differs", append_twice),
    Bug("a block counts as computed after a preemption", "table-short", keep_computed, Load(),
        UNCACHED),
    Bug("a preemption loses the last token", "output-differs", forget_the_last_token, Load(),
        UNCACHED),
    Bug("a chunk begins a token late", "chunk-start", skip_a_token, Load(num_requests=60),
        {"max_num_batched_tokens": 16}),
    Bug("a chunk is computed again and again", "cached-before-computed", compute_again,
        Load(num_long=3, tick=0.3), {"max_num_batched_tokens": 16}),
    Bug("a step counts tokens that no sequence has", "token-sum", count_more_tokens),
    Bug("a text delta is lost", "text-length", drop_text),
    Bug("the clock of arrivals is ahead", "time-order", clock_ahead),
    Bug("the time in queue includes the first step", "queue-time", count_the_prefill),
    Bug("prefix hits are counted twice", MISSED, count_hits_twice),
    Bug("the most recently used block is evicted", MISSED, evict_most_recent, Load(), SMALL),
    Bug("copy-on-write copies another block", MISSED, copy_another_block, BEAMS),
    Bug("copy-on-write copies nothing", MISSED, no_copies, BEAMS),
    Bug("two sequences get each other's tokens", MISSED, sample_another),
)  # fmt: skip

BUGS_BY_LOAD = {(bug.load, *sorted((bug.settings or {}).items())): bug for bug in BUGS}
"""A bug for each load and settings, to run them without it."""


def run_bug(model: Path, bug: Bug, *, is_injected: bool = True) -> Run:
    """Runs the load of a bug, with the bug or without it."""
    run = Run(model, bug.load, bug.settings)
    if is_injected:
        bug.inject(run)
    run.go()
    return run


def main(arguments: list[str] | None = None) -> None:
    """Prints each bug with the rule that finds it first, and the other rules that do."""
    wanted = " ".join(arguments or ())
    with tempfile.TemporaryDirectory() as directory:
        model = tiny_model(Path(directory))
        for bug in BUGS:
            if wanted not in bug.name:
                continue
            run = run_bug(model, bug)
            firsts: dict[str, int] = {}
            for finding in run.findings:
                firsts.setdefault(finding.rule, finding.step)
            rules = ", ".join(f"{rule} {step}" for rule, step in firsts.items()) or "missed"
            mark = " " if (bug.rule in firsts if bug.rule else not firsts) else "!"
            print(f"{mark} {bug.name:62} {rules}", flush=True)
            if mark == "!":
                print(f"  {run.num_steps} steps, {run.num_preemptions} preemptions, {run.error!r}")


def tiny_model(directory: Path) -> Path:
    return make_checkpoint("llama", directory / "model", hidden_size=32, intermediate_size=48)


if __name__ == "__main__":
    main()
