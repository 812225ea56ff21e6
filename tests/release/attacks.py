"""Measures the steps of the bundled engine while viewers attack it, beside those without an attack.

Rounds with and without an attack alternate, so that other load on the machine falls on both. The
figures are medians over the rounds: steps per second, and steps per second of the engine thread's
processor time, each in proportion to the neighbouring rounds without an attack. Attackers are
processes of their own with a low priority, as they would be on another machine.

    python -m tests.release attacks --rounds 7
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
import zmq

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.entrypoints.reports import Start
from engine_stub.entrypoints.server import EngineServer
from engine_stub.step_record import StepRecord
from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.transport import curve_keys
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.wire import codec
from seqtop.wire.messages import Abort, SnapshotRequest, Submit

NUM_SEQUENCES = 16
SETTLE_SECONDS = 0.3


@dataclass(frozen=True)
class Target:
    """The endpoint under attack, and the directory with the keys of its viewers."""

    endpoint: str
    keys: str


Strike = Callable[[Target, Callable[[], bool]], Iterator[None]]
"""Attacks while the function returns true; yields after each message or connection."""


def flood(*payloads: list[bytes]) -> Strike:
    """Four connections that send these messages in turn, and read no reply."""

    def strike(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
        with zmq.Context() as context:
            sockets = [context.socket(zmq.DEALER) for _ in range(4)]
            for client in sockets:
                client.linger, client.sndhwm = 0, 8
                client.connect(snapshot_endpoint(target.endpoint))
            while goes_on():
                for client in sockets:
                    for payload in payloads:
                        if client.poll(5, zmq.POLLOUT):
                            with contextlib.suppress(zmq.Again):
                                client.send_multipart(payload, zmq.DONTWAIT)
                                yield
            for client in sockets:
                client.close()

    return strike


def _many_lists(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


def _submit(prompt: str, **params: Any) -> bytes:
    return codec.encode(Submit(prompt=prompt, sampling_params=SamplingParams(**params)))


def join(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
    """A hundred viewers a second, each of which joins, gets a snapshot and leaves."""
    with zmq.Context() as context:
        due = time.monotonic()
        while goes_on():
            with context.socket(zmq.SUB) as live, context.socket(zmq.DEALER) as requests:
                live.linger = requests.linger = 0
                live.subscribe(b"")
                live.connect(target.endpoint)
                requests.connect(snapshot_endpoint(target.endpoint))
                requests.send(codec.encode(SnapshotRequest()))
                requests.poll(200)
            yield
            due = max(due + 0.01, time.monotonic() - 1.0)
            time.sleep(max(0.0, due - time.monotonic()))


def watch(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
    """A viewer that reads, as it should."""
    with Session(target.endpoint) as session:
        yield
        while goes_on():
            session.wait_for_change(session.version, 0.05)


def stop_reading(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
    """Twenty viewers that never read."""
    with zmq.Context() as context:
        sockets = [context.socket(zmq.SUB) for _ in range(20)]
        for viewer in sockets:
            viewer.linger, viewer.rcvhwm = 0, 1
            viewer.subscribe(b"")
            viewer.connect(target.endpoint)
            yield
        while goes_on():
            time.sleep(0.05)
        for viewer in sockets:
            viewer.close()


_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)


def open_halfway(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
    """Connections that begin a CURVE handshake and never end it; two hundred at a time."""
    host, port = target.endpoint.removeprefix("tcp://").split(":")
    held: list[socket.socket] = []
    while goes_on():
        client = socket.create_connection((host, int(port)))
        client.sendall(_GREETING)
        held.append(client)
        if len(held) > 200:
            held.pop(0).close()
        yield
    for client in held:
        client.close()


def knock(target: Target, goes_on: Callable[[], bool]) -> Iterator[None]:
    """Whole CURVE handshakes with a key that is not on the list."""
    keys = curve_keys.viewer_keys(f"{target.keys}/engine.key", f"{target.keys}/other.key_secret")
    with zmq.Context() as context:
        while goes_on():
            sockets = [context.socket(zmq.DEALER) for _ in range(10)]
            for client in sockets:
                client.linger = 0
                keys.secure(client)
                client.connect(target.endpoint)
                yield
            time.sleep(0.01)
            for client in sockets:
                client.close()


SNAPSHOT = codec.encode(SnapshotRequest())
WITHOUT_CONTROL: dict[str, Strike] = {
    "a viewer": watch,
    "snapshot requests": flood([SNAPSHOT]),
    "requests of 1 MiB": flood([b"\x93\xafSnapshotRequest\xa1x" + _many_lists(1_000_000)]),
    "requests of 1 KiB, malformed": flood([_many_lists(1_000)]),
    "commands without permission": flood([codec.encode(Abort(request_id="x")), _submit("x")]),
    "requests of 10,000 parts": flood([b""] * 10_000 + [SNAPSHOT]),
    "viewers that do not read": stop_reading,
    "100 joins a second": join,
}
WITH_CONTROL: dict[str, Strike] = {
    "malformed commands": flood([b"\x93\xa6Submit\xa1x" + _many_lists(5_000)]),
    "refused submits": flood([_submit("x", n=1_000)]),
    "submits of 512 KiB": flood([_submit("once upon a time " * 31_000)]),
    "aborts of unknown requests": flood([codec.encode(Abort(request_id="unknown"))]),
}
WITH_KEYS: dict[str, Strike] = {
    "half-open CURVE handshakes": open_halfway,
    "handshakes with unlisted keys": knock,
}


def _attack(strike: Strike, target: Target, ready: Event, go: Event, count: Any) -> None:
    os.nice(10)
    ready.set()
    while True:
        go.wait()
        for _ in strike(target, go.is_set):
            count.value += 1


class Load:
    """Keeps as many requests running, and counts steps; a `RequestSource`."""

    def __init__(self) -> None:
        self.num_steps = 0
        self._number = 0
        self._num_running = 0

    def serve(self, server: EngineServer) -> None:
        while self._num_running < NUM_SEQUENCES:
            self._number += 1
            prompt = [10 + (self._number * 31 + index) % 900 for index in range(16)]
            params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
            server.add(f"load-{self._number}", prompt, params)
            self._num_running += 1

    def stepped(self, record: StepRecord) -> None:
        self.num_steps += 1
        self._num_running -= sum(group.request_id.startswith("load-") for group in record.finished)


@dataclass
class Reading:
    steps: int
    cpu: float
    wall: float


def _read(load: Load) -> Reading:
    return Reading(load.num_steps, time.thread_time(), time.perf_counter())


def _rates(before: Reading, after: Reading) -> tuple[float, float]:
    steps = after.steps - before.steps
    return steps / (after.cpu - before.cpu), steps / (after.wall - before.wall)


class Outcome(NamedTuple):
    """Medians over the rounds of one attack."""

    strikes: float
    """Messages or connections a second."""
    cpu: float
    """Steps per processor time of the engine's thread, in proportion to rounds without attack."""
    wall: float
    """Steps per second, in the same proportion."""


