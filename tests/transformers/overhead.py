"""The cost of the adapter per step of continuous batching: a followed manager and one that is not.

Both have the same model, in one process, and take turns every ten steps, so that whatever else the
machine does hits both. The adapter's own time is the processor time of its functions on the thread
that generates; `step` is the time of that thread.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
import transformers  # noqa: E402
from stepping import make_manager, make_model  # noqa: E402

from seqtop.adapters.transformers.hook import follow  # noqa: E402
from seqtop.adapters.transformers.processor_observer import ProcessorObserver  # noqa: E402

NUM_TURNS, STEPS_PER_TURN = 10, 10
NUM_WARM_UP = 12


class Times:
    """The seconds of each step."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        self.own: list[float] = []


class OwnTime:
    """Measures the processor time of the adapter's functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.is_on = False
        """False while steps are measured: reading the clock costs, too."""
        for name in list(vars(ProcessorObserver)):
            if name.startswith(("_before_", "_after_")):
                self._replace(name)

    def _replace(self, name: str) -> None:
        original = getattr(ProcessorObserver, name)

        def timed(observer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_on:
                return original(observer, *args, **kwargs)
            start = time.thread_time()
            result = original(observer, *args, **kwargs)
            self.seconds += time.thread_time() - start
            return result

        setattr(ProcessorObserver, name, timed)


class Engine:
    """A manager that is stepped by hand."""

    def __init__(self, model: Any, num_running: int, num_waiting: int, endpoint: str) -> None:
        self.manager = make_manager(
            model,
            page_size=32,
            num_blocks=num_running * 20,
            max_batch_tokens=max(num_running * 4, 256),
            max_requests_per_batch=num_running,
        )
        if endpoint:
            follow(self.manager, endpoint)
        self.manager.batch_processor = self.processor = self.manager._create_batch_processor()
        self.manager.current_batch = 0
        for number in range(num_running + num_waiting):
            prompt = [number % 500, *range(31)]
            self.manager.add_request(prompt, request_id=f"r{number}", max_new_tokens=560)
        while self.num_decoding() < num_running:
            self.step()
        self.times = Times()

    def num_decoding(self) -> int:
        active = self.processor.scheduler.active_requests.values()
        return sum(bool(state.generated_tokens) for state in active)

    def step(self) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.thread_time()
        self.manager._generation_loop_body(self.processor, False)
        return time.perf_counter() - wall, time.thread_time() - cpu

    def turn(self) -> None:
        for _ in range(STEPS_PER_TURN):
            wall, cpu = self.step()
            self.times.wall.append(wall)
            self.times.cpu.append(cpu)


def measure(model: Any, title: str, num_running: int, num_waiting: int, own: OwnTime) -> None:
    with TemporaryDirectory(prefix="sq") as directory, torch.no_grad():
        endpoint = f"ipc://{directory}/e"
        followed = Engine(model, num_running, num_waiting, endpoint)
        plain = Engine(model, num_running, num_waiting, "")
        for engine in (followed, plain):
            for _ in range(NUM_WARM_UP):
                engine.step()
        for turn in range(NUM_TURNS):
            for engine in (followed, plain) if turn % 2 else (plain, followed):
                engine.turn()
        own.is_on = True
        for _ in range(5 * STEPS_PER_TURN):
            before = own.seconds
            followed.step()
            followed.times.own.append(own.seconds - before)
        own.is_on = False
        followed.manager.background_thread_status.mark_as_stopped()
    wall, cpu = (
        [1e3 * median(getattr(engine.times, unit)) for engine in (plain, followed)]
        for unit in ("wall", "cpu")
    )
    own_ms = 1e3 * median(followed.times.own)
    print(
        f"| {title} | {num_running} | {num_waiting} | {wall[0]:.2f} | {wall[1]:.2f}"
        f" | {cpu[0]:.2f} | {cpu[1]:.2f} | {own_ms:.3f} | {own_ms / cpu[0]:.2%} |",
        flush=True,
    )


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    own = OwnTime()
    small = make_model()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=1024,
    )
    large = transformers.LlamaForCausalLM(config).eval()
    print("| model | running | waiting | step | followed | step, CPU | followed | own | share |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for num_running, num_waiting in ((8, 0), (64, 0), (64, 1000)):
        measure(small, "2 layers", num_running, num_waiting, own)
    measure(large, "12 layers", 8, 0, own)


if __name__ == "__main__":
    main()
