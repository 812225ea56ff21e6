"""Bugs on waits, tables, figures and waste, injected into the simulated scheduler.

Each runs a small load with the default thresholds. `rule` names the defect, and `words` are what a
person has to be told: the request, the resource, the holder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from seqtop.wire.messages import CudaGraph, Event, Step
from tests.support import field_cases
from tests.support.field_cases import AdapterSlots, ByPriority, EncoderCache, Window
from tests.support.simulated_scheduler import REMOTE, SimulatedRequest, SimulatedScheduler

GRAMMAR = "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"


class Bug(NamedTuple):
    """A bug, and what must be said about it."""

    name: str
    rule: str
    request: str | None
    """The request that the finding names."""
    words: tuple[str, ...]
    run: Callable[[], list[Event]]


def _waits(status: str, seconds: float, **settings: Any) -> Callable[[], list[Event]]:
    """A request with a status that never ends, while others are served."""

    def run() -> list[Event]:
        scheduler = SimulatedScheduler(**settings)
        scheduler.add("stuck", 60, 10, status=status)
        while scheduler.now < 1_000 + seconds:
            scheduler.add(f"r{scheduler.num_ids}", 40, 4)
            scheduler.steps(6, gap=0.4)
        return scheduler.events

    return run


def _idle(status: str, seconds: int) -> Callable[[], list[Event]]:
    """A request with a status that never ends, in an engine that sends heartbeats only."""

    def run() -> list[Event]:
        scheduler = SimulatedScheduler()
        scheduler.add("stuck", 60, 10, status=status)
        scheduler.idle(seconds)
        return scheduler.events

    return run


def _two_loads() -> list[Event]:
    run = SimulatedScheduler()
    run.add("one", 60, 10, status=REMOTE)
    run.add("two", 60, 10, status=REMOTE)
    run.idle(40)
    return run.events


def _load_after_retraction() -> list[Event]:
    """A request is parked again, after it had been promoted."""
    run = SimulatedScheduler()
    request = run.add("again", 60, 10, status=REMOTE)
    run.steps(20, gap=0.5)
    run.park(request, "DECODE_RETRACTED_KV")
    run.steps(80, gap=0.5)
    return run.events


def _load_holds_what_the_head_needs() -> list[Event]:
    run = SimulatedScheduler(num_gpu_blocks=20)
    loading = run.add("loading", 300, 10, status=REMOTE)
    run.load(loading, 15)
    run.add("head", 120, 10)
    run.steps(80, gap=0.5)
    return run.events


def _hot_adapters() -> list[Event]:
    class TwoSlots(AdapterSlots):
        def admits(self, request: SimulatedRequest, budget: int, left: int) -> Any:
            loras = {own.lora for own in self.running}
            blocked = SimulatedScheduler.admits(self, request, budget, left)
            if blocked is None and len(loras) >= 2 and request.lora not in loras:
                return "lora_slots", 0, True
            return blocked

    run = TwoSlots(max_loras=2)
    run.add("a0", 40, 20, lora="hot-a")
    run.add("c0", 40, 20, lora="hot-c")
    run.steps(2)
    run.add("cold", 40, 20, lora="cold-b")
    while run.now < 1_034:
        run.add(f"a{run.num_ids}", 40, 20, lora="hot-a")
        run.add(f"c{run.num_ids}", 40, 20, lora="hot-c")
        run.steps(10, gap=0.1)
    return run.events


def _one_hot_adapter() -> list[Event]:
    run = AdapterSlots(max_loras=1)
    run.add("hot0", 40, 30, lora="hot")
    run.steps(2)
    run.add("cold", 40, 20, lora="cold")
    while run.now < 1_034:
        run.add(f"hot{run.num_ids}", 40, 30, lora="hot")
        run.steps(10, gap=0.1)
    return run.events


def _ended(num_requests: int, seconds: float, *, others: int = 0) -> Callable[[], list[Event]]:
    def run() -> list[Event]:
        scheduler = SimulatedScheduler(max_num_seqs=16)
        for number in range(num_requests):
            scheduler.add(f"p{number}", 500, 1, keeps_blocks=True)
            scheduler.steps(3)
        for number in range(others):
            scheduler.add(f"n{number}", 500, 1)
        scheduler.steps(int(seconds / 0.5), gap=0.5)
        return scheduler.events

    return run


def _ended_while_idle() -> list[Event]:
    run = SimulatedScheduler()
    run.add("p0", 100, 1, keeps_blocks=True)
    run.steps(3)
    run.idle(30)
    return run.events


def _released_late() -> list[Event]:
    run = SimulatedScheduler()
    late = run.add("p0", 100, 1, keeps_blocks=True)
    run.steps(60, gap=0.4)
    run.release(late)
    run.steps(3)
    return run.events


def _cycle() -> list[Event]:
    """Two waiting requests hold the pool, and each lacks a block."""
    run = SimulatedScheduler(num_gpu_blocks=8, num_reserved_blocks=1)
    first, second = run.add("A", 80, 40), run.add("B", 60, 40)
    run.load(first, 4)
    run.load(second, 3)
    run.steps(20, gap=0.2)
    return run.events


def _nothing_runs() -> list[Event]:
    run = SimulatedScheduler()
    for number in range(4):
        run.add(f"r{number}", 40, 40)
    run.steps(10)
    vars(run)["may_run"] = lambda request: False
    run.steps(120, gap=0.1)
    return run.events


def _nothing_is_admitted() -> list[Event]:
    run = SimulatedScheduler()
    vars(run)["admits"] = lambda request, budget, left: ("unknown", 0, True)
    for number in range(4):
        run.add(f"r{number}", 40, 40)
    run.steps(120, gap=0.1)
    return run.events


def _encoder() -> list[Event]:
    run = EncoderCache(max_num_encoder_input_tokens=4096, encoder_cache_size=4096, max_num_seqs=4)
    for number in range(6):
        run.add(f"img{number}", 200, 30, num_encoder_inputs=1)
    run.steps(6)
    run.is_stuck = True
    run.steps(120, gap=0.1)
    return run.events


def _urgent(**settings: Any) -> Callable[[], list[Event]]:
    def run() -> list[Event]:
        scheduler = ByPriority(queue_order="priority", **settings)
        for number in range(4):
            scheduler.add(f"batch{number}", 60, 400, priority=10)
        scheduler.steps(5)
        scheduler.add("vip", 200, 20, priority=-5)
        scheduler.steps(40, gap=0.4)
        return scheduler.events

    return run


def _figures(
    change: Callable[[dict[str, Any]], dict[str, Any]], **settings: Any
) -> Callable[[], list[Event]]:
    """A figure of the later steps is changed."""

    def run() -> list[Event]:
        scheduler = SimulatedScheduler(**settings)
        for number in range(4):
            scheduler.add(f"r{number}", 40, 10)
        scheduler.run_out()
        for event in scheduler.events:
            if isinstance(event, Step) and event.step >= 5:
                changes = change(msgspec.structs.asdict(event.stats) | {"step": event.step})
                event.stats = msgspec.structs.replace(event.stats, **changes)
        return scheduler.events

    return run


def _updates(**changes: Any) -> Callable[[], list[Event]]:
    """Figures of a sequence are changed in one step."""

    def run() -> list[Event]:
        scheduler = SimulatedScheduler()
        scheduler.add("r0", 40, 10)
        scheduler.run_out()
        step = next(own for own in scheduler.events if isinstance(own, Step) and own.step == 5)
        for name, value in changes.items():
            setattr(step.sequences[0], name, value)
        return scheduler.events

    return run


def _window_of_another() -> list[Event]:
    """The table of a window names a block that is another request's."""
    run = Window(
        kv_cache_groups=["full", "window"],
        kv_cache_specs=[{"kind": "full"}, {"kind": "window"}],
        num_gpu_blocks=150,
        num_reserved_blocks=1,
    )
    run.is_stale = True
    for number in range(10):
        run.add(f"r{number}", 200, 60)
        run.steps(12)
    run.run_out()
    return run.events


