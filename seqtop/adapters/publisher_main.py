"""The publisher's process: `python -m seqtop.adapters.publisher_main`.

`publisher_process` starts it. It ends with the engine's process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import cast

import msgspec

from seqtop.adapters.detokenizer import load_detokenizer
from seqtop.adapters.observations import (
    AllRequests,
    AnyObservation,
    EngineStarted,
    EngineStopping,
)
from seqtop.adapters.translate import Translator, engine_info
from seqtop.flight_recorder import process as flight_recorder
from seqtop.process.signals import when_stdin_closes
from seqtop.state import EngineState, not_available
from seqtop.transport import local_engines
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher import MessagePublisher, PublishError
from seqtop.transport.publisher_process import EngineConnection, give_way
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire.error_location import describe_error
from seqtop.wire.errors import WireError

_SECONDS_FOR_FIRST_VIEWER = 30.0
_SECONDS_WITHOUT_VIEWER = 3.0

EXIT_CANNOT_PUBLISH = 3


def main(arguments: list[str] | None = None) -> int:
    """Publishes observations until there are no more; returns the exit status."""
    parser = argparse.ArgumentParser(prog="seqtop.adapters.publisher_main")
    parser.add_argument("directory", help="the directory of the socket to the engine")
    parser.add_argument("endpoint", help="the endpoint to publish at")
    parser.add_argument("settings", help="settings as JSON")
    parser.add_argument("--stacks", default="", help="the socket of the engine's stacks")
    options = parser.parse_args(arguments)
    settings = msgspec.json.decode(options.settings, type=PublisherSettings)
    give_way()
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C stops the engine, and this process ends after it
    with EngineConnection(options.directory, when_stdin_closes()) as connection:
        receiver = ObservationReceiver(connection)
        return _run(receiver, options.endpoint, settings, options.stacks)


def _run(
    receiver: ObservationReceiver, endpoint: str, settings: PublisherSettings, stacks: str
) -> int:
    started = next(iter(receiver), None)
    if not isinstance(started, EngineStarted):
        return 0
    try:
        publisher = MessagePublisher(
            endpoint,
            engine_info(started, redacted=settings.redact),
            EngineState(),
            curve_keys=settings.curve_keys(),
            insecure=settings.insecure,
            bind_option="SEQTOP_BIND",
            repairs=True,
        )
    except (EndpointError, KeyFileError, PublishError) as error:
        _log(f"seqtop is off: {error}")
        return EXIT_CANNOT_PUBLISH
    if started.not_available:
        missing = not_available.describe(started.not_available)
        _log(f"seqtop: {started.engine}: {missing}")
    _log(f"seqtop: to view this engine, run: seqtop attach {endpoint}")
    detokenizer = None
    if not settings.redact:
        detokenizer = load_detokenizer(started.tokenizer, started.tokenizer_revision)
    if settings.is_dormant:
        receiver.end_when(ViewerWatch(publisher).is_unwanted)
    with contextlib.ExitStack() as running:
        running.enter_context(local_engines.announced(endpoint, started.engine_id, os.getppid()))
        if settings.flight_recorder:
            try:
                running.enter_context(
                    flight_recorder.started(
                        endpoint,
                        settings.flight_recorder,
                        settings.flight_recorder_options,
                        stacks,
                    )
                )
            except flight_recorder.FlightRecorderError as error:
                _log(f"seqtop: {error}")
        publish(
            publisher,
            Translator(started, detokenizer),
            receiver,
            announces_end=started.not_available.keys().isdisjoint(("end", not_available.REQUESTS)),
        )
    return 0


def publish(
    publisher: MessagePublisher,
    translator: Translator,
    receiver: ObservationReceiver,
    *,
    announces_end: bool = True,
) -> None:
    """Publishes all observations, then the end of the engine.

    An observation that cannot be read or translated is a gap: nothing is published until the engine
    has sent the current state of all requests.

    Args:
        publisher: Publishes the messages.
        translator: Converts observations to messages.
        receiver: Receives observations.
        announces_end: False if nobody can say whether the engine failed or was shut down.
    """
    reason, failed = "the engine's process has ended, for an unknown cause", False
    if announces_end:
        reason, failed = "the engine's process has ended without announcing it", True
    for observation in receiver:
        if isinstance(observation, EngineStopping):
            reason, failed = observation.reason, observation.failed
            break
        try:
            if isinstance(observation, UnreadableObservation):
                raise observation  # noqa: TRY301 - handled as any other error
            if isinstance(observation, AllRequests):
                receiver.state_came()
                # Viewers see a gap in the numbers, and request the new state.
                publisher.count_lost(max(observation.num_lost, 1), "observations are missing")
            if not translator.is_incomplete or isinstance(observation, AllRequests):
                for event in translator.events(observation):
                    publisher.publish(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine has its state
            publisher.count_not_made(error)
            if not translator.is_incomplete:
                _log(f"seqtop: a gap, as an observation cannot be used: {publisher.last_error}")
            translator.is_incomplete = True
        if translator.is_incomplete or publisher.needs_snapshot():
            receiver.request_all()
    publisher.close(reason, failed=failed)


class ViewerWatch:
    """Says when a woken engine may sleep again.

    Args:
        publisher: The publisher, which counts its viewers.
    """

    def __init__(self, publisher: MessagePublisher) -> None:
        self._publisher = publisher
        self._unwanted_at = time.monotonic() + _SECONDS_FOR_FIRST_VIEWER

    def is_unwanted(self) -> bool:
        """Returns whether there has been no viewer for a while."""
        now = time.monotonic()
        if self._publisher.has_viewers:
            self._unwanted_at = now + _SECONDS_WITHOUT_VIEWER
        return now > self._unwanted_at


class UnreadableObservation(WireError):  # noqa: N818 - it is received, not raised there
    """An observation that could not be decoded."""


class ObservationReceiver:
    """Receives observations until there are no more and their sender has ended.

    Args:
        connection: The connection with the engine's process.
    """

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(AnyObservation)

    def __iter__(self) -> Iterator[AnyObservation | UnreadableObservation]:
        """Yields the observations."""
        for message in self._connection:
            try:
                observation = cast(AnyObservation, self._decoder.decode(message))
            except (msgspec.MsgspecError, ValueError) as error:
                yield UnreadableObservation(describe_error(error, AnyObservation, message))
            else:
                yield observation

    def end_when(self, is_unwanted: Callable[[], bool]) -> None:
        """Makes the iteration end once `is_unwanted` returns true."""
        self._connection.is_unwanted = is_unwanted

    def request_all(self) -> None:
        """Requests `AllRequests` from the engine, not again before it has had time to send it."""
        self._connection.request_state()

    def state_came(self) -> None:
        """Notes that `AllRequests` has come."""
        self._connection.state_came()


def _log(line: str) -> None:
    with contextlib.suppress(OSError):  # of a full disk
        print(line, file=sys.stderr)  # noqa: T201 - goes to the engine's log


if __name__ == "__main__":
    sys.exit(main())
