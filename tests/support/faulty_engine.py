"""An engine on paper that does one thing wrong, with a flight recorder.

Prints the process id of the recorder, waits for a line, and publishes a hundred steps a second.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from seqtop.flight_recorder import process
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import frames, parsing
from seqtop.wire.messages import Event, Heartbeat, SequenceUpdate
from tests.support import events

PROMPT = "the quixotic xylophone"
OUTPUT = " hums"
SECONDS_PER_STEP = 0.01
SECONDS_TO_TTFT = 0.3
RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


class FaultyEngine:
    """Two requests of three prompt tokens, of a block each; makes the events of its steps."""

    def __init__(self, live: zmq.Socket[bytes]) -> None:
        self._live = live
        """A subscriber of the publisher."""
        self._number = -1
        self._num_output = 0
        self._running: set[int] = set()
        """The sequences that run."""
        self._num_blocks: Counter[int] = Counter()
        """The blocks that each sequence holds."""

    def arrivals(self) -> Iterator[Event]:
        for number in (1, 2):
            arrival = events.arrival(number)
            arrival.arrival_time, arrival.prompt = time.time(), PROMPT
            yield arrival

    def step(self, *updates: SequenceUpdate, **fields: Any) -> Event:
        self._number += 1
        self._running |= {update.seq_id for update in updates if update.status is RUNNING}
        self._running -= {update.seq_id for update in updates if update.status is WAITING}
        for update in updates:
            if update.block_table is not None:
                del self._num_blocks[update.seq_id]
            self._num_blocks[update.seq_id] += len(update.new_blocks)
        num_running, num_used = len(self._running), self._num_blocks.total()
        stats = events.stats(
            num_prefill_tokens=len(updates),
            num_running=num_running,
            num_waiting=2 - num_running,
            num_used_blocks=num_used,
            num_free_blocks=64 - num_used,
        )
        event = events.step(self._number, sequences=[*updates], stats=stats, **fields)
        event.start_time = event.time = time.time()
        return event

    def await_delivery(self) -> None:
        """Waits for a heartbeat after the last step: by then each viewer has been sent the step."""
        while True:
            message = frames.unpack(self._live.recv_multipart())
            if isinstance(message, frames.Frame):
                event = parsing.event(message.payload)
                if isinstance(event, Heartbeat) and event.step == self._number:
                    return

    def decode(self, **fields: Any) -> Event:
        """A step in which the second request gets a token, and the first one none."""
        self._num_output += 1
        more: dict[str, Any] = {"blocks": [1]} if self._num_output == 1 else {}
        update = events.update(
            2, RUNNING, 2 + self._num_output, tokens=[self._num_output], text=OUTPUT, **more
        )
        return self.step(update, **fields)

    def begin_prefill(self, **fields: Any) -> Event:
        update = events.update(1, RUNNING, 1, blocks=[0])
        return self.step(update, **fields)

    def preempt(self, seq_id: int, by: int) -> Event:
        update = events.update(seq_id, WAITING, 0, table=[])
        preemption = events.preemption(f"req-{seq_id}", lost=1, by=f"req-{by}")
        return self.step(update, preemptions=[preemption])


Fault = Callable[[FaultyEngine], Iterator[Event]]


def hang_in_a_step(engine: FaultyEngine) -> Iterator[Event]:
    for _ in range(3):
        yield engine.decode()
    signal.pause()


def admit_nothing(engine: FaultyEngine) -> Iterator[Event]:
    while True:
        yield engine.step()


def leave_a_prefill(engine: FaultyEngine) -> Iterator[Event]:
    yield engine.begin_prefill()
    while True:
        yield engine.decode()


def wait_for_each_other(engine: FaultyEngine) -> Iterator[Event]:
    """The second request holds all blocks, and waits behind the first one, which misses one."""
    yield engine.step(SequenceUpdate(seq_id=2, num_computed_tokens=1, new_blocks=[*range(64)]))
    while True:
        yield engine.step(wait_reasons=[events.wait_reason("req-1", "no_blocks", 1)])


def preempt_for_ever(engine: FaultyEngine) -> Iterator[Event]:
    while True:
        yield engine.begin_prefill()
        yield engine.preempt(1, by=2)


def stop_publishing(engine: FaultyEngine) -> Iterator[Event]:
    yield engine.decode()
    engine.await_delivery()
    os.kill(os.getpid(), signal.SIGSTOP)


def miss_an_objective(engine: FaultyEngine) -> Iterator[Event]:
    arrived = time.time()
    time.sleep(SECONDS_TO_TTFT)
    now = time.time()
    metrics = RequestMetrics(arrived, now, arrived, now, 0.0)
    yield engine.decode(metrics={"req-2": metrics})
    while True:
        yield engine.decode()


def be_killed(engine: FaultyEngine) -> Iterator[Event]:
    for _ in range(3):
        yield engine.decode()
    engine.await_delivery()
    os.kill(os.getpid(), signal.SIGKILL)


def fail(engine: FaultyEngine) -> Iterator[Event]:
    for _ in range(3):
        yield engine.decode()
    raise RuntimeError


def end(engine: FaultyEngine) -> Iterator[Event]:
    yield engine.decode()


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        *(hang_in_a_step, admit_nothing, leave_a_prefill, wait_for_each_other, preempt_for_ever),
        *(stop_publishing, miss_an_objective, be_killed, fail, end),
    )
}


def main(fault: str, endpoint: str, directory: str, options: str) -> None:
    info = events.engine_info(start_time=time.time(), block_size=4096)
    publisher = MessagePublisher(endpoint, info, EngineState())
    with (
        publisher,
        process.started(endpoint, directory, options) as recorder,
        zmq.Context() as context,
        context.socket(zmq.SUB) as live,
    ):
        live.subscribe(b"")
        live.connect(endpoint)
        engine = FaultyEngine(live)
        sys.stdout.write(f"{recorder.pid}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for event in engine.arrivals():
            publisher.publish(event)
        try:
            for event in FAULTS[fault](engine):
                publisher.publish(event)
                time.sleep(SECONDS_PER_STEP)
        except RuntimeError:
            publisher.close("the device is lost", failed=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
