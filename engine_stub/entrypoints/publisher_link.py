"""The engine's link to its publisher's process: reports go out, viewers' commands come in."""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING

from engine_stub.entrypoints.reporting import StepReporter
from engine_stub.entrypoints.reports import (
    CommandReply,
    Start,
    Started,
    StateReport,
    Stop,
    ToPublisher,
    ViewerCommand,
)
from engine_stub.step_record import StepRecord
from seqtop.sequence import SequenceGroup
from seqtop.transport.publisher import PendingCommand, PublishError
from seqtop.transport.publisher_process import PublisherLostError, PublisherProcess
from seqtop.wire import codec
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Accepted, Refused
from seqtop.wire.snapshot import Reply

if TYPE_CHECKING:
    # Not at run time: the engine brings tokenizers, and is slow to import.
    from engine_stub.engine import LLMEngine

_POLL_SECONDS = 0.1
_SECONDS_TO_END = 5.0


class PublisherLink:
    """Publishes an engine by a process of its own. To be used on the engine's thread.

    If that process ends, a warning is logged, and nothing is published any more.
    """

    def __init__(self) -> None:
        self._process = PublisherProcess("engine_stub.entrypoints.publisher_main")
        self._reporter = StepReporter(self._send)
        self._is_started = self._is_lost = False

    def start(self, start: Start) -> None:
        """Waits until the process publishes.

        Raises:
            PublishError: It cannot; the message is one sentence.
        """
        self._process.send(codec.encode(start))
        message = None
        while message is None:
            is_running = self._process.is_running
            message = self._process.receive(_POLL_SECONDS)
            if message is None and not is_running:
                raise PublishError("its publisher has ended while it started")
        answer = codec.decode(message, Started)
        if answer.error is not None:
            raise PublishError(answer.error)
        self._is_started = True

    def arrived(self, group: SequenceGroup) -> None:
        """Reports that a group has joined the waiting queue."""
        self._reporter.arrived(group)

    def stepped(self, record: StepRecord, paced_time: float = 0.0) -> None:
        """Reports a step, before which the engine waited for `paced_time` seconds on purpose."""
        self._reporter.stepped(record, paced_time)

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        """Returns the next of the viewers' commands, after at most `timeout` seconds."""
        if self._is_lost:
            time.sleep(timeout)
            return []
        message = self._process.receive(timeout)
        if message is None:
            return []
        asked = codec.decode(message, ViewerCommand)
        return [PendingCommand(asked.command, functools.partial(self._reply, asked.number))]

    def repair(self, engine: LLMEngine) -> None:
        """Reports the whole state if reports were lost."""
        if self._process.is_state_wanted:
            self.report_state(engine)

    def report_state(self, engine: LLMEngine) -> None:
        """Reports the whole state. Called between two steps, after some were not reported."""
        if not self._is_lost:
            self._send(self._reporter.state(engine))

    @property
    def num_dropped(self) -> int:
        """Reports that were dropped because the process was too slow."""
        return self._process.num_dropped

    def close(self, reason: str = "", *, failed: bool = False) -> None:
        """Ends the process, once it has published everything.

        Args:
            reason: The reason, in one sentence.
            failed: Says that the engine cannot continue.
        """
        timeout = _SECONDS_TO_END if self._is_started else 0.0
        self._process.close(codec.encode(Stop(reason, failed)), timeout=timeout)

    def _reply(self, number: int, reply: Reply) -> None:
        assert isinstance(reply, Accepted | Refused)
        self._send(CommandReply(number, reply))

    def _send(self, message: ToPublisher) -> None:
        if self._is_lost:
            return
        try:
            payload = codec.encode(message)
        except WireError:
            self._process.lose()
            return
        try:
            if isinstance(message, StateReport):
                self._process.send_state(payload)
            else:
                self._process.send(payload)
        except PublisherLostError as error:
            self._is_lost = True
            logging.getLogger("engine_stub").warning(
                "nothing is published any more, and the engine continues: %s", error
            )
