"""The publisher's process of an engine: `python -m engine_stub.entrypoints.publisher_main`.

`publisher_link.py` starts it. It ends with the engine's process.
"""

from __future__ import annotations

import logging
import signal
import sys
from typing import Any, cast

from engine_stub.entrypoints.publishing import ReportPublisher
from engine_stub.entrypoints.reports import (
    CommandReply,
    Start,
    Started,
    StateReport,
    Stop,
    ToPublisher,
    ViewerCommand,
)
from seqtop.process.signals import when_stdin_closes
from seqtop.state import EngineState
from seqtop.transport.curve_keys import KeyFileError, engine_keys
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher import MessagePublisher, PendingCommand, PublishError
from seqtop.transport.publisher_process import EngineConnection, give_way
from seqtop.wire import codec
from seqtop.wire.element_count import MAX_STATE_ELEMENTS
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Accepted

_MAX_FORWARDED = 8
"""Commands that the engine has not answered yet. More wait at the publisher, which limits them."""


def main() -> int:
    """Publishes reports until there are no more; returns the exit status."""
    give_way()
    logging.basicConfig(format="engine-stub: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the engine, and this after it
    with EngineConnection(sys.argv[1], when_stdin_closes()) as connection:
        first = next(iter(connection), None)
        start = _decode(first) if first else None
        if not isinstance(start, Start):
            return 0  # the engine could not be started
        try:
            publisher = _publisher(connection, start)
        except (EndpointError, KeyFileError, PublishError) as error:
            connection.send(codec.encode(Started(str(error))))
            return 1
        connection.send(codec.encode(Started(None)))
        _Relay(connection, publisher).run()
    return 0


def _publisher(connection: EngineConnection, start: Start) -> MessagePublisher:
    return MessagePublisher(
        start.endpoint,
        start.info,
        EngineState(),
        curve_keys=engine_keys(*start.keys) if start.keys else None,
        insecure=start.insecure,
        repairs=True,
        gives_away=True,
        on_command=connection.wake,
    )


def _decode(payload: bytes) -> ToPublisher:
    expected = cast(Any, ToPublisher)
    return cast(ToPublisher, codec.decode(payload, expected, max_elements=MAX_STATE_ELEMENTS))


class _Relay:
    """Publishes what the engine reports, and forwards viewers' commands to it.

    Args:
        connection: The connection with the engine's process.
        publisher: The publisher.
    """

    def __init__(self, connection: EngineConnection, publisher: MessagePublisher) -> None:
        self._connection = connection
        self._publisher = publisher
        self._reports = ReportPublisher(publisher)
        self._is_incomplete = False
        self._forwarded: dict[int, PendingCommand] = {}
        self._num_forwarded = 0

    def run(self) -> None:
        """Runs until the engine stops."""
        stop = Stop("the engine's process has ended without announcing it", failed=True)
        for payload in self._connection:
            if payload:
                try:
                    message = _decode(payload)
                    if isinstance(message, Stop):
                        stop = message
                        break
                    self._handle(message)
                except Exception as error:  # noqa: BLE001 - whatever it is, the engine has its state
                    self._lose(error)
            self._forward()
            if self._is_incomplete or self._publisher.needs_snapshot():
                self._connection.request_state()
        self._publisher.close(stop.reason, failed=stop.failed)

    def _handle(self, message: ToPublisher) -> None:
        if isinstance(message, CommandReply):
            if pending := self._forwarded.pop(message.number, None):
                if isinstance(message.reply, Accepted):
                    pending.accept(message.reply.request_id)
                else:
                    pending.refuse(message.reply.error)
        elif isinstance(message, StateReport):
            self._connection.state_came()
            # Viewers see a gap in the numbers, and request the new state.
            self._publisher.count_lost(1, "reports are missing")
            self._publisher.publish(self._reports.restore(message))
            self._is_incomplete = False
        elif not self._is_incomplete and not isinstance(message, Start | Stop):
            self._reports.publish(message)

    def _lose(self, error: Exception) -> None:
        self._publisher.count_not_made(error)
        if not self._is_incomplete:
            reason = self._publisher.last_error
            logging.getLogger("engine_stub").warning("a gap in what is published: %s", reason)
        self._is_incomplete = True

    def _forward(self) -> None:
        """Sends commands to the engine, as many as it has answered."""
        room = _MAX_FORWARDED - len(self._forwarded)
        for pending in self._publisher.commands(limit=room):
            self._num_forwarded += 1
            try:
                message = codec.encode(ViewerCommand(self._num_forwarded, pending.command))
            except WireError as error:
                pending.refuse(f"the command cannot be forwarded: {error}")
                continue
            self._forwarded[self._num_forwarded] = pending
            self._connection.send(message)


if __name__ == "__main__":
    sys.exit(main())
