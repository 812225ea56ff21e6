"""Measures the memory and the processor time of viewers that stay open.

An engine publishes steps at a fixed rate: a random load whose requests finish, some with
log-probabilities. The app watches it on a pseudo-terminal of 160 x 45; now and then its user visits
every screen, opens a dialog, goes back in time and returns. `seqtop show --follow` and `seqtop
record` watch the same engine, and `seqtop attach --kv-events` the cached blocks that it publishes.
Printed are, for each process, the resident memory after a tenth of the steps and at the end, the
growth in between, the processor time a step, and for the app the time from `q` to its end.

    python -m tests.release open_viewers --steps 100000
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineInfo, Step
from tests.support.commands import SEQTOP
from tests.support.kv_publisher import KvPublisher, removed, stored
from tests.support.random_engine import RandomEngine
from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS

SIZE = (160, 45)
WARM_UP = 0.1
"""The part of the steps after which memory is compared."""
NUM_VISITS = 20
"""The number of visits to every screen."""
SCREENS = "234561"
HELP = "Keys and words"
NUM_CACHED = 1_000
"""The blocks that are cached by the KV-cache events, of which each step stores one."""


def publish(
    endpoint: str, kv_endpoint: str, num_steps: int, rate: float, ended: Flag, counts: Any
) -> None:
    """Publishes steps and KV-cache events at a rate, then stays until `ended`."""
    script = iter(RandomEngine(1, sys.maxsize, load=12, max_running=8, num_blocks=64))
    info = next(script)
    assert isinstance(info, EngineInfo)
    started, sent = time.monotonic(), 0
    with (
        MessagePublisher(endpoint, info, EngineState()) as publisher,
        KvPublisher(kv_endpoint) as kv_events,
    ):
        for event in script:
            publisher.publish(event)
            if isinstance(event, Step):
                sent += 1
                counts[0] = sent
                dropped = [removed([sent - NUM_CACHED])] if sent > NUM_CACHED else []
                kv_events.send(stored([sent]), *dropped)
                kv_events.kept.clear()
                ahead = sent / rate - (time.monotonic() - started)
                if sent >= num_steps or (ended.wait(ahead) if ahead > 0 else ended.is_set()):
                    break
        ended.wait()


class Usage(NamedTuple):
    """The memory and time that a process takes over the steps after the warm-up."""

    first_bytes: int
    """Resident bytes after the warm-up."""
    last_bytes: int
    most_bytes: int
    num_steps: int
    cpu_seconds: float

    @property
    def growth(self) -> float:
        """Bytes a step."""
        return (self.last_bytes - self.first_bytes) / max(self.num_steps, 1)

    @property
    def cpu(self) -> float:
        """Processor seconds a step."""
        return self.cpu_seconds / max(self.num_steps, 1)


class Outcome(NamedTuple):
    """The outcome of a run."""

    usage: dict[str, Usage]
    seconds_to_quit: float
    exit_status: int


def run(num_steps: int, rate: float) -> Outcome:
    """Runs the engine and the viewers for `num_steps` steps, at most `rate` a second."""
    spawn = multiprocessing.get_context("spawn")
    ended, counts = spawn.Event(), spawn.Array("q", 1, lock=False)
    with tempfile.TemporaryDirectory(prefix="sq") as folder:
        os.environ |= {"XDG_CONFIG_HOME": folder, "XDG_STATE_HOME": folder}
        endpoint, kv_endpoint = f"ipc://{folder}/e", f"ipc://{folder}/k"
        engine = spawn.Process(
            target=publish,
            args=(endpoint, kv_endpoint, num_steps, rate, ended, counts),
            daemon=True,
        )
        engine.start()
        app = Terminal(*SEQTOP, "attach", endpoint, size=SIZE, cwd=Path(folder))
        blocks = Terminal(
            *SEQTOP, "attach", "--kv-events", kv_endpoint, size=SIZE, cwd=Path(folder)
        )
        patient = ("--timeout", f"{SECONDS:g}")
        others = {
            "show --follow": ("show", endpoint, "--follow", "--json", *patient),
            "record": ("record", endpoint, "--output", f"{folder}/run.seqtop", *patient),
        }
        followers = {
            name: subprocess.Popen([*SEQTOP, *words], stdout=subprocess.DEVNULL)
            for name, words in others.items()
        }
        try:
            app.wait_until(lambda: "running" in app.text)
            assert engine.pid is not None
            pids = {
                "app": app.process.pid,
                "attach --kv-events": blocks.process.pid,
                "engine": engine.pid,
            }
            pids |= {name: process.pid for name, process in followers.items()}
            usage = _watch(app, blocks, {name: psutil.Process(pid) for name, pid in pids.items()},
                           num_steps, counts)  # fmt: skip
            asked = time.monotonic()
            app.press("q")
            while app.process.poll() is None and time.monotonic() - asked < SECONDS:
                app.read(0.01)
            return Outcome(usage, time.monotonic() - asked, app.process.wait(SECONDS))
        finally:
            app.close()
            blocks.close()
            for process in followers.values():
                process.kill()
                process.wait()
            ended.set()
            engine.join(SECONDS)


def _watch(
    app: Terminal,
    blocks: Terminal,
    processes: dict[str, psutil.Process],
    num_steps: int,
    counts: Any,
) -> dict[str, Usage]:
    """Reads the app's terminal and visits its screens until all steps are published."""
    first: dict[str, tuple[int, float]] = {}
    most = dict.fromkeys(processes, 0)
    began, visits = 0, 0
    while counts[0] < num_steps:
        app.read(0.05)
        blocks.read(0)
        app.output, blocks.output = app.output[-100:], blocks.output[-100:]  # our own memory
        step = counts[0]
        if step >= num_steps * (visits + 0.5) / NUM_VISITS:
            visits += 1
            _visit(app)
        if step < num_steps * WARM_UP:
            continue
        if not first:
            began = step
            first = {name: _sample(process) for name, process in processes.items()}
        for name, process in processes.items():
            most[name] = max(most[name], process.memory_info().rss)
    last = {name: _sample(process) for name, process in processes.items()}
    return {
        name: Usage(
            first[name][0], last[name][0], most[name],
            num_steps - began, last[name][1] - first[name][1],
        )
        for name in processes
    }  # fmt: skip


def _visit(app: Terminal) -> None:
    """Visits every screen, opens a dialog, and goes to a past preemption, and back."""
    for key in (*SCREENS, "p", *SCREENS, "L"):
        app.press(key)
        for _ in range(4):
            app.read(0.05)
    app.press("?")
    app.wait_until(lambda: HELP in app.text)
    app.press("\x1b")
    app.wait_until(lambda: HELP not in app.text)


def _sample(process: psutil.Process) -> tuple[int, float]:
    """Returns resident bytes and processor seconds."""
    times = process.cpu_times()
    return process.memory_info().rss, times.user + times.system


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=200.0, help="steps per second")
    options = parser.parse_args(arguments)
    outcome = run(options.steps, options.rate)
    titles = ("MB first", "MB last", "MB most", "B/step", "ms/step")
    print(f"{'process':<20}" + "".join(f"{title:>10}" for title in titles))
    for name, usage in outcome.usage.items():
        megabytes = (usage.first_bytes, usage.last_bytes, usage.most_bytes)
        cells = "".join(f"{number / 1e6:>10.1f}" for number in megabytes)
        print(f"{name:<20}{cells}{usage.growth:>10.0f}{usage.cpu * 1e3:>10.2f}")
    print(f"q: {outcome.seconds_to_quit:.2f} s, exit status {outcome.exit_status}")
