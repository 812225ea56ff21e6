"""The cost of the adapter for vLLM's scheduler: real EngineCores, followed, dormant or neither.

256 requests run and 200 wait, in each engine as many until the end. Each has a process of its own,
and two of them take turns every ten steps, so that whatever else the machine does hits both. The
model takes no time at all, so what is measured is vLLM's own Python and ours. `CPU` is the
processor time of the engine's thread, which other programs cannot add to.
"""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

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
        self.times: dict[str, list[float]] = {}

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
        self.times: dict[str, list[float]] = {}
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


def serve(connection: Connection, kind: str, endpoint: str) -> None:
    """Runs an engine in this process: steps it on request, and sends back the times."""
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


class EngineProcess:
    """A process with one engine: `followed`, `dormant` or `plain`."""

    def __init__(self, kind: str, endpoint: str = "") -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, other = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(other, kind, endpoint))
        self._process.start()
        self._connection.recv()
        self.times: dict[str, list[float]] = {}

    def run(self, num_steps: int) -> None:
        self._connection.send(num_steps)
        for name, times in self._connection.recv().items():
            self.times.setdefault(name, []).extend(times)

    def close(self) -> dict[str, list[float]]:
        """Returns the times of the adapter's own functions."""
        self._connection.send(0)
        own: dict[str, list[float]] = self._connection.recv()
        self._process.join()
        return own


def measure(followed: EngineProcess, plain: EngineProcess, title: str) -> None:
    followed.times.clear()
    plain.times.clear()
    for turn in range(NUM_ROUNDS):
        pair = (followed, plain) if turn % 2 else (plain, followed)
        for engine in pair:
            engine.run(STEPS_PER_TURN)
    print(f"\n{title}: {NUM_ROUNDS * STEPS_PER_TURN} steps of each, milliseconds")
    titles = ("p10 off", "on", "median off", "on", "p99 off", "on")
    print(f"{'':14}" + "".join(f"{title:>12}" for title in titles))
    for name, off in plain.times.items():
        on = followed.times[name]
        figures = [at(times) for at in (_p10, median, _p99) for times in (off, on)]
        print(f"{name:14}" + "".join(f"{1e3 * figure:12.3f}" for figure in figures))
    for what, name in (("schedule()", "schedule CPU"), ("schedule() and update", "both CPU")):
        on, off = followed.times[name], plain.times[name]
        added = ", ".join(
            f"{1e6 * (at(on) - at(off)):+.0f} µs at the {title}"
            for at, title in ((_p10, "tenth percentile"), (median, "median"))
        )
        both = zip(turns(on), turns(off), strict=True)
        ratios = [median(of_on) / median(of_off) for of_on, of_off in both]
        print(
            f"{what}: {added}; ratio of the medians {median(on) / median(off):.3f},"
            f" median ratio of neighbouring turns {median(ratios):.3f}"
        )


def turns(times: list[float]) -> list[list[float]]:
    return [times[first : first + STEPS_PER_TURN] for first in range(0, len(times), STEPS_PER_TURN)]


def _p10(times: list[float]) -> float:
    return quantiles(times, n=10)[0]


def _p99(times: list[float]) -> float:
    return quantiles(times, n=100)[98]


def main() -> None:
    import vllm

    print(f"vLLM {vllm.__version__}, {NUM_RUNNING} running and {NUM_WAITING} waiting")
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        dormant, plain = EngineProcess("dormant"), EngineProcess("plain")
        measure(dormant, plain, "dormant")
        dormant.close()
        plain.close()
        followed, plain = EngineProcess("followed", endpoint), EngineProcess("plain")
        measure(followed, plain, "without a viewer")
        command = [sys.executable, "-m", "seqtop", "record", endpoint, "-o", f"{directory}/r"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as viewer:
            _await(Path(directory, "r"))
            measure(followed, plain, "a viewer looks on")
            viewer.terminate()
        plain.close()
        print("\nThe adapter's own functions, µs of CPU a step")
        for name, times in followed.close().items():
            figures = [f"{1e6 * at(times):6.0f}" for at in (_p10, median, _p99)]
            print(f"{name:16} p10 {figures[0]}, median {figures[1]}, p99 {figures[2]}")


def _await(path: Path) -> None:
    """The recording is begun when the viewer has its first state."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


if __name__ == "__main__":
    main()
