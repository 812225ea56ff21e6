"""The publisher's process, started by `outbox`: `python -m seqtop.adapters.vllm.publish`.

It lives as long as the EngineCore process that started it, and no longer.
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

from seqtop.adapters.vllm import text
from seqtop.adapters.vllm.notes import AnyNote, Arrived, EngineStarted, EngineStopping, Stepped
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.translate import Translator, engine_info
from seqtop.state import EngineState
from seqtop.transport.curve_keys import KeyFileError
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher import Publisher, PublishError

_POLL_MS = 200
_NICENESS = 10
"""Where processors are short, vLLM's processes go first."""

EXIT_CANNOT_PUBLISH = 3


def main(arguments: list[str] | None = None) -> int:
    """Publish what comes in until it ends; returns the exit status."""
    parser = argparse.ArgumentParser(prog="seqtop.adapters.vllm.publish")
    parser.add_argument("notes", help="where to receive notes")
    parser.add_argument("endpoint", help="where to publish")
    parser.add_argument("settings", help="how, as JSON")
    options = parser.parse_args(arguments)
    settings = msgspec.json.decode(options.settings, type=AdapterSettings)
    os.nice(_NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is vLLM's; we end after it
    notes = receive(options.notes, _when_stdin_ends())
    hello = next(notes, None)
    if not isinstance(hello, EngineStarted):
        return 0
    try:
        publisher = Publisher(
            options.endpoint,
            engine_info(hello, redacted=settings.redact),
            EngineState(),
            curve_keys=settings.keys(),
            insecure=settings.insecure,
        )
    except (EndpointError, KeyFileError, PublishError) as error:
        print(f"seqtop is off: {error}", file=sys.stderr)  # noqa: T201 - goes to vLLM's log
        return EXIT_CANNOT_PUBLISH
    # What would be taken out again need not be made.
    texts = None if settings.redact else text.load(hello.tokenizer, hello.tokenizer_revision)
    publish(publisher, Translator(hello, texts), notes)
    return 0


def publish(publisher: Publisher, translator: Translator, notes: Iterator[AnyNote]) -> None:
    """Publish all of `notes`, and say goodbye."""
    reason = "vLLM's EngineCore process has ended"
    for note in notes:
        if isinstance(note, Arrived):
            events = translator.arrived(note)
        elif isinstance(note, Stepped):
            events = translator.stepped(note)
        elif isinstance(note, EngineStopping):
            reason = note.reason
            break
        else:
            continue
        for event in events:
            publisher.publish(event)
    publisher.close(reason)


def receive(address: str, parent_ended: threading.Event) -> Iterator[AnyNote]:
    """Notes as they come, until there are no more and whoever sent them has ended."""
    decoder = msgspec.msgpack.Decoder(AnyNote)
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        try:
            socket.bind(address)
        except zmq.ZMQError:
            return  # the folder is gone, and so is vLLM
        while True:
            has_ended = parent_ended.is_set()
            if socket.poll(_POLL_MS):
                yield cast(AnyNote, decoder.decode(socket.recv()))
            elif has_ended:
                return


def _when_stdin_ends() -> threading.Event:
    ended = threading.Event()

    def read() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock would be in the way at exit
            pass
        ended.set()

    threading.Thread(target=read, name="seqtop-parent", daemon=True).start()
    return ended


if __name__ == "__main__":
    sys.exit(main())
