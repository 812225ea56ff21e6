"""Kills an engine, a viewer or a recorder in the midst of it, and looks at what is left.

Each function plays one seeded round with real processes; the moment of the kill is drawn from the
seed. What was promised is asserted.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from seqtop.history import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.recorder import Recorder
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo
from tests.support.random_engine import RandomEngine
from tests.support.waiting import SECONDS, wait_until

PACE = 0.001
_spawn = multiprocessing.get_context("spawn")


def publish(endpoint: str, seed: int, incarnation: str) -> None:
    """An engine: publishes its script until somebody ends it."""
    script = iter(RandomEngine(seed, sys.maxsize, incarnation=incarnation))
    info = next(script)
    assert isinstance(info, EngineInfo)
    with MessagePublisher(endpoint, info, EngineState()) as publisher:
        for event in script:
            publisher.publish(event)
            time.sleep(PACE)


@contextmanager
def engine(endpoint: str, seed: int, incarnation: str = "one") -> Iterator[int]:
    """An engine's process, killed at the end if it is not before; yields its process id."""
    process = _spawn.Process(target=publish, args=(endpoint, seed, incarnation))
    process.start()
    assert process.pid is not None
    try:
        yield process.pid
    finally:
        process.kill()
        process.join()


def kill_recorder(seed: int, directory: str) -> str:
    """A recording whose writer was killed holds a beginning of what happened, whole and true."""
    choose = random.Random(seed)
    endpoint, path = f"ipc://{directory}/e", Path(directory, "run.seqtop")
    with engine(endpoint, seed):
        command = [sys.executable, "-m", "seqtop", "record", endpoint, "-o", str(path)]
        recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(path.exists)
        size = choose.randint(1_000, 60_000)
        wait_until(lambda: path.stat().st_size >= size)
        recorder.send_signal(signal.SIGKILL)
        recorder.wait()
    with FileStore(path) as recording:
        found = recording.at(recording.last)
        # Of what was cut in the middle nothing counts, so that it may all be in the first keyframe.
        number = recording.index[recording.last].number
        said = recording.damage or "no damage"
    _assert_is_after(found, seed, number)
    return f"{number} messages, {path.stat().st_size:,} bytes, {said}"


def kill_engine(seed: int, directory: str) -> str:
    """A viewer of an engine that was killed keeps what it saw, and follows the next."""
    choose = random.Random(seed)
    endpoint, path = f"ipc://{directory}/e", Path(directory, "run.seqtop")
    with Session(endpoint) as session:
        with engine(endpoint, seed):
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            recorder = Recorder(FileWriter(path))
            session.add_listener(recorder.record)
            target = session.sequence_number + choose.randint(1, 400)
            wait_until(lambda: session.sequence_number >= target)
        seen = session.history.last
        remembered = codec.encode(session.history.at(seen))
        number = session.sequence_number
        with engine(endpoint, seed + 1, "two"):
            wait_until(lambda: _incarnation(session) == "two")
            assert codec.encode(session.history.at(seen)) == remembered
        session.remove_listener(recorder.record)
        recorder.close()
    with FileStore(path) as recording:
        assert recording.gaps[-1].restarted
        before = recording.at(recording.gaps[-1].position - 1)
        last = recording.index[recording.gaps[-1].position - 1].number
    assert last >= number
    _assert_is_after(before, seed, last)
    return f"{last} messages before, {session.connection.num_resyncs} resyncs"


def kill_viewer(seed: int, directory: str) -> str:
    """The engine and other viewers go on as if a killed viewer had never been."""
    choose = random.Random(seed)
    endpoint = f"ipc://{directory}/e"
    with engine(endpoint, seed), Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        command = [sys.executable, "-m", "seqtop", "show", "--json", endpoint]
        viewer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(choose.uniform(0.0, 0.5))  # a random moment of its life, from its first on
        viewer.kill()
        viewer.wait()
        target = session.sequence_number + 50
        wait_until(lambda: session.sequence_number >= target)
        assert (
            session.connection.num_missed
            == session.connection.num_resyncs
            == session.connection.num_errors
            == 0
        )
        with session.lock:
            number = session.sequence_number
            found = msgspec.structs.replace(session.state)
            _assert_is_after(found, seed, number)
    return f"{number} messages, none missed"


def _assert_is_after(found: EngineState, seed: int, number: int) -> None:
    """`found` is what the engine's own events up to message `number` make."""
    truth = EngineState(max_finished=found.max_finished)
    for index, event in enumerate(RandomEngine(seed, sys.maxsize)):
        truth.apply(event)
        if index == number:
            break
    for field in msgspec.structs.fields(EngineState):
        assert getattr(found, field.name) == getattr(truth, field.name), field.name


def _incarnation(session: Session) -> str:
    with session.lock:
        return session.state.info.incarnation if session.state.info else ""
