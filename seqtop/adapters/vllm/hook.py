"""Attaches the adapter to the schedulers that vLLM creates in this process.

vLLM's configuration names the class of the scheduler, which a user can replace by any other. So
the class that it returns is the one whose `__init__` is replaced. Afterwards the methods of the one
instance are wrapped, and the class method that creates requests.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

from seqtop.adapters.vllm.attachment import Attachment, in_one_line
from seqtop.transport import publisher_settings as user_settings
from seqtop.transport.publisher_settings import PublisherSettings

_log = logging.getLogger("vllm.seqtop")


def install(bind: str) -> None:
    """Attaches to the scheduler that this process creates, if it creates one. Never raises."""
    try:
        _replace_init(user_settings.from_environment(bind))
    except Exception as error:  # noqa: BLE001 - a plugin that raises would stop vLLM
        _log.warning("seqtop is off: %s", in_one_line(error))


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
            _sleep(self, settings)
        else:
            follow(self, settings)

    scheduler_class.__init__ = init


def follow(scheduler: Any, settings: PublisherSettings) -> Attachment | None:
    """Publishes the steps of a scheduler from now on. Returns `None` on failure; never raises."""
    try:
        attachment = Attachment(scheduler, settings)
    except Exception as error:  # noqa: BLE001
        _log.warning("seqtop is off, and vLLM continues: %s", in_one_line(error))
        return None
    attachment.attach()
    return attachment if attachment.is_attached else None


def _sleep(scheduler: Any, settings: PublisherSettings) -> None:
    from seqtop.adapters.vllm.dormant import DormantEngine

    try:
        DormantEngine(scheduler, settings)
    except OSError as error:
        _log.warning("seqtop cannot be woken: %s", error)
