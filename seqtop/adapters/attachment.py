"""The connection of one scheduler with one publisher's process."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from seqtop.adapters.observations import EngineStarted, ObservationSink
from seqtop.adapters.publisher_process import ObservationSender
from seqtop.adapters.wrapping import Wrap, Wrapping
from seqtop.transport.publisher_process import PublisherLostError
from seqtop.transport.publisher_settings import PublisherSettings, endpoint_of

Observe: TypeAlias = Callable[[Wrap, ObservationSink], None]
"""Wraps the methods of a scheduler with observers that send to a publisher."""


class UnsupportedEngineError(Exception):
    """This version of an engine differs too much. The message is a sentence for the log."""


@dataclass(frozen=True)
class Host:
    """The software that an adapter runs in."""

    name: str
    """Such as `vLLM`."""
    log: logging.Logger
    """A child of its own logger, so that it is formatted and shown."""


def unobserved(
    host: Host,
    error: UnsupportedEngineError,
    describe: Callable[[], EngineStarted],
    settings: PublisherSettings,
    endpoint: str | None = None,
) -> Attachment:
    """Returns the attachment of an engine that cannot be observed: its viewers are told why.

    Args:
        host: The software with the scheduler.
        error: The reason.
        describe: Returns the description of the engine, if it has what that needs.
        settings: The user's settings.
        endpoint: The endpoint to publish at; by default that of the settings.

    Raises:
        UnsupportedEngineError: It cannot even be described.
        EndpointError: The endpoint cannot be used.
    """
    try:
        started = describe()
    except Exception:  # noqa: BLE001 - whatever else it lacks
        raise error from None
    started.not_available = {"requests": str(error)}
    return Attachment(host, started, _observe_nothing, settings, endpoint)


def _observe_nothing(_wrap: Wrap, _publisher: ObservationSink) -> None:
    pass


class Attachment:
    """Starts the publisher of one scheduler, and wraps the scheduler's methods.

    Args:
        host: The software with the scheduler.
        started: The description of the engine.
        observe: Wraps the scheduler's methods.
        settings: The user's settings.
        endpoint: The endpoint to publish at; by default that of the settings.

    Raises:
        EndpointError: The endpoint cannot be used.
    """

    def __init__(
        self,
        host: Host,
        started: EngineStarted,
        observe: Observe,
        settings: PublisherSettings,
        endpoint: str | None = None,
    ) -> None:
        self.endpoint = endpoint or endpoint_of(settings, started.data_parallel_rank)
        self._host = host
        self._observe = observe
        self._wrapping = Wrapping(self._failed)
        self._publisher = ObservationSender(self.endpoint, settings)
        self._publisher.send(started)

    def attach(self) -> None:
        """Wraps the methods, on the scheduler's thread. Never raises."""
        try:
            self._observe(self._wrapping.wrap, self._publisher)
        except Exception as error:  # noqa: BLE001 - no error may stop the engine
            self.detach()
            self._failed(error)

    def close_before(self, owner: Any, name: str) -> None:
        """Ends the publication before a call of the method that shuts the engine down."""
        self._wrapping.wrap(owner, name, before=self._before_shutdown)

    def detach(self) -> None:
        """Restores all methods, on the scheduler's thread."""
        self._wrapping.undo()

    @property
    def is_attached(self) -> bool:
        """True while the methods are wrapped."""
        return self._wrapping.active

    @property
    def is_published(self) -> bool:
        """True while the publisher's process runs."""
        return self._publisher.is_running

    @property
    def num_dropped(self) -> int:
        """Observations that were dropped because the publisher's process was too slow."""
        return self._publisher.num_dropped

    def close(self, reason: str, *, failed: bool = False) -> None:
        """Restores all methods and ends the publisher's process.

        Args:
            reason: The reason, in one sentence.
            failed: True if the engine cannot continue.
        """
        self.detach()
        self._publisher.close(reason, failed=failed)

    def _before_shutdown(self, *_: Any, **__: Any) -> None:
        self.close(f"{self._host.name} has shut down")

    def _failed(self, error: Exception) -> None:
        name, log = self._host.name, self._host.log
        if isinstance(error, PublisherLostError) and error.is_orderly:
            log.info("seqtop: dormant again, as the last viewer has left")
        else:
            log.warning("seqtop is off, and %s continues: %s", name, in_one_line(error))
        self._publisher.close(f"the adapter has failed, and {name} continues: {in_one_line(error)}")


def in_one_line(error: Exception) -> str:
    """Returns an error as a line for the log."""
    message = " ".join(str(error).split())
    if isinstance(error, PublisherLostError | UnsupportedEngineError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"
