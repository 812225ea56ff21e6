"""Attaches the adapter to managers.

A manager creates its processor on the thread that generates, and again when it is started again.
So the method that creates it is wrapped. Each run of a manager is an engine of its own.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Final

from seqtop.adapters.attachment import (
    Attachment,
    Host,
    UnsupportedEngineError,
    in_one_line,
    unobserved,
)
from seqtop.adapters.dormant import DormantEngine, before_next_call
from seqtop.adapters.observations import ObservationSink
from seqtop.adapters.transformers.blocks import Blocks
from seqtop.adapters.transformers.engine_description import describe
from seqtop.adapters.transformers.probe import probe
from seqtop.adapters.transformers.processor_observer import ProcessorObserver
from seqtop.adapters.wrapping import Wrap, Wrapping
from seqtop.transport import publisher_settings as user_settings
from seqtop.transport.publisher_settings import PublisherSettings

TRANSFORMERS: Final = Host("transformers", logging.getLogger("seqtop.transformers"))
_FOLLOWER: Final = "_seqtop_follower"


def follow_all(bind: str) -> None:
    """Attaches to each manager that is created from now on. Never raises."""
    try:
        from transformers.generation.continuous_batching import ContinuousBatchingManager

        original = ContinuousBatchingManager.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            follow(self, bind)

        setattr(ContinuousBatchingManager, "__init__", init)  # noqa: B010 - mypy refuses to assign
    except Exception as error:  # noqa: BLE001 - no error may stop the program
        _log_failure(error)


def follow(manager: Any, bind: str) -> None:
    """Attaches to the present and all later processors of a manager. Never raises."""
    try:
        if hasattr(manager, _FOLLOWER):
            return
        if not getattr(manager, "is_tp_driver", True):
            TRANSFORMERS.log.info("seqtop: rank 0 of the tensor-parallel group publishes")
            return
        follower = _Follower(manager, user_settings.from_environment(bind))
        setattr(manager, _FOLLOWER, follower)
        follower.start()
    except Exception as error:  # noqa: BLE001
        _log_failure(error)


def _log_failure(error: Exception) -> None:
    TRANSFORMERS.log.warning("seqtop is off, and transformers continues: %s", in_one_line(error))


def attachment_of(
    manager: Any, processor: Any, settings: PublisherSettings, endpoint: str | None = None
) -> Attachment:
    """Returns the attachment of a processor, whose methods are not wrapped yet.

    Raises:
        UnsupportedEngineError: The processor cannot even be described.
        EndpointError: The endpoint cannot be used.
    """
    try:
        not_available = probe(processor)
    except UnsupportedEngineError as error:
        return unobserved(
            TRANSFORMERS,
            error,
            lambda: describe(manager, processor, Blocks(processor.cache), settings),
            settings,
            endpoint,
        )
    blocks = Blocks(processor.cache)
    started = describe(manager, processor, blocks, settings)
    started.not_available = not_available

    def observe(wrap: Wrap, publisher: ObservationSink) -> None:
        config = manager.generation_config
        ProcessorObserver(processor, config, wrap, publisher, blocks, not_available)

    return Attachment(TRANSFORMERS, started, observe, settings, endpoint)


class _Follower:
    """Attaches to the processors of one manager.

    Args:
        manager: A `ContinuousBatchingManager`.
        settings: The user's settings.
    """

    def __init__(self, manager: Any, settings: PublisherSettings) -> None:
        self._manager, self._settings = manager, settings
        self._attachment: Attachment | None = None
        self._processor: Any = None
        self._wrapping = Wrapping(_log_failure)

    def start(self) -> None:
        """Wraps the manager's methods, and attaches to the processor that it has already.

        Raises:
            AttributeError: The manager has no such methods.
        """
        manager = self._manager
        self._wrapping.wrap(manager, "_create_batch_processor", after=self._created)
        # Called at each end of the thread that generates, when all requests have ended.
        status = getattr(manager, "background_thread_status", None)
        if hasattr(status, "mark_as_stopped"):
            self._wrapping.wrap(status, "mark_as_stopped", after=self._stopped)
        else:
            self._wrapping.wrap(manager, "_run_generation_loop", after=self._stopped)
        if manager.batch_processor is not None and manager.is_running():
            self._attach(manager.batch_processor, is_running=True)

    def _created(self, processor: Any) -> None:
        """Attaches before the first step, on the thread that will make it."""
        self._attach(processor, is_running=False)

    def _attach(self, processor: Any, *, is_running: bool) -> None:
        if self._attachment is not None and processor is self._processor:
            return  # the same for the warm-up and for the run
        self._processor = processor
        manager, settings = self._manager, self._settings
        if settings.is_dormant:
            DormantEngine(
                TRANSFORMERS,
                lambda endpoint: self._keep(attachment_of(manager, processor, settings, endpoint)),
                lambda action: before_next_call(processor, "prepare_next_batch", action),
            )
            return
        attachment = self._keep(attachment_of(manager, processor, settings))
        if is_running:
            before_next_call(processor, "prepare_next_batch", attachment.attach)
        else:
            attachment.attach()

    def _keep(self, attachment: Attachment) -> Attachment:
        self._attachment = attachment
        return attachment

    def _stopped(self, *_: Any, **__: Any) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is None:
            return
        error = getattr(self._manager.background_thread_status, "fatal_error", None)
        if error is None:
            attachment.close("the manager was stopped")
        else:
            attachment.close(f"the generation loop failed: {error}", failed=True)
