"""Attaches the adapter to the schedulers that vLLM creates in this process.

vLLM's configuration names the class of the scheduler, which a user can replace by any other. So
the class that it returns is the one whose `__init__` is replaced. Afterwards the methods of the one
instance are wrapped, and the class method that creates requests.
"""

from __future__ import annotations

import functools
from typing import Any

from seqtop.adapters.attachment import Attachment, in_one_line
from seqtop.adapters.vllm.attach import VLLM, attachment_of
from seqtop.transport import publisher_settings as user_settings
from seqtop.transport.publisher_settings import PublisherSettings


def install(bind: str) -> None:
    """Attaches to the scheduler that this process creates, if it creates one. Never raises."""
    try:
        _replace_init(user_settings.from_environment(bind))
    except Exception as error:  # noqa: BLE001 - a plugin that raises would stop vLLM
        VLLM.log.warning("seqtop is off: %s", in_one_line(error))


def _replace_init(settings: PublisherSettings) -> None:
    from vllm.config import SchedulerConfig

    original = SchedulerConfig.get_scheduler_cls
    replaced: set[Any] = set()

    @functools.wraps(original)
    def get_scheduler_cls(self: Any) -> Any:
        scheduler_class = original(self)
        if scheduler_class not in replaced:
            replaced.add(scheduler_class)
            _replace_init_of(scheduler_class, settings)
        return scheduler_class

    SchedulerConfig.get_scheduler_cls = get_scheduler_cls


def _replace_init_of(scheduler_class: Any, settings: PublisherSettings) -> None:
    original = scheduler_class.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        # A subclass is not complete yet, and has been replaced itself if vLLM uses it.
        if type(self) is not scheduler_class:
            return
        if settings.is_dormant:
            sleep(self, settings)
        else:
            follow(self, settings)

    scheduler_class.__init__ = init


def follow(scheduler: Any, settings: PublisherSettings) -> Attachment | None:
    """Publishes the steps of a scheduler from now on. Returns `None` on failure; never raises."""
    try:
        attachment = attachment_of(scheduler, settings)
    except Exception as error:  # noqa: BLE001
        VLLM.log.warning("seqtop is off, and vLLM continues: %s", in_one_line(error))
        return None
    attachment.attach()
    return attachment if attachment.is_attached else None


def sleep(scheduler: Any, settings: PublisherSettings) -> None:
    """Waits for clients that wake the engine of a scheduler. Never raises."""
    from seqtop.adapters.dormant import DormantEngine, before_next_call

    try:
        DormantEngine(
            VLLM,
            lambda endpoint: attachment_of(scheduler, settings, endpoint),
            lambda action: before_next_call(scheduler, "schedule", action),
        )
    except OSError as error:
        VLLM.log.warning("seqtop cannot be woken: %s", error)
