"""The publisher of an engine whose author implements `Adapter`."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from seqtop.flight_recorder import process as flight_recorder
from seqtop.process import bind_setting
from seqtop.publish.adapter import Adapter, EngineDescription
from seqtop.publish.comparison import Comparison
from seqtop.state import EngineState
from seqtop.transport import local_engines
from seqtop.transport import publisher as transport
from seqtop.transport.publisher_settings import PublisherSettings, endpoint_of, from_environment
from seqtop.wire.messages import EngineInfo

_log = logging.getLogger("seqtop")
_CACHE_IS_UNKNOWN = "the adapter does not report the content of the prefix cache"
_NOT_AVAILABLE = {"cached_blocks": _CACHE_IS_UNKNOWN, "prefix_misses": _CACHE_IS_UNKNOWN}


class Publisher:
    """Publishes what an engine does at each step. A context manager announces the engine's end.

    The endpoint and all else are the settings of the user, environment variables of `docs/vllm.md`
    (`SEQTOP_BIND`, `SEQTOP_REDACT`, keys, …). Without `SEQTOP_BIND`, nothing is published. All
    methods belong to the thread that steps the engine. None waits for a viewer, and none raises:
    the first error is a warning in the log `seqtop`, and all are counted.

    Args:
        adapter: The engine.
        bind: The endpoint to publish at, in place of `SEQTOP_BIND`; or all settings, in place of
            the user's. The engine is then not listed among those of this machine.
        clock: Returns the time of day in seconds since the epoch.

    Attributes:
        endpoint: The endpoint of the live stream; `None` if nothing is published.
        num_errors: Steps that could not be published.
    """

    def __init__(
        self,
        adapter: Adapter[Any],
        bind: str | PublisherSettings | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint: str | None = None
        self.num_errors = 0
        self._clock = clock
        self._running = contextlib.ExitStack()
        self._transport: transport.MessagePublisher | None = None
        bind = bind_setting.read() if bind is None else bind
        if not bind:
            return
        try:
            if isinstance(bind, PublisherSettings):
                self._start(adapter, bind, is_listed=False)
            else:
                self._start(adapter, from_environment(bind))
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine runs without viewers
            _log.warning("seqtop is off: %s", error)
            self._running.close()

    def _start(
        self, adapter: Adapter[Any], settings: PublisherSettings, *, is_listed: bool = True
    ) -> None:
        if settings.is_dormant:
            raise ValueError("SEQTOP_BIND=dormant is for vLLM and SGLang; name an endpoint")
        description = adapter.describe_engine()
        info = _engine_info(adapter, description, settings, self._clock())
        self._comparison = Comparison(adapter, description)
        publisher = transport.MessagePublisher(
            endpoint_of(settings, 0),
            info,
            EngineState(),
            curve_keys=settings.curve_keys(),
            insecure=settings.insecure,
            repairs=True,
            clock=self._clock,
        )
        self._running.callback(publisher.close)
        if is_listed:
            self._running.enter_context(local_engines.announced(publisher.endpoint, info.engine_id))
        if settings.flight_recorder:
            self._running.enter_context(
                flight_recorder.started(
                    publisher.endpoint, settings.flight_recorder, settings.flight_recorder_options
                )
            )
        self.endpoint, self._transport = publisher.endpoint, publisher

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Publishes what the engine does in this context, which has one iteration of it.

        Requests that arrived or ended before are published first. If the iteration raises, it is
        published together with the next one.
        """
        start_time = self._clock()
        self._publish(self._before_step, start_time)
        yield
        self._publish(self._after_step, start_time)

    def close(self, reason: str = "", *, failed: bool = False) -> None:
        """Announces the engine's end, and waits until all is sent, for five seconds at most.

        Args:
            reason: The reason, in one sentence.
            failed: Says that the engine cannot continue.
        """
        if self._transport is not None:
            self._transport.close(reason, failed=failed)
        self._transport = None
        self._running.close()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self.close(f"the engine failed: {kind.__name__ if kind else error}", failed=True)
        else:
            self.close("the engine has ended")

    def _publish(
        self, publish: Callable[[transport.MessagePublisher, float], None], start_time: float
    ) -> None:
        publisher = self._transport
        if publisher is None:
            return
        try:
            publish(publisher, start_time)
        except Exception as error:  # noqa: BLE001 - an engine runs on, whatever its adapter does
            self.num_errors += 1
            publisher.count_not_made(error)
            if self.num_errors == 1:
                _log.warning("a step is not published: %s", publisher.last_error, exc_info=True)

    def _before_step(self, publisher: transport.MessagePublisher, start_time: float) -> None:
        if publisher.needs_snapshot():
            publisher.publish(self._comparison.restore(start_time))
        for event in self._comparison.between_steps(start_time):
            publisher.publish(event)

    def _after_step(self, publisher: transport.MessagePublisher, start_time: float) -> None:
        for event in self._comparison.after_step(start_time, self._clock()):
            publisher.publish(event)


def _engine_info(
    adapter: Adapter[Any],
    description: EngineDescription,
    settings: PublisherSettings,
    start_time: float,
) -> EngineInfo:
    not_available = {**_NOT_AVAILABLE, **description.not_available}
    if adapter.num_cached_blocks() is not None:
        del not_available["cached_blocks"]
    return EngineInfo(
        engine_id=settings.engine_id or description.model,
        incarnation=uuid.uuid4().hex,
        engine=description.engine,
        model=description.model,
        dtype=description.dtype,
        device=description.device,
        start_time=start_time,
        block_size=description.block_size,
        num_gpu_blocks=description.num_gpu_blocks,
        num_cpu_blocks=None,
        max_num_seqs=description.max_num_seqs,
        max_num_batched_tokens=description.max_num_batched_tokens,
        max_model_len=description.max_model_len,
        enable_chunked_prefill=description.enable_chunked_prefill,
        enable_prefix_caching=description.enable_prefix_caching,
        preemption_mode="recompute",
        redacted=settings.redact,
        num_reserved_blocks=description.num_reserved_blocks,
        queue_order=description.queue_order,
        tokenizer=settings.tokenizer or description.tokenizer,
        not_available=not_available,
    )
