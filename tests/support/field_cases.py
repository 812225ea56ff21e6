"""Bug reports of real engines as runs of a simulated scheduler, and healthy runs beside them.

Each function returns the events of a run. The sources are reports of vLLM, SGLang, TensorRT-LLM and
LMCache, of which only the mechanism is rebuilt.
"""

from __future__ import annotations

from typing import Any

from seqtop.wire.messages import CudaGraph, Event, SequenceUpdate
from tests.support.simulated_scheduler import REMOTE, SimulatedRequest, SimulatedScheduler


def healthy() -> list[Event]:
    """A light load."""
    run = SimulatedScheduler()
    for number in range(30):
        run.add(f"r{number}", 40 + number * 7, 20 + number % 9)
        run.steps(2)
    run.run_out()
    return run.events


class AdapterSlots(SimulatedScheduler):
    """Requests of one adapter run at a time, as `max_loras` is 1."""

    def admits(self, request: SimulatedRequest, budget: int, left: int) -> Any:
        loras = {own.lora for own in self.running}
        blocked = super().admits(request, budget, left)
        if blocked is None and loras and request.lora not in loras:
            return "lora_slots", 0, True
        return blocked

    def figures(self) -> dict[str, Any]:
        return {"num_used_loras": len({own.lora for own in self.running})}


def adapter_starves(num_requests: int = 300) -> list[Event]:
    """An adapter always has a request that runs, so the other one never gets the slot."""
    run = AdapterSlots(max_loras=1)
    for number in range(num_requests):
        run.add(f"a{number}", 40, 60, lora="adapter-a")
        if number == 5:
            run.add("b0", 40, 20, lora="adapter-b")
            run.add("b1", 40, 20, lora="adapter-b")
        run.steps(10)
    return run.events


class EncoderCache(SimulatedScheduler):
    """The inputs of waiting requests fill the encoder cache, and those that run get no token."""

    is_stuck = False

    def may_run(self, request: SimulatedRequest) -> bool:
        return not self.is_stuck

    def admits(self, request: SimulatedRequest, budget: int, left: int) -> Any:
        blocked = super().admits(request, budget, left)
        return ("unknown", 0, True) if self.is_stuck else blocked

    def figures(self) -> dict[str, Any]:
        slots = 4096 if self.is_stuck else 1024 * len(self.running)
        return {"num_used_encoder_slots": slots, "num_encoder_tokens": 0}


def encoder_cache_fills() -> list[Event]:
    """Nothing advances, and blocks are not the reason."""
    run = EncoderCache(max_num_encoder_input_tokens=4096, encoder_cache_size=4096, max_num_seqs=4)
    for number in range(10):
        run.add(f"img{number}", 900, 30, num_encoder_inputs=1)
    run.steps(12)
    run.is_stuck = True
    run.steps(300, gap=0.02)
    return run.events


