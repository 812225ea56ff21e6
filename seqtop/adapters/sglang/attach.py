"""Creates the attachment of a scheduler."""

from __future__ import annotations

import logging
from typing import Any, Final

from seqtop.adapters.attachment import Attachment, Host, UnsupportedEngineError, unobserved
from seqtop.adapters.observations import ObservationSink
from seqtop.adapters.sglang.engine_description import describe
from seqtop.adapters.sglang.probe import probe
from seqtop.adapters.sglang.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrap
from seqtop.transport.publisher_settings import PublisherSettings

SGLANG: Final = Host("SGLang", logging.getLogger("sglang.seqtop"))


def attachment_of(
    scheduler: Any, settings: PublisherSettings, endpoint: str | None = None
) -> Attachment:
    """Returns the attachment of SGLang's scheduler, whose methods are not wrapped yet.

    Raises:
        UnsupportedEngineError: The scheduler cannot even be described.
        EndpointError: The endpoint cannot be used.
    """
    try:
        not_available = probe(scheduler)
    except UnsupportedEngineError as error:
        return unobserved(SGLANG, error, lambda: describe(scheduler, settings), settings, endpoint)
    started = describe(scheduler, settings)
    started.not_available = not_available

    def observe(wrap: Wrap, publisher: ObservationSink) -> None:
        SchedulerObserver(scheduler, wrap, publisher)
        if hasattr(scheduler, "release_host_resources"):  # if it ends by itself
            attachment.close_before(scheduler, "release_host_resources")

    attachment = Attachment(SGLANG, started, observe, settings, endpoint)
    return attachment
