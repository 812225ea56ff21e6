"""The publisher's process: `python -m seqtop.adapters.publisher_main`.

`publisher_process` starts it. It ends with the engine's process that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec
import zmq

from seqtop.adapters.detokenizer import load_detokenizer
from seqtop.adapters.observations import (
    AllRequests,
    AnyObservation,
    EngineStarted,
    EngineStopping,
)
from seqtop.adapters.translate import Translator, engine_info
from seqtop.flight_recorder import process as flight_recorder
from seqtop.live import local_engines
from seqtop.process.signals import when_stdin_closes
from seqtop.state import EngineState, not_available
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher import Publisher, PublishError
from seqtop.transport.publisher_settings import PublisherSettings

_POLL_MS = 200
_SECONDS_BETWEEN_REQUESTS = 1.0
_SECONDS_FOR_FIRST_VIEWER = 30.0
_SECONDS_WITHOUT_VIEWER = 3.0
_NICENESS = 10
"""The engine's processes have priority."""

EXIT_CANNOT_PUBLISH = 3


def main(arguments: list[str] | None = None) -> int:
    """Publishes observations until there are no more; returns the exit status."""
    parser = argparse.ArgumentParser(prog="seqtop.adapters.publisher_main")
    parser.add_argument("observations", help="the endpoint to receive observations from")
    parser.add_argument("endpoint", help="the endpoint to publish at")
    parser.add_argument("settings", help="settings as JSON")
    options = parser.parse_args(arguments)
    settings = msgspec.json.decode(options.settings, type=PublisherSettings)
    os.nice(_NICENESS)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C stops the engine, and this process ends after it
    try:
        with ObservationReceiver(options.observations, when_stdin_closes()) as receiver:
            return _run(receiver, options.endpoint, settings)
    finally:
        shutil.rmtree(_directory_of(options.observations), ignore_errors=True)


def _run(receiver: ObservationReceiver, endpoint: str, settings: PublisherSettings) -> int:
    started = next(iter(receiver), None)
    if not isinstance(started, EngineStarted):
        return 0
    try:
        publisher = Publisher(
            endpoint,
            engine_info(started, redacted=settings.redact),
            EngineState(),
            curve_keys=settings.curve_keys(),
            insecure=settings.insecure,
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
        receiver.is_unwanted = ViewerWatch(publisher).is_unwanted
    with contextlib.ExitStack() as running:
        running.enter_context(local_engines.announced(endpoint, started.engine_id, os.getppid()))
        if settings.flight_recorder:
            try:
                running.enter_context(
                    flight_recorder.started(
                        endpoint, settings.flight_recorder, settings.flight_recorder_options
                    )
                )
            except flight_recorder.FlightRecorderError as error:
                _log(f"seqtop: {error}")
        publish(
            publisher,
            Translator(started, detokenizer),
            receiver,
            announces_end="end" not in started.not_available,
        )
    return 0


def publish(
    publisher: Publisher,
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
                # Viewers see a gap in the numbers, and request the new state.
                publisher.count_lost(max(observation.num_lost, 1), "observations are missing")
            if not translator.is_incomplete or isinstance(observation, AllRequests):
                for event in translator.events(observation):
                    publisher.publish(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine has its state
            if not translator.is_incomplete:
                _log(f"seqtop: a gap, as an observation cannot be used: {error!r}")
            translator.is_incomplete = True
            publisher.count_lost(1, str(error))
        if translator.is_incomplete or publisher.needs_snapshot():
            receiver.request_all()
    publisher.close(reason, failed=failed)


class ViewerWatch:
    """Says when a woken engine may sleep again.

    Args:
        publisher: The publisher, which counts its viewers.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._unwanted_at = time.monotonic() + _SECONDS_FOR_FIRST_VIEWER

    def is_unwanted(self) -> bool:
        """Returns whether there has been no viewer for a while."""
        now = time.monotonic()
        if self._publisher.has_viewers:
            self._unwanted_at = now + _SECONDS_WITHOUT_VIEWER
        return now > self._unwanted_at


class UnreadableObservation(Exception):  # noqa: N818 - it is received, not raised there
    """An observation that could not be decoded."""


class ObservationReceiver:
    """Receives observations until there are no more and their sender has ended.

    Args:
        address: The ZeroMQ endpoint to bind.
        sender_ended: Set when the sender has ended.

    Attributes:
        is_unwanted: Returns whether to end although the sender continues.
    """

    def __init__(self, address: str, sender_ended: threading.Event) -> None:
        self.is_unwanted: Callable[[], bool] = lambda: False
        self._address = address
        self._decoder = msgspec.msgpack.Decoder(AnyObservation)
        self._sender_ended = sender_ended
        self._requested_at = -_SECONDS_BETWEEN_REQUESTS

    def __enter__(self) -> ObservationReceiver:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 0
        # Otherwise the engine has ended, and its directory is removed.
        with contextlib.suppress(zmq.ZMQError):
            self._socket.bind(self._address)
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy()

    def __iter__(self) -> Iterator[AnyObservation | UnreadableObservation]:
        """Yields the observations."""
        while self._socket.last_endpoint and not self.is_unwanted():
            has_ended = self._sender_ended.is_set()
            if self._socket.poll(_POLL_MS):
                payload = self._socket.recv()
                try:
                    observation = cast(AnyObservation, self._decoder.decode(payload))
                except (msgspec.MsgspecError, ValueError) as error:
                    yield UnreadableObservation(str(error))
                else:
                    yield observation
            elif has_ended:
                return

    def request_all(self) -> None:
        """Requests `AllRequests` from the engine, at most once a second."""
        if time.monotonic() - self._requested_at >= _SECONDS_BETWEEN_REQUESTS:
            self._requested_at = time.monotonic()
            with contextlib.suppress(zmq.Again):
                self._socket.send(b"", zmq.DONTWAIT)


def _directory_of(address: str) -> Path:
    return Path(address.removeprefix("ipc://")).parent


def _log(line: str) -> None:
    with contextlib.suppress(OSError):  # of a full disk
        print(line, file=sys.stderr)  # noqa: T201 - goes to the engine's log


if __name__ == "__main__":
    sys.exit(main())
