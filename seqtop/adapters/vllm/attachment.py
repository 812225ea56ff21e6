"""The connection of one scheduler with one publisher's process."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any

from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.probe import UnsupportedVllmError, probe
from seqtop.adapters.vllm.publisher_process import PublisherLostError, PublisherProcess
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.wrapping import Wrapping
from seqtop.transport.publisher_settings import PublisherSettings, endpoint_of

# A child of vLLM's logger, so that it is formatted and shown.
_log = logging.getLogger("vllm.seqtop")


class Attachment:
    """Starts the publisher of one scheduler, and wraps the scheduler's methods.

    Args:
        scheduler: vLLM's V1 scheduler.
        settings: The user's settings.
        endpoint: The endpoint to publish at; by default that of the settings.

    Raises:
        UnsupportedVllmError: The scheduler lacks attributes that are needed.
        EndpointError: The endpoint cannot be used.
    """

    def __init__(
        self, scheduler: Any, settings: PublisherSettings, endpoint: str | None = None
    ) -> None:
        self._not_available = probe(scheduler)
        started, self._layout = describe(scheduler, settings)
        if reason := why_not_observable(scheduler, self._layout):
            self._not_available.setdefault("prefix_misses", reason)
        started.not_available = self._not_available
        self.endpoint = endpoint or endpoint_of(settings, started.data_parallel_rank)
        self._scheduler = scheduler
        self._wrapping = Wrapping(self._failed)
        self._publisher = PublisherProcess(self.endpoint, settings)
        self._publisher.send(started)

    def attach(self) -> None:
        """Wraps the methods, on the scheduler's thread. Never raises."""
        try:
            SchedulerObserver(
                self._scheduler,
                self._wrapping.wrap,
                self._publisher,
                self._layout,
                self._not_available,
            )
            if "end" not in self._not_available:
                self._wrapping.wrap(self._scheduler, "shutdown", before=self._before_shutdown)
        except Exception as error:  # noqa: BLE001 - no error may stop vLLM
            self.detach()
            self._failed(error)

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

    def close(self, reason: str) -> None:
        """Restores all methods and ends the publisher's process."""
        self.detach()
        self._publisher.close(reason)

    def _before_shutdown(self, *_: Any, **__: Any) -> None:
        self.close("vLLM has shut down")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, PublisherLostError) and error.is_orderly:
            _log.info("seqtop: dormant again, as the last viewer has left")
        else:
            _log.warning("seqtop is off, and vLLM continues: %s", in_one_line(error))
        self._publisher.close("the adapter has failed; see vLLM's log")


def in_one_line(error: Exception) -> str:
    """Returns an error as a line for the log."""
    message = " ".join(str(error).split())
    if isinstance(error, PublisherLostError | UnsupportedVllmError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"
