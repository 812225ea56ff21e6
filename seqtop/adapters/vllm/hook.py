"""Attaches the adapter to the next V1 scheduler that vLLM creates in this process.

Only `Scheduler.__init__` is replaced on the class. It then wraps the methods of the one scheduler
instance, which may be of any subclass.
"""

from __future__ import annotations

import functools
import logging
import os
import traceback
from pathlib import Path
from typing import Any, Final

from seqtop.adapters.vllm import settings as user_settings
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.publisher_process import PublisherLostError, PublisherProcess
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.wrapping import Wrapping

TESTED_VERSIONS: Final = ("0.33",)
"""Minor versions of vLLM with which `make test-vllm` has passed."""

_log = logging.getLogger(
    "vllm.seqtop"
)  # a child of vLLM's logger, so that it is formatted and shown

_WARNED: Final = "_SEQTOP_WARNED"
"""The environment variable that prevents the same warning from vLLM's other processes."""


def install() -> None:
    """Attaches to the scheduler that this process creates, if it creates one."""
    try:
        settings = user_settings.from_environment()
        if _may_attach(settings):
            _replace_init(settings)
    except Exception as error:  # noqa: BLE001 - a plugin that raises would stop vLLM
        _log.warning("seqtop is off: %s", _in_one_line(error))


def _may_attach(settings: AdapterSettings) -> bool:
    import vllm

    version = ".".join(vllm.__version__.split(".")[:2])
    if version in TESTED_VERSIONS or settings.force:
        return True
    if not os.environ.get(_WARNED):
        os.environ[_WARNED] = "1"
        _log.warning(
            "seqtop is off: it has been tested with vLLM %s, and this is %s;"
            " set SEQTOP_FORCE=1 to try it anyway",
            ", ".join(TESTED_VERSIONS),
            vllm.__version__,
        )
    return False


def _replace_init(settings: AdapterSettings) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    original = Scheduler.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        follow(self, settings)

    Scheduler.__init__ = init


def follow(scheduler: Any, settings: AdapterSettings) -> Wrapping | None:
    """Publishes the steps of a scheduler from now on. Returns `None` on failure; never raises."""
    publisher: PublisherProcess | None = None

    def failed(error: Exception) -> None:
        _log.warning("seqtop is off, and vLLM continues: %s", _in_one_line(error))
        if publisher is not None:
            publisher.close("the adapter has failed; see vLLM's log")

    def before_shutdown() -> None:
        wrapping.undo()
        if publisher is not None:
            publisher.close("vLLM has shut down")

    wrapping = Wrapping(failed)
    try:
        started, layout = describe(scheduler, settings)
        endpoint = user_settings.endpoint_of(settings, started.data_parallel_rank)
        publisher = PublisherProcess(endpoint, settings)
        publisher.send(started)
        SchedulerObserver(scheduler, wrapping.wrap, publisher.send, layout)
        wrapping.wrap(scheduler, "shutdown", before=before_shutdown)
    except Exception as error:  # noqa: BLE001
        wrapping.undo()
        failed(error)
        return None
    _log.info("seqtop: to view this engine, run: seqtop attach %s", endpoint)
    return wrapping


def _in_one_line(error: Exception) -> str:
    if isinstance(error, PublisherLostError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
