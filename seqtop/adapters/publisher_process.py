"""Sends observations from an engine's process to the publisher's process."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Final

import msgspec

from seqtop.adapters.observations import AllRequests, AnyObservation, EngineStopping
from seqtop.process.stacks import StackServer
from seqtop.transport.publisher_process import PublisherProcess
from seqtop.transport.publisher_settings import PublisherSettings


class ObservationSender:
    """Starts the publisher's process and sends observations to it, without waiting.

    If an observation cannot be sent, the following ones are useless too, until `AllRequests` has
    been sent: `wants_all_requests` says when.

    Args:
        endpoint: The ZeroMQ endpoint at which the process publishes.
        settings: The user's settings.
    """

    def __init__(self, endpoint: str, settings: PublisherSettings) -> None:
        arguments = [endpoint, msgspec.json.encode(settings).decode()]
        self._stacks = contextlib.ExitStack()
        if settings.flight_recorder:
            with contextlib.suppress(OSError):  # records are worth writing without them
                server = self._stacks.enter_context(contextlib.closing(StackServer()))
                arguments += ["--stacks", server.path]
        self._process = PublisherProcess("seqtop.adapters.publisher_main", arguments)

    def send(self, observation: AnyObservation) -> None:
        """Sends an observation, or drops it if the process is too slow.

        Raises:
            PublisherLostError: The process has ended.
        """
        if isinstance(observation, AllRequests):
            observation.num_lost = self._process.num_lost
            self._process.send_state(encode(observation))
        else:
            self._process.send(encode(observation))

    @property
    def num_dropped(self) -> int:
        """Observations that were dropped because the process was too slow."""
        return self._process.num_dropped

    @property
    def is_running(self) -> bool:
        """True while the process runs."""
        return self._process.is_running

    @property
    def wants_all_requests(self) -> bool:
        """True once after observations were lost; checked every second."""
        return self._process.is_state_wanted

    def close(self, reason: str, *, failed: bool = False) -> None:
        """Closes the connection. The process ends when it has published everything it received.

        Args:
            reason: The reason, in one sentence.
            failed: True if the engine cannot continue.
        """
        self._process.close(encode(EngineStopping(time.time(), reason, failed)))
        self._stacks.close()


_ENCODER: Final = msgspec.msgpack.Encoder()


def encode(observation: AnyObservation) -> bytes:
    """Encodes an observation, even if a client's request contains what MessagePack cannot carry.

    Numbers beyond 64 bits are limited, and halves of surrogate pairs escaped.
    """
    try:
        return _ENCODER.encode(observation)
    except (OverflowError, TypeError, ValueError):
        return _ENCODER.encode(_encodable(msgspec.to_builtins(observation, enc_hook=repr)))


def _encodable(value: Any) -> Any:
    """Returns `value` with its integers limited to 64 bits and its unpaired surrogates escaped."""
    match value:
        case bool():
            return value
        case int():
            return max(-(2**63), min(value, 2**63 - 1))
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list() | tuple():
            return [_encodable(item) for item in value]
        case dict():
            return {_encodable(key): _encodable(item) for key, item in value.items()}
        case _:
            return value
