"""Has the next V1 scheduler that vLLM builds in this process followed.

Only `Scheduler.__init__` is replaced on a class; from then on it is that one scheduler's own
methods that are surrounded, whichever subclass it is of.
"""

from __future__ import annotations

import functools
import logging
import os
import traceback
from pathlib import Path
from typing import Any, Final

from seqtop.adapters.vllm import settings as user_settings
from seqtop.adapters.vllm.collect import Collector
from seqtop.adapters.vllm.describe import describe
from seqtop.adapters.vllm.outbox import Outbox, PublisherLostError
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.wrapping import Wrapping

TESTED_VERSIONS: Final = ("0.33",)
"""Minor versions of vLLM that `make test-vllm` has passed with."""

_log = logging.getLogger("vllm.seqtop")  # below vLLM's own, so that it is formatted and shown

_SAID: Final = "_SEQTOP_SAID"
"""Environment variable that keeps vLLM's other processes from saying the same once more."""


def install() -> None:
    """Follow the scheduler that this process is going to build, if it builds one."""
    try:
        settings = user_settings.from_environment()
        if _may_follow(settings):
            _replace_init(settings)
    except Exception as error:  # noqa: BLE001 - a plugin that raises keeps vLLM from starting
        _log.warning("seqtop is off: %s", _in_one_line(error))


def _may_follow(settings: AdapterSettings) -> bool:
    import vllm

    version = ".".join(vllm.__version__.split(".")[:2])
    if version in TESTED_VERSIONS or settings.force:
        return True
    if not os.environ.get(_SAID):
        os.environ[_SAID] = "1"
        _log.warning(
            "seqtop is off: it has been tested with vLLM %s, and this is %s;"
            " set SEQTOP_FORCE=1 to try it all the same",
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
    """Publish what `scheduler` does from now on; `None` if that cannot be. Never raises."""
    outbox: Outbox | None = None

    def failed(error: Exception) -> None:
        _log.warning("seqtop is off, and vLLM goes on: %s", _in_one_line(error))
        if outbox is not None:
            outbox.close("the adapter has given up; vLLM's log says why")

    def to_shut_down() -> None:
        wrapping.undo()
        if outbox is not None:
            outbox.close("vLLM has shut down")

    wrapping = Wrapping(failed)
    try:
        hello, layout = describe(scheduler, settings)
        endpoint = user_settings.endpoint_of(settings, hello.data_parallel_rank)
        outbox = Outbox(endpoint, settings)
        outbox.send(hello)
        Collector(scheduler, wrapping.wrap, outbox.send, layout)
        wrapping.wrap(scheduler, "shutdown", before=to_shut_down)
    except Exception as error:  # noqa: BLE001
        wrapping.undo()
        failed(error)
        return None
    _log.info("seqtop: look at this engine with: seqtop attach %s", endpoint)
    return wrapping


def _in_one_line(error: Exception) -> str:
    if isinstance(error, PublisherLostError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
