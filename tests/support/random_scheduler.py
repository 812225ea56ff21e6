"""Random runs of the simulated scheduler, with all that a request can wait for.

They have sessions between two turns, KV caches that a connector loads or sends, adapters,
preemptions, aborts, and pauses between steps.
"""

from __future__ import annotations

import random

from seqtop.wire.messages import Event
from tests.support.field_cases import AdapterSlots
from tests.support.simulated_scheduler import REMOTE, SimulatedRequest

_MAX_UNFINISHED = 14


def random_schedule(seed: int, num_steps: int, *, start: float = 1000.0) -> list[Event]:
    """Returns the events of a run; the same arguments give the same ones."""
    draw = random.Random(seed)
    run = AdapterSlots(
        incarnation=f"run {seed}",
        start_time=start,
        num_gpu_blocks=draw.randint(16, 60),
        max_num_seqs=draw.randint(2, 8),
        max_num_batched_tokens=draw.choice([24, 64, 256]),
        max_loras=1,
    )
    run.now = start
    adapters = draw.choice([("",), ("",), ("", "a", "b")])
    longest = min(16 * (run.info.num_gpu_blocks - 4) // 3, 300)
    num_added = 0
    loading: list[SimulatedRequest] = []
    for _ in range(num_steps):
        unfinished = [*run.waiting, *run.running, *run.idle_sessions]
        if len(unfinished) < _MAX_UNFINISHED and draw.random() < 0.5:
            kind = draw.choice(["plain", "plain", "session", "sent", "loaded"])
            request = run.add(
                f"r{num_added}",
                draw.randint(4, longest),
                draw.randint(1, 30),
                lora=draw.choice(adapters),
                status=REMOTE if kind == "loaded" else "",
                keeps_blocks=kind == "sent",
                is_session=kind == "session",
            )
            num_added += 1
            needed = run.needed(request, request.num_prompt)
            if kind == "loaded" and needed <= len(run.free):
                run.load(request, needed)
            if kind == "loaded":
                loading.append(request)
        for request in [own for own in loading if draw.random() < 0.2]:
            loading.remove(request)
            if request in run.waiting:
                run.park(request, "")
        for request in [own for own in run.idle_sessions if draw.random() < 0.15]:
            if request.num_tokens < longest:
                run.feed(request, draw.randint(1, 40), draw.randint(1, 10))
            else:
                run.abort(request)
        for request in [own for own in run.pinned if draw.random() < 0.15]:
            run.release(request)
        if unfinished and draw.random() < 0.03:
            run.abort(draw.choice([*run.waiting, *run.running] or unfinished))
        run.step(gap=draw.choice([0.0005, 0.0005, 0.02, 0.3]))
    return run.events
