"""The cost of the adapter for vLLM's scheduler: real EngineCores, followed, dormant or neither.

256 requests run and 200 wait, in each engine as many until the end. Each has a process of its own,
and two of them take turns every ten steps, so that whatever else the machine does hits both. The
model takes no time at all, so what is measured is vLLM's own Python and ours. `CPU` is the
processor time of the engine's thread, which other programs cannot add to.
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.engines_in_turns import EngineProcess, Times, measure, measure_followed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

NUM_RUNNING, NUM_WAITING = 256, 200
NUM_ROUNDS, STEPS_PER_TURN, NUM_WARM_UP = 40, 10, 20
NUM_TOKENS = 900
"""The tokens of each request: more than an engine makes here, so that none ends."""


class Engine:
    """An EngineCore whose scheduler is stepped by hand, and how long that took."""

    def __init__(self) -> None:
        from token_executor import TokenExecutor
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore

        arguments = EngineArgs(
            model=str(HERE.parents[1] / "engine_stub" / "weights"),
            skip_tokenizer_init=True,
            dtype="float16",
            max_model_len=1024,
            block_size=16,
            num_gpu_blocks_override=NUM_RUNNING * 64,
            max_num_seqs=NUM_RUNNING,
            max_num_batched_tokens=8192,
            enable_prefix_caching=True,
            enforce_eager=True,
            async_scheduling=False,
        )
        self.core = EngineCore(arguments.create_engine_config(), TokenExecutor, log_stats=True)
        self.times: Times = {}

    def fill(self) -> None:
        """Add the requests, and step until as many as can are decoding."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        for number in range(NUM_RUNNING + NUM_WAITING):
            params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0, ignore_eos=True)
            request = EngineCoreRequest(
                request_id=f"cmpl-{number:032x}-0-{number:08x}",
                prompt_token_ids=[number, *range(64)],
                mm_features=None,
                sampling_params=params,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
            )
            self.core.add_request(*self.core.preprocess_add_request(request))
        for _ in range(NUM_WARM_UP):
            self.step()
        self.times.clear()

    def check(self) -> None:
        """Engines with fewer requests would be faster."""
        counts = self.core.scheduler.get_request_counts()
        assert counts == (NUM_RUNNING, NUM_WAITING), counts

    def step(self) -> None:
        scheduler = self.core.scheduler
        start = _now()
        output = scheduler.schedule()
        scheduled = _now()
        result = self.core.model_executor.execute_model(output)
        ran = _now()
        scheduler.update_from_output(output, result)
        updated = _now()
        self._note("schedule", start, scheduled)
        self._note("update", ran, updated)
        for unit, index in (("wall", 0), ("CPU", 1)):
            both = scheduled[index] - start[index] + updated[index] - ran[index]
            self.times.setdefault(f"both {unit}", []).append(both)
            self.times.setdefault(f"step {unit}", []).append(updated[index] - start[index])

    def _note(self, what: str, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.times.setdefault(f"{what} wall", []).append(end[0] - start[0])
        self.times.setdefault(f"{what} CPU", []).append(end[1] - start[1])


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.thread_time()


class OwnTimes:
    """The CPU seconds of each call of the adapter's own functions."""

    def __init__(self) -> None:
        from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver

        self.is_on = False
        """False while the adapter itself is measured: reading the clock costs, too."""
        self.times: Times = {}
        for name in ("_before_schedule", "_after_schedule", "_before_update", "_after_update"):
            self._replace(SchedulerObserver, name)

    def _replace(self, owner: type, name: str) -> None:
        original, times = getattr(owner, name), self.times.setdefault(name, [])

        def timed(observer: Any, *args: Any) -> None:
            if not self.is_on:
                original(observer, *args)
                return
            start = time.thread_time()
            original(observer, *args)
            times.append(time.thread_time() - start)

        setattr(owner, name, timed)


def serve(connection: Connection, kind: str, endpoint: str = "") -> None:
    """Runs an engine in this process: `followed`, `dormant` or `plain`."""
    import token_executor

    from seqtop.adapters.vllm import hook
    from seqtop.transport.publisher_settings import PublisherSettings

    token_executor.STEP_SECONDS = 0.0
    own = OwnTimes()
    engine, attachment = Engine(), None
    if kind == "followed":
        attachment = hook.follow(engine.core.scheduler, PublisherSettings(bind=endpoint))
    elif kind == "dormant":
        hook.sleep(engine.core.scheduler, PublisherSettings(bind="dormant"))
    engine.fill()
    connection.send(None)
    while num_steps := connection.recv():
        engine.times.clear()
        for _ in range(num_steps):
            engine.step()
        engine.check()
        connection.send(engine.times)
    own.is_on = True
    for _ in range(STEPS_PER_TURN * 5):
        engine.step()
    assert attachment is None or attachment.is_attached
    engine.core.scheduler.shutdown()
    connection.send(own.times)


def main() -> None:
    import vllm

    print(f"vLLM {vllm.__version__}, {NUM_RUNNING} running and {NUM_WAITING} waiting")
    with TemporaryDirectory(prefix="sq") as directory:
        dormant, plain = EngineProcess(serve, "dormant"), EngineProcess(serve, "plain")
        measure(dormant, plain, "dormant", NUM_ROUNDS, STEPS_PER_TURN)
        dormant.close()
        plain.close()
        plain = EngineProcess(serve, "plain")
        followed = EngineProcess(serve, "followed", f"ipc://{directory}/e")
        measure_followed(followed, plain, directory, NUM_ROUNDS, STEPS_PER_TURN)


if __name__ == "__main__":
    main()
