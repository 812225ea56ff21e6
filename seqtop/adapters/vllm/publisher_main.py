"""The publisher's process: `python -m seqtop.adapters.vllm.publisher_main`.

`publisher_process` starts it. It ends with the EngineCore process that started it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import cast

import msgspec
import zmq

from seqtop.adapters.vllm.detokenizer import load_detokenizer
from seqtop.adapters.vllm.observations import (
    AnyObservation,
    Arrived,
    EngineStarted,
    EngineStopping,
    Stepped,
)
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.translate import Translator, engine_info
from seqtop.state import EngineState
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher import Publisher, PublishError

_POLL_MS = 200
_NICENESS = 10
"""vLLM's processes have priority."""

EXIT_CANNOT_PUBLISH = 3


def main(arguments: list[str] | None = None) -> int:
    """Publishes observations until there are no more; returns the exit status."""
    parser = argparse.ArgumentParser(prog="seqtop.adapters.vllm.publisher_main")
    parser.add_argument("observations", help="the endpoint to receive observations from")
    parser.add_argument("endpoint", help="the endpoint to publish at")
    parser.add_argument("settings", help="settings as JSON")
    options = parser.parse_args(arguments)
    settings = msgspec.json.decode(options.settings, type=AdapterSettings)
    os.nice(_NICENESS)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C stops vLLM, and this process ends after it
    observations = receive(options.observations, _when_stdin_ends())
    started = next(observations, None)
    if not isinstance(started, EngineStarted):
        return 0
    try:
        publisher = Publisher(
            options.endpoint,
            engine_info(started, redacted=settings.redact),
            EngineState(),
            curve_keys=settings.curve_keys(),
            insecure=settings.insecure,
        )
    except (EndpointError, KeyFileError, PublishError) as error:
        print(f"seqtop is off: {error}", file=sys.stderr)  # noqa: T201 - goes to vLLM's log
        return EXIT_CANNOT_PUBLISH
    detokenizer = None
    if not settings.redact:
        detokenizer = load_detokenizer(started.tokenizer, started.tokenizer_revision)
    publish(publisher, Translator(started, detokenizer), observations)
    return 0


def publish(
    publisher: Publisher, translator: Translator, observations: Iterator[AnyObservation]
) -> None:
    """Publishes all observations, then the end of the engine."""
    reason = "vLLM's EngineCore process has ended"
    for observation in observations:
        if isinstance(observation, Arrived):
            events = translator.arrived(observation)
        elif isinstance(observation, Stepped):
            events = translator.stepped(observation)
        elif isinstance(observation, EngineStopping):
            reason = observation.reason
            break
        else:
            continue
        for event in events:
            publisher.publish(event)
    publisher.close(reason)


def receive(address: str, parent_ended: threading.Event) -> Iterator[AnyObservation]:
    """Yields observations until there are no more and the sender has ended."""
    decoder = msgspec.msgpack.Decoder(AnyObservation)
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        try:
            socket.bind(address)
        except zmq.ZMQError:
            return  # vLLM has ended and removed the directory
        while True:
            has_ended = parent_ended.is_set()
            if socket.poll(_POLL_MS):
                yield cast(AnyObservation, decoder.decode(socket.recv()))
            elif has_ended:
                return


def _when_stdin_ends() -> threading.Event:
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 1):  # sys.stdin would hold its lock at exit
            pass
        ended.set()

    threading.Thread(target=read, name="seqtop-parent", daemon=True).start()
    return ended


if __name__ == "__main__":
    sys.exit(main())
