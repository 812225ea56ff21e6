"""Runs an engine: serves its requests, and publishes its steps for viewers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.workload import Arrival
from engine_stub.failure_log import log_failure
from engine_stub.processing.input_processor import Params, Prompt
from engine_stub.step_record import StepRecord
from seqtop.sequence import SequenceGroup
from seqtop.transport.publisher import PendingCommand
from seqtop.wire.messages import Submit

_IDLE_SECONDS = 0.01
"""The longest pause of an idle engine between two polls of its request sources."""

MAX_COMMAND_SHARE = 0.03
"""The share of the engine's time that viewers' commands may take while requests run. Commands above
it wait, and are refused by the publisher when too many wait."""

_COMMAND_BURST_SECONDS = 1.0
"""The share holds on average. After a pause, commands may take what they may in this time."""


class RequestSource(Protocol):
    """A source of requests besides viewers. Called on the engine's thread, which must not wait."""

    def serve(self, server: EngineServer) -> None:
        """Passes the requests and aborts since the last call to `server`."""

    def stepped(self, record: StepRecord) -> None:
        """Takes the results of a step; the groups in `record` change with the next one."""


class EnginePublisher(Protocol):
    """Publishes an engine, and passes viewers' commands to it. Never waits."""

    def arrived(self, group: SequenceGroup) -> None:
        """Publishes that a group has joined the waiting queue."""

    def stepped(self, record: StepRecord, paced_time: float = 0.0) -> None:
        """Publishes a step, before which the engine waited for `paced_time` seconds on purpose."""

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        """Returns some of the viewers' commands, after at most `timeout` seconds."""

    def repair(self, engine: LLMEngine) -> None:
        """Publishes the whole state if messages were lost. Called between two steps."""


class EngineServer:
    """Steps `engine` while it has work, and publishes the steps.

    Args:
        engine: The engine; used only on the thread that calls `run`.
        publisher: Publishes what happens, and is the source of viewers' commands.
        pace: The most steps per second, so that a person can follow; 0 for no limit.
        workload: Requests that the server makes itself, in the order of their ticks.
        sources: Further sources of requests.
    """

    def __init__(
        self,
        engine: LLMEngine,
        publisher: EnginePublisher,
        *,
        pace: float = 0.0,
        workload: Iterable[Arrival] = (),
        sources: Sequence[RequestSource] = (),
    ) -> None:
        self._engine = engine
        self._publisher = publisher
        self._seconds_per_tick = 1 / pace if pace > 0 else 0.0
        self._workload = iter(workload)
        self._next_arrival = next(self._workload, None)
        self._ids = itertools.count(1)
        self._sources = sources
        self._next_command_at = 0.0

    def run(self, stopped: Callable[[], bool]) -> None:
        """Serves until `stopped()` returns True."""
        paced_time = 0.0
        for tick in itertools.count():
            if stopped():
                return
            tick_start = time.monotonic()
            self._publisher.repair(self._engine)
            self._add_due_arrivals(tick)
            self._handle_commands()
            for source in self._sources:
                source.serve(self)
            if self._engine.has_unfinished_requests():
                record = self._engine.step()
                self._publisher.stepped(record, paced_time)
                for source in self._sources:
                    source.stepped(record)
                idle = self._seconds_per_tick - (time.monotonic() - tick_start)
            else:
                idle = self._seconds_per_tick or _IDLE_SECONDS
            paced_time = 0.0
            if idle > 0:
                pause_start = time.monotonic()
                self._handle_commands(timeout=idle)
                paced_time = time.monotonic() - pause_start

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: Params,
        priority: int = 0,
        arrival_time: float | None = None,
    ) -> list[SequenceGroup]:
        """Adds a request and publishes its arrival; see `LLMEngine.add_request`.

        Raises:
            ValueError: The request is refused, or causes any other error.
        """
        try:
            groups = self._engine.add_request(
                request_id, prompt, params, arrival_time=arrival_time, priority=priority
            )
        except ValueError:
            raise
        except Exception as error:
            log_failure("request %s cannot be added", request_id)
            raise ValueError(
                f"the request cannot be processed: {type(error).__name__}: {error}"
            ) from error
        for group in groups:
            self._publisher.arrived(group)
        return groups

    def abort(self, request_id: str) -> bool:
        """Aborts a request; see `LLMEngine.abort_request`."""
        return self._engine.abort_request(request_id)

    def _add_due_arrivals(self, tick: int) -> None:
        while self._next_arrival and self._next_arrival.tick <= tick:
            due, self._next_arrival = self._next_arrival, next(self._workload, None)
            self.add(due.request_id, due.prompt, due.params)

    def _handle_commands(self, timeout: float = 0.0) -> None:
        """Handles viewers' commands within their share of time, or all if no request runs.

        Args:
            timeout: Seconds to wait if there is no command.
        """
        while True:
            is_busy = self._engine.has_unfinished_requests()
            if is_busy and time.monotonic() < self._next_command_at:
                if timeout:
                    time.sleep(timeout)
                return
            commands = self._publisher.commands(timeout)
            if not commands:
                return
            started = time.thread_time()
            for pending in commands:
                self._handle_command(pending)
            pause = (time.thread_time() - started) / MAX_COMMAND_SHARE
            earliest = time.monotonic() - _COMMAND_BURST_SECONDS
            self._next_command_at = max(self._next_command_at, earliest) + pause
            timeout = 0.0

    def _handle_command(self, pending: PendingCommand) -> None:
        command = pending.command
        if isinstance(command, Submit):
            request_id = f"user-{next(self._ids)}"
            try:
                self.add(request_id, command.prompt, command.sampling_params, command.priority)
            except ValueError as error:
                pending.refuse(str(error))
            else:
                pending.accept(request_id)
        elif self.abort(command.request_id):
            pending.accept(command.request_id)
        else:
            pending.refuse(f"there is no unfinished request {command.request_id}")