def measure_all(rounds: int, seconds: float, only: str = "") -> Iterator[tuple[str, Outcome]]:
    """Yields the outcome of each attack whose name has `only` in it, on an engine of its own."""
    for strikes, conditions in (
        (WITHOUT_CONTROL, {}),
        (WITH_CONTROL, {"control": True}),
        (WITH_KEYS, {"keys": True}),
    ):
        for name in strikes:
            if only in name:
                # Requests of one attack may wait in the socket for long after it.
                yield from measure([name], rounds, seconds, **conditions).items()


def measure(
    names: Sequence[str],
    rounds: int,
    seconds: float,
    *,
    control: bool = False,
    keys: bool = False,
) -> dict[str, Outcome]:
    """Returns the outcomes of attacks on one engine, which must drop no message."""
    spawn = multiprocessing.get_context("spawn")
    engine = LLMEngine(EngineConfig(device="cpu", max_num_seqs=NUM_SEQUENCES, num_gpu_blocks=600))
    info = engine_info(engine, engine_id="attacked", control=control)
    with TemporaryDirectory(prefix="sq") as directory, contextlib.ExitStack() as running:
        endpoint, own = f"ipc://{directory}/e", None
        if keys:
            for name in ("engine", "viewer", "other"):
                curve_keys.create_pair(Path(directory, name))
            own = f"{directory}/engine.key_secret", f"{directory}/viewer.key", None
            with socket.create_server(("127.0.0.1", 0)) as free:
                endpoint = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        publisher = running.enter_context(contextlib.closing(PublisherLink()))
        publisher.start(Start(info, endpoint, False, own))
        target = Target(endpoint, directory)
        attackers = {}
        for name in names:
            ready, go, count = spawn.Event(), spawn.Event(), spawn.Value("q", 0)
            # By name, since a function made by another cannot be sent to a process.
            arguments = (name, target, ready, go, count)
            process = spawn.Process(target=_attack_by_name, args=arguments, daemon=True)
            process.start()
            running.callback(process.join)
            running.callback(process.kill)
            attackers[name] = ready, go, count
        for ready, _, _ in attackers.values():
            ready.wait()
        load = Load()
        outcomes: dict[str, Outcome] = {}
        plan = _plan(attackers, rounds, seconds, load, outcomes)
        server = EngineServer(engine, publisher, sources=[load])
        server.run(lambda: next(plan, None) is None)
        assert publisher.num_dropped == 0
    return outcomes


def _attack_by_name(name: str, *arguments: Any) -> None:
    _attack((WITHOUT_CONTROL | WITH_CONTROL | WITH_KEYS)[name], *arguments)


def _plan(
    attackers: dict[str, Any],
    rounds: int,
    seconds: float,
    load: Load,
    outcomes: dict[str, Outcome],
) -> Iterator[bool]:
    """Yields between steps; starts and stops the attackers, and fills `outcomes` at the end."""

    def stretch(length: float) -> Iterator[bool]:
        end = time.perf_counter() + length
        while time.perf_counter() < end:
            yield True

    ratios: dict[str, list[Outcome]] = {name: [] for name in attackers}
    yield from stretch(2.0)
    for _ in range(rounds):
        for name, (_, go, count) in attackers.items():
            readings = []
            for attacks in (False, True, False):
                # Requests fill the engine's socket at once, and are read for long afterwards.
                struck = count.value
                if attacks:
                    go.set()
                yield from stretch(SETTLE_SECONDS)
                before = _read(load)
                yield from stretch(seconds)
                strikes = (count.value - struck) / (SETTLE_SECONDS + seconds)
                readings.append((_rates(before, _read(load)), strikes))
                go.clear()
            (cpu_0, wall_0), (cpu_1, wall_1) = readings[0][0], readings[2][0]
            (cpu, wall), strikes = readings[1]
            ratios[name].append(
                Outcome(strikes, 2 * cpu / (cpu_0 + cpu_1), 2 * wall / (wall_0 + wall_1))
            )
    outcomes |= {
        name: Outcome(*map(median, zip(*rows, strict=True))) for name, rows in ratios.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each round")
    parser.add_argument("--only", default="", help="a part of the names of the attacks to run")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"{'attack':<31}{'a second':>10}{'steps/CPU':>10}{'steps/s':>10}")
    for name, outcome in measure_all(options.rounds, options.seconds, options.only):
        strikes, cpu, wall = outcome
        print(f"{name:<31}{strikes:>10,.1f}{cpu:>10.1%}{wall:>10.1%}", flush=True)
