"""Attaches the adapter to the scheduler that SGLang creates in this process.

Only the class's `__init__` is hooked through SGLang's registry. Afterwards the methods of the one
instance are wrapped, as far as they are called through it.
"""

from __future__ import annotations

from typing import Any, Final

from seqtop.adapters.attachment import Attachment, in_one_line
from seqtop.adapters.sglang.attach import SGLANG, attachment_of
from seqtop.adapters.sglang.engine_description import publishes
from seqtop.transport import publisher_settings as user_settings
from seqtop.transport.publisher_settings import PublisherSettings

_INIT: Final = "sglang.srt.managers.scheduler.Scheduler.__init__"


def install(bind: str) -> None:
    """Attaches to the scheduler that this process creates, if it creates one. Never raises."""
    try:
        settings = user_settings.from_environment(bind)
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        def after_init(_result: object, scheduler: Any, *_: Any, **__: Any) -> None:
            if settings.is_dormant:
                sleep(scheduler, settings)
            else:
                follow(scheduler, settings)

        HookRegistry.register(_INIT, after_init, HookType.AFTER)
    except Exception as error:  # noqa: BLE001 - a plugin that raises could stop SGLang
        SGLANG.log.warning("seqtop is off: %s", in_one_line(error))


def follow(scheduler: Any, settings: PublisherSettings) -> Attachment | None:
    """Publishes the steps of a scheduler from now on; never raises.

    Returns `None` on failure, and for a rank that has the requests of another one.
    """
    try:
        if not publishes(scheduler):
            return None
        attachment = attachment_of(scheduler, settings)
    except Exception as error:  # noqa: BLE001
        SGLANG.log.warning("seqtop is off, and SGLang continues: %s", in_one_line(error))
        return None
    attachment.attach()
    return attachment if attachment.is_attached else None


def sleep(scheduler: Any, settings: PublisherSettings) -> None:
    """Waits for clients that wake the engine of a scheduler. Never raises."""
    from seqtop.adapters.dormant import DormantEngine, before_next_call

    try:
        if publishes(scheduler):
            DormantEngine(
                SGLANG,
                lambda endpoint: attachment_of(scheduler, settings, endpoint),
                lambda action: before_next_call(scheduler, "process_input_requests", action),
            )
    except Exception as error:  # noqa: BLE001
        SGLANG.log.warning("seqtop cannot be woken: %s", in_one_line(error))