class Window(SimulatedScheduler):
    """A second KV-cache group whose layers see the last 64 tokens only."""

    is_stale = False
    window_size = 64

    def step(self, gap: float = 0.0005) -> None:
        for request in self.running:
            block_size = self.info.block_size
            while len(request.window) < -(-request.num_tokens // block_size) + 1:
                request.window.append(self.free.pop(0))
            for position in range(max((request.num_computed - self.window_size) // block_size, 0)):
                block = request.window[position]
                if block > 0:
                    self.free.append(block)
                    # A negative number stands for a block that is free and still in the table.
                    request.window[position] = -block
        super().step(gap)

    def _advance(self, request: SimulatedRequest, *args: Any) -> SequenceUpdate:
        update = super()._advance(request, *args)
        shown = [
            block if block > 0 else (-block if self.is_stale else 0) for block in request.window
        ]
        update.group_block_tables = [shown]
        if update.block_table is not None:
            update.group_block_tables = [[]]
            self.free += [block for block in request.window if block > 0]
            request.window = []
        return update


def window_table(*, is_stale: bool = True) -> list[Event]:
    """The table of the window group names blocks that are free, or another request's by now."""
    specs: list[dict[str, Any]] = [
        {"kind": "full"},
        {"kind": "sliding_window", "sliding_window": 64},
    ]
    groups = ["full", "sliding_window"]
    run = Window(
        kv_cache_groups=groups, kv_cache_specs=specs, num_gpu_blocks=330, num_reserved_blocks=1
    )
    run.is_stale = is_stale
    for number in range(8):
        run.add(f"r{number}", 100 + 20 * number, 60)
        run.steps(12)
    run.run_out()
    return run.events


def loaded_requests_wait_for_each_other() -> list[Event]:
    """A request lacks one block; the other one's load has ended, and nobody promotes it."""
    run = SimulatedScheduler(num_gpu_blocks=8, num_reserved_blocks=1)
    first = run.add("A", 80, 40, status=REMOTE)
    second = run.add("B", 40, 40, status=REMOTE)
    run.load(first, 4)
    run.load(second, 3)
    run.steps(20, gap=0.05)
    run.park(first, "")
    run.steps(600, gap=0.05)
    return run.events


def load_without_an_end(seconds: int = 900) -> list[Event]:
    """A load fails, and an engine without work is never woken."""
    run = SimulatedScheduler(num_gpu_blocks=100)
    run.add("ok", 50, 30)
    run.run_out()
    run.add("lost", 300, 30, status=REMOTE)
    run.step()
    run.idle(seconds)
    return run.events


class CudaGraphs(SimulatedScheduler):
    """Batches of more than 32 tokens run without a CUDA graph."""

    def seconds(self, prefill: int, decode: int) -> float:
        return (0.008 if prefill + decode <= 32 else 0.035) + 0.0001 * prefill

    def figures(self) -> dict[str, Any]:
        number = len(self.running)
        graph = CudaGraph("FULL", number, 32) if number <= 32 else CudaGraph("NONE", number, number)
        return {"cuda_graph": graph}


def cuda_graph_is_missing() -> list[Event]:
    """Decodes of 40 sequences take four times as long as those of 30."""
    run = CudaGraphs(max_num_seqs=48, num_gpu_blocks=4000, max_num_batched_tokens=2048)
    for number in range(700):
        wanted = 30 if number < 350 else 40
        while len(run.running) + len(run.waiting) < wanted:
            run.add(f"r{run.num_ids}", 64, 150)
        run.step()
    return run.events


class ByPriority(SimulatedScheduler):
    """The queue is in order of priority, and nothing that runs is preempted for it."""

    def sorted_queue(self) -> list[SimulatedRequest]:
        return sorted(self.waiting, key=lambda own: (own.priority, own.arrival))


def priority_waits(num_steps: int = 1100) -> list[Event]:
    """Four requests of low priority keep all slots."""
    run = ByPriority(max_num_seqs=4, queue_order="priority", num_gpu_blocks=4000)
    for number in range(4):
        run.add(f"batch{number}", 60, 3000, priority=10)
    run.steps(5)
    run.add("vip", 60, 20, priority=-5)
    run.steps(num_steps)
    return run.events


class GrowingHost(SimulatedScheduler):
    """The scheduler takes longer with each step."""

    def seconds(self, prefill: int, decode: int) -> float:
        self.model = 0.01 + 0.0001 * prefill
        self.host = 0.004 + 0.00004 * self.number
        return self.model + self.host

    def figures(self) -> dict[str, Any]:
        return {"scheduler_time": self.host, "model_execute_time": self.model}


def scheduler_grows() -> list[Event]:
    """The scheduler's part of a step grows from 4 to 64 ms."""
    run = GrowingHost()
    for _ in range(1500):
        while len(run.running) + len(run.waiting) < 8:
            run.add(f"r{run.num_ids}", 60, 60)
        run.step()
    return run.events


def ended_requests_keep_blocks(num_steps: int = 450) -> list[Event]:
    """A prefill node keeps the blocks of six requests that nobody fetches."""
    run = SimulatedScheduler(max_num_seqs=16)
    for number in range(6):
        run.add(f"p{number}", 500, 1, keeps_blocks=True)
        run.steps(2)
    for number in range(20):
        run.add(f"n{number}", 500, 1)
    run.steps(num_steps, gap=0.05)
    return run.events


def ended_requests_free_blocks() -> list[Event]:
    """A healthy prefill node: each request's blocks are fetched a second after its end."""
    run = SimulatedScheduler(num_gpu_blocks=600, max_num_seqs=4)

    def step(gap: float = 0.0005) -> None:
        for request in [*run.pinned]:
            if request.finished is not None and run.now - request.finished >= 1.0:
                run.release(request)
        run.step(gap)

    for number in range(40):
        run.add(f"p{number}", 300, 1, keeps_blocks=True)
        for _ in range(8):
            step()
    for _ in range(100):
        step(0.02)
    return run.events


class FastLoop(SimulatedScheduler):
    """Steps without a batch take a third of a millisecond."""

    def seconds(self, prefill: int, decode: int) -> float:
        return 0.02 if prefill + decode else 0.0003


def healthy_load() -> list[Event]:
    """A healthy decode node: a load of a second holds blocks that another request waits for."""
    run = FastLoop(num_gpu_blocks=8, num_reserved_blocks=1)
    loading = run.add("B", 90, 6, status=REMOTE)
    run.load(loading, 6)
    run.step()
    run.add("A", 56, 10)
    end = run.now + 1.0
    while run.now < end:
        run.step(gap=0.001)
    run.park(loading, "")
    run.run_out()
    return run.events


def pool_is_oversubscribed() -> list[Event]:
    """Requests are admitted by their present needs, and computed again and again."""
    run = SimulatedScheduler(num_gpu_blocks=110, max_num_seqs=20, max_num_batched_tokens=1024)
    for number in range(40):
        run.add(f"r{number}", 200, 300)
    while run.running or run.waiting:
        run.step()
    return run.events