def _thrash() -> list[Event]:
    run = SimulatedScheduler(num_gpu_blocks=60, max_num_seqs=20, max_num_batched_tokens=1024)
    for number in range(30):
        run.add(f"r{number}", 100, 200)
    while run.now < 1_022:
        run.step(gap=0.02)
    return run.events


def _every_second_step() -> list[Event]:
    run = SimulatedScheduler(max_num_seqs=4)
    vars(run)["may_run"] = lambda request: run.number % 2 == 0
    for number in range(20):
        run.add(f"r{number}", 30, 200)
    while run.now < 1_012:
        run.step(gap=0.05)
    return run.events


def _short_prompts() -> list[Event]:
    run = SimulatedScheduler(block_size=256, enable_prefix_caching=True)
    for number in range(22):
        run.add(f"r{number}", 100 + number, 2)
        run.step()
    run.run_out()
    return run.events


def _one_token() -> list[Event]:
    run = SimulatedScheduler(max_num_seqs=2)
    vars(run)["sample"] = lambda request: 7
    run.add("loop", 20, 1_050)
    run.run_out()
    return run.events


BUGS = (
    Bug("a load never ends", "wait-limit", "stuck", ("KV connector",), _waits(REMOTE, 36)),
    Bug("and nothing else happens", "wait-limit", "stuck", ("KV connector",), _idle(REMOTE, 33)),
    Bug("two loads never end", "wait-limit", "one", ("1 other request",), _two_loads),
    Bug("a load begins again", "wait-limit", "again", ("RETRACTED_KV",), _load_after_retraction),
    Bug(
        "a load holds what the head of the queue needs",
        "wait-limit",
        "loading",
        ("holds 15 blocks", "head misses 3 blocks"),
        _load_holds_what_the_head_needs,
    ),
    Bug("a grammar is never compiled", "wait-limit", "stuck", ("grammar",), _waits(GRAMMAR, 14)),
    Bug("nor in an idle engine", "wait-limit", "stuck", ("grammar",), _idle(GRAMMAR, 14)),
    Bug("nor in SGLang's queue", "wait-limit", "stuck", ("GRAMMAR",), _idle("GRAMMAR_QUEUE", 14)),
    Bug(
        "a session gets no more input",
        "wait-limit",
        "stuck",
        ("no more input",),
        _idle("WAITING_FOR_STREAMING_REQ", 310),
    ),
    Bug(
        "a decode node never allocates",
        "wait-limit",
        "stuck",
        ("DECODE_PREALLOC_QUEUE",),
        _waits("DECODE_PREALLOC_QUEUE", 36),
    ),
    Bug(
        "a prefill node never gets its peer",
        "wait-limit",
        "stuck",
        ("PREFILL_BOOTSTRAP_QUEUE",),
        _idle("PREFILL_BOOTSTRAP_QUEUE", 36),
    ),
    Bug(
        "an encoder's output never comes",
        "wait-limit",
        "stuck",
        ("WAITING_FOR_ENCODER_CACHE",),
        _waits("WAITING_FOR_ENCODER_CACHE", 36),
    ),
    Bug("an own status never ends", "wait-limit", "stuck", ("QUOTA",), _idle("QUOTA", 65)),
    Bug(
        "one adapter keeps the slot",
        "wait-limit",
        "cold",
        ("slot", "hot", "meanwhile"),
        _one_hot_adapter,
    ),
    Bug(
        "two adapters keep both slots",
        "wait-limit",
        "cold",
        ("hot-a", "hot-c", "max_loras 2"),
        _hot_adapters,
    ),
    Bug("blocks of an ended request stay", "blocks-after-end", "p0", ("32 blocks",), _ended(1, 24)),
    Bug(
        "and nothing else happens (blocks)",
        "blocks-after-end",
        "p0",
        ("7 blocks",),
        _ended_while_idle,
    ),
    Bug(
        "those of six fill the pool",
        "blocks-after-end",
        "p0",
        ("6 ended requests", "192 of 200", "n0 misses 24 blocks"),
        _ended(6, 24, others=4),
    ),
    Bug("blocks are sent too late", "blocks-after-end", "p0", ("7 blocks",), _released_late),
    Bug(
        "a load that ended is not promoted",
        "deadlock",
        "A",
        ("A misses 1 block", "4 blocks itself", "B"),
        field_cases.loaded_requests_wait_for_each_other,
    ),
    Bug("two wait for each other's blocks", "deadlock", "A", ("B frees 3 blocks",), _cycle),
    Bug("no batch is made", "no-progress", None, ("4 run and get no token",), _nothing_runs),
    Bug("nothing is admitted", "no-progress", "r0", ("gave no reason",), _nothing_is_admitted),
    Bug("the encoder cache is full", "no-progress", None, ("the encoder cache is full",), _encoder),
    Bug(
        "low priorities keep the slots",
        "priority-wait",
        "vip",
        ("-5", "batch0", "max_num_seqs"),
        _urgent(max_num_seqs=4),
    ),
    Bug(
        "low priorities keep the blocks",
        "priority-wait",
        "vip",
        ("-5", "no free blocks"),
        _urgent(num_gpu_blocks=30),
    ),
    Bug(
        "more hits than lookups",
        "impossible-figure",
        None,
        ("prefix_cache_hits is 9", "prefix_cache_queries"),
        _figures(lambda _: {"prefix_cache_hits": 9}),
    ),
    Bug(
        "a number of running sequences is negative",
        "impossible-figure",
        None,
        ("num_running is -1",),
        _figures(lambda _: {"num_running": -1}),
    ),
    Bug(
        "the queue has a negative length",
        "impossible-figure",
        None,
        ("num_waiting is -2",),
        _figures(lambda _: {"num_waiting": -2}),
    ),
    Bug(
        "more blocks are freed than there were",
        "impossible-figure",
        None,
        ("num_used_blocks is -3",),
        _figures(lambda own: {"num_used_blocks": -3, "num_free_blocks": 203}),
    ),
    Bug(
        "preemptions are counted back",
        "impossible-figure",
        None,
        ("num_preemptions fell from 10 to 9",),
        _figures(lambda own: {"num_preemptions": 15 - own["step"]}),
    ),
    Bug(
        "lookups are counted anew",
        "impossible-figure",
        None,
        ("prefix_cache_queries fell",),
        _figures(lambda own: {"prefix_cache_queries": 100 if own["step"] < 9 else 3}),
    ),
    Bug(
        "more adapters than slots",
        "impossible-figure",
        None,
        ("num_used_loras is 3", "max_loras"),
        _figures(lambda _: {"num_used_loras": 3}, max_loras=2),
    ),
    Bug(
        "padding takes tokens away",
        "impossible-figure",
        None,
        ("num_padded_tokens",),
        _figures(lambda _: {"cuda_graph": CudaGraph("FULL", 8, 4)}),
    ),
    Bug(
        "a time is negative",
        "impossible-figure",
        None,
        ("scheduler_time is -0.1",),
        _figures(lambda _: {"scheduler_time": -0.1}),
    ),
    Bug(
        "more tokens accepted than drafted",
        "impossible-figure",
        "r0",
        ("num_accepted_tokens is 4 of 2",),
        _updates(num_draft_tokens=2, num_accepted_tokens=4),
    ),
    Bug(
        "more tokens loaded than found",
        "impossible-figure",
        "r0",
        ("num_external_tokens is 9 of 4",),
        _updates(num_cached_tokens=4, num_external_tokens=9),
    ),
    Bug(
        "a window keeps its blocks",
        "stale-table",
        "r0",
        ("group 1 (sliding_window)", "2 blocks"),
        field_cases.window_table,
    ),
    Bug(
        "a window names another's block",
        "stale-table",
        None,
        ("group 1 (window)", "is also in"),
        _window_of_another,
    ),
    Bug("more run than fit", "recomputes", None, ("preemptions lost",), _thrash),
    Bug(
        "every second step is empty", "empty-steps", None, ("computed nothing",), _every_second_step
    ),
    Bug("prompts are shorter than a block", "cache-in-vain", None, ("256",), _short_prompts),
    Bug("one token is repeated", "repetition", "loop", ("token 7",), _one_token),
)
"""The bugs."""
