"""Creates the attachment of a V1 scheduler."""

from __future__ import annotations

import logging
from typing import Any, Final

from seqtop.adapters.attachment import Attachment, Host, UnsupportedEngineError, unobserved
from seqtop.adapters.observations import ObservationSink
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.probe import probe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrap
from seqtop.transport.publisher_settings import PublisherSettings

VLLM: Final = Host("vLLM", logging.getLogger("vllm.seqtop"))


def attachment_of(
    scheduler: Any, settings: PublisherSettings, endpoint: str | None = None
) -> Attachment:
    """Returns the attachment of vLLM's V1 scheduler, whose methods are not wrapped yet.

    Raises:
        UnsupportedEngineError: The scheduler cannot even be described.
        EndpointError: The endpoint cannot be used.
    """
    try:
        not_available = probe(scheduler)
    except UnsupportedEngineError as error:
        return unobserved(VLLM, error, lambda: describe(scheduler, settings)[0], settings, endpoint)
    started, layout = describe(scheduler, settings)
    if reason := why_not_observable(scheduler, layout):
        not_available.setdefault("prefix_misses", reason)
    started.not_available = not_available

    def observe(wrap: Wrap, publisher: ObservationSink) -> None:
        SchedulerObserver(scheduler, wrap, publisher, layout, not_available)
        if "end" not in not_available:
            attachment.close_before(scheduler, "shutdown")

    attachment = Attachment(VLLM, started, observe, settings, endpoint)
    return attachment
