"""Random runs of the bundled engine: any settings, requests at any time, aborts."""

import contextlib
import random

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.history.memory_store import MemoryStore
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event


class Recorded:
    """Records what is published as a viewer does, after a trip over the wire."""

    def __init__(self) -> None:
        self.history, self.state = MemoryStore(), EngineState()
        self.num_messages = 0

    def publish(self, event: Event) -> None:
        payload = codec.encode(event)
        received = parsing.event(payload)
        self.state.apply(received)
        self.history.append(self.num_messages, payload, received, self.state)
        self.num_messages += 1


def random_run(seed: int) -> Recorded:
    """A run of 4 to 16 requests, to the end."""
    rng = random.Random(seed)
    now = [1_000.0]

    def clock() -> float:
        now[0] += rng.expovariate(200.0)
        return now[0]

    max_num_seqs = rng.randint(1, 8)
    chunked = rng.random() < 0.7
    config = EngineConfig(
        device="cpu",
        block_size=8,
        num_gpu_blocks=rng.randint(12, 40),
        num_cpu_blocks=rng.choice((0, 0, 40)),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=rng.randint(max_num_seqs, 64) if chunked else 96,
        max_model_len=96,
        preemption_mode=rng.choice(("recompute", "swap")),
        preemption_victim=rng.choice(("last", "largest")),
        num_scheduler_steps=rng.choice((1, 1, 3)),
        enable_chunked_prefill=chunked,
        enable_prefix_caching=rng.random() < 0.7,
    )
    engine = LLMEngine(config, clock=clock)
    recorded = Recorded()
    steps = StepPublisher(recorded)
    recorded.publish(engine_info(engine, engine_id="random", control=False))
    groups = []
    shared = [9] * rng.randrange(30)

    last_start = now[0]

    def step() -> None:
        nonlocal last_start
        record = engine.step()
        last_start = record.start_time
        steps.stepped(record)

    for number in range(rng.randrange(4, 16)):
        prompt = shared + [rng.randrange(1, 257) for _ in range(rng.randrange(1, 40))]
        max_tokens = rng.randrange(1, 24)
        params = (
            BeamSearchParams(beam_width=min(max_num_seqs, 2), max_tokens=max_tokens)
            if rng.random() < 0.15
            else SamplingParams(
                n=rng.choice((1, 1, 1, 2)), seed=number, max_tokens=max_tokens, ignore_eos=True
            )
        )
        arrival = rng.uniform(last_start, now[0])  # within the last step
        with contextlib.suppress(ValueError):  # beams that the pool could not hold
            added = engine.add_request(
                f"req-{number}", prompt, params, arrival, priority=rng.randrange(2)
            )
            for group in added:
                groups.append(group)
                steps.arrived(group)
        for _ in range(rng.randrange(4)):
            step()
        if groups and rng.random() < 0.15:
            engine.abort_request(rng.choice(groups).request_id)
    while engine.has_unfinished_requests():
        step()
    return recorded
