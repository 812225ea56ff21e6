"""What the adapter costs vLLM's scheduler: real EngineCores, followed, dormant or neither.

256 requests run and 200 wait. The engines are in this process, and two take turns every ten
steps, so that whatever else the machine does hits both. The model takes no time at all, so what is
measured is vLLM's own Python and ours. `CPU` is this thread's processor time, which other programs
cannot add to.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

NUM_RUNNING, NUM_WAITING = 256, 200
NUM_ROUNDS, STEPS_PER_TURN, NUM_WARM_UP = 60, 10, 20


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
        self.times: dict[str, list[float]] = {}

    def fill(self) -> None:
        """Add the requests, and step until as many as can are decoding."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        for number in range(NUM_RUNNING + NUM_WAITING):
            params = SamplingParams(max_tokens=900, temperature=0, ignore_eos=True)
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
        counts = self.core.scheduler.get_request_counts()
        assert counts == (NUM_RUNNING, NUM_WAITING), counts
        self.times.clear()

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


def time_the_adapter() -> dict[str, list[float]]:
    """Have the adapter's own functions timed, apart from vLLM's around them: CPU seconds a call."""
    from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver

    own: dict[str, list[float]] = {}

    def replace(name: str) -> None:
        original, times = getattr(SchedulerObserver, name), own.setdefault(name, [])

        def timed(self: Any, *args: Any) -> None:
            start = time.thread_time()
            original(self, *args)
            times.append(time.thread_time() - start)

        setattr(SchedulerObserver, name, timed)

    for name in ("_before_schedule", "_after_schedule", "_before_update", "_after_update"):
        replace(name)
    return own


def measure(followed: Engine, plain: Engine, title: str) -> None:
    followed.times.clear()
    plain.times.clear()
    for turn in range(NUM_ROUNDS):
        pair = (followed, plain) if turn % 2 else (plain, followed)
        for engine in pair:
            for _ in range(STEPS_PER_TURN):
                engine.step()
    print(f"\n{title}: {NUM_ROUNDS * STEPS_PER_TURN} steps of each, milliseconds")
    titles = ("p10 off", "on", "median off", "on", "p99 off", "on")
    print(f"{'':14}" + "".join(f"{title:>12}" for title in titles))
    for name, off in plain.times.items():
        on = followed.times[name]
        figures = [at(times) for at in (_p10, median, _p99) for times in (off, on)]
        print(f"{name:14}" + "".join(f"{1e3 * each:12.3f}" for each in figures))
    for what, name in (("schedule()", "schedule CPU"), ("schedule() and update", "both CPU")):
        on, off = followed.times[name], plain.times[name]
        added = ", ".join(
            f"{1e6 * (at(on) - at(off)):+.0f} µs at the {title}"
            for at, title in ((_p10, "tenth percentile"), (median, "median"))
        )
        ratio = median(on) / median(off)
        print(f"{what}: {added}; ratio of the medians {ratio:.3f}")


def _p10(times: list[float]) -> float:
    return quantiles(times, n=10)[0]


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


def main() -> None:
    import token_executor
    import vllm

    from seqtop.adapters.vllm.dormant import DormantEngine
    from seqtop.adapters.vllm.hook import follow
    from seqtop.adapters.vllm.settings import AdapterSettings

    token_executor.STEP_SECONDS = 0.0
    own = time_the_adapter()
    followed, plain, dormant = Engine(), Engine(), Engine()
    print(f"vLLM {vllm.__version__}, {NUM_RUNNING} running and {NUM_WAITING} waiting")
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        attachment = follow(followed.core.scheduler, AdapterSettings(bind=endpoint))
        assert attachment is not None
        DormantEngine(dormant.core.scheduler, AdapterSettings(bind="dormant"))
        for engine in (followed, plain, dormant):
            engine.fill()
        measure(dormant, plain, "dormant")
        measure(followed, plain, "nobody looks on")
        command = [sys.executable, "-m", "seqtop", "record", endpoint, "-o", f"{directory}/r"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as viewer:
            _await(Path(directory, "r"))
            measure(followed, plain, "a viewer looks on")
            viewer.terminate()
        assert attachment.is_attached
        print("\nThe adapter's own functions, µs of CPU a step")
        for name, times in own.items():
            figures = [f"{1e6 * at(times):6.0f}" for at in (_p10, median, _p99)]
            print(f"{name:16} p10 {figures[0]}, median {figures[1]}, p99 {figures[2]}")
        followed.core.scheduler.shutdown()


def _await(path: Path) -> None:
    """The recording is begun when the viewer has its first state."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    main()
