"""Observes why `schedule` leaves waiting requests waiting.

`Scheduler.schedule` allocates blocks for the running requests first and then for the waiting ones.
Only the calls for waiting requests are of interest, and only they are observed: the wrapper of
`allocate_slots` is in place from the first examined waiting request to the end of `schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any, Final

from seqtop.adapters.wrapping import Wrap

QUEUES: Final = ("kv_holding_waiting", "skipped_waiting", "waiting")
"""The scheduler's queues of waiting requests in the order in which it examines them. Older versions
have only the last one."""

_EXAMINE: Final = (
    "_handle_blocked_waiting_request",
    "_select_waiting_queue_for_scheduling",
    "_try_promote_blocked_waiting_request",
)
"""Methods that `schedule` calls for each waiting request that it examines, or for each blocked one,
by the version of vLLM. Prefix hits are looked up for the others, in all versions, except those that
have computed tokens, of a load."""

_MAX_REASONS: Final = 32
"""Waiting requests that are given a reason in each step. All others wait behind them."""


def waiting_requests(scheduler: Any) -> Iterable[Any]:
    """Returns the waiting requests in the order in which the scheduler examines them."""
    return chain.from_iterable(getattr(scheduler, name, ()) for name in QUEUES)


class Admission:
    """Observes the admission of waiting requests by one scheduler.

    Args:
        scheduler: vLLM's V1 scheduler.
        wrap: Wraps a method.
        knows_reasons: False if the scheduler lacks something that the reasons need. All are then
            unknown.

    Attributes:
        loading: Requests that got blocks to load their KV cache into, until they are taken.
        num_external: By request, the prompt tokens that a KV connector loads or has loaded for its
            next admission.
        num_prefix_queries: Tokens that vLLM has counted as looked up in the prefix cache.
        num_prefix_hits: The part of them that it has found there.
    """

    def __init__(self, scheduler: Any, wrap: Wrap, *, knows_reasons: bool = True) -> None:
        self.loading: list[Any] = []
        self.num_external: dict[str, int] = {}
        self.num_prefix_queries = self.num_prefix_hits = 0
        self._scheduler = scheduler
        self._is_observing = False
        self._num_cached: dict[str, int] = {}
        """The prefix hits of each request that was examined by the current call of `schedule`."""
        self._refused: str | None = None
        """The waiting request that the current call of `schedule` found no blocks for."""
        self._skipped: set[str] = set()
        """The requests that the current call of `schedule` has examined and passed over."""
        self._knows_reasons = knows_reasons
        self._has_cache = scheduler.vllm_config.cache_config.enable_prefix_caching
        manager = scheduler.kv_cache_manager
        # Versions without this method count each lookup, also one without an admission.
        if hasattr(manager, "record_prefix_cache_stats"):
            wrap(manager, "record_prefix_cache_stats", after=self._after_record)
        elif hasattr(manager, "get_computed_blocks"):
            wrap(manager, "get_computed_blocks", after=self._after_counted_lookup)
        self._set_observing = wrap(
            manager, "allocate_slots", after=self._after_allocate, is_on=not knows_reasons
        )
        if not knows_reasons:
            return
        for name in _EXAMINE:
            if hasattr(scheduler, name):
                wrap(scheduler, name, before=self._before_examine)
        if hasattr(manager, "can_fit_full_sequence"):  # it precedes `allocate_slots`
            wrap(manager, "can_fit_full_sequence", after=self._after_fit)
        wrap(manager, "get_computed_blocks", before=self._before_examine, after=self._after_lookup)
        for name in QUEUES:
            if (queue := getattr(scheduler, name, None)) is not None:
                # Called once, at the end of `schedule`, with those that it has passed over.
                wrap(queue, "prepend_requests", before=self._before_prepend)

    def _before_examine(self, *_: Any, **__: Any) -> None:
        if not self._is_observing:
            self._is_observing = True
            self._set_observing(True)

    def _after_lookup(self, result: tuple[Any, ...], request: Any, *_: Any, **__: Any) -> None:
        self._num_cached[request.request_id] = result[1]

    def _after_counted_lookup(
        self, result: tuple[Any, ...], request: Any, *_: Any, **__: Any
    ) -> None:
        self._after_record(None, request, result[1])

    def _after_record(self, _result: object, request: Any, num_hits: int) -> None:
        # vLLM counts requests that were preempted apart.
        is_counted = self._has_cache and not request.num_preemptions
        if is_counted and not getattr(request, "skip_reading_prefix_cache", False):
            self.num_prefix_queries += request.num_tokens
            self.num_prefix_hits += num_hits

    def _before_prepend(self, requests: Iterable[Any]) -> None:
        self._skipped.update(request.request_id for request in requests)

    def _after_fit(self, fits: bool, request: Any, *_: Any, **__: Any) -> None:
        if not fits:
            self._refused = request.request_id

    def _after_allocate(self, blocks: Any, request: Any, *_: Any, **options: Any) -> None:
        if blocks is None:
            self._refused = request.request_id
            return
        if num_external := options.get("num_external_computed_tokens"):
            self.num_external[request.request_id] = num_external
        elif not request.num_computed_tokens:
            self.num_external.pop(request.request_id, None)  # of a load that has failed
        if options.get("delay_cache_blocks"):
            self.loading.append(request)

    def note_loading(self, request: Any) -> None:
        """Notes the tokens that a request loads, or has loaded, since before it was observed."""
        # vLLM keeps them until the first outputs, and not for one that was preempted.
        stats = getattr(request, "prefill_stats", None)
        num_external = getattr(stats, "num_external_cached_tokens", 0)
        if num_external and request.num_computed_tokens and not request.num_preemptions:
            self.num_external.setdefault(request.request_id, num_external)

    def take_reasons(self, output: Any, *, has_preempted: bool) -> list[tuple[str, str]]:
        """Returns the requests that a call of `schedule` left waiting, each with the reason.

        Args:
            output: The result of the call.
            has_preempted: True if it preempted a request. It then admits none.
        """
        num_cached, refused, skipped = self._num_cached, self._refused, self._skipped
        if self._is_observing:
            self._is_observing = False
            self._set_observing(False)
            self._num_cached, self._refused = {}, None
        if skipped:
            self._skipped = set()
        scheduler = self._scheduler
        if not any(getattr(scheduler, name, ()) for name in QUEUES):
            return []
        loras = self._used_lora_slots()
        reasons: list[tuple[str, str]] = []
        for request in islice(waiting_requests(scheduler), _MAX_REASONS):
            request_id = request.request_id
            if request.status.name.startswith("WAITING_FOR_"):
                continue  # more specific than any reason here
            if not self._knows_reasons:
                reasons.append((request_id, "unknown"))
                break
            if request_id in skipped:
                # vLLM compares adapters before it looks a request up in the prefix cache.
                lora = _lora_id(request) if request_id not in num_cached else 0
                is_lora = loras is not None and lora and lora not in loras
                reasons.append((request_id, "lora_slots" if is_lora else "unknown"))
                continue
            if _is_paused(scheduler):
                cause = "paused"
            elif has_preempted or request_id == refused:
                cause = "no_blocks"
            else:
                cause = self._cause(request, output, num_cached)
            reasons.append((request_id, cause))
            break
        return reasons

    def _cause(self, request: Any, output: Any, num_cached: dict[str, int]) -> str:
        """Returns the limit that ended the admission before or at `request`."""
        scheduler = self._scheduler
        num_running, most = len(scheduler.running), scheduler.max_num_running_reqs
        if hasattr(scheduler, "max_num_active_reqs"):
            # Sessions that wait for input keep their places in the batch.
            num_running += scheduler.num_waiting_for_streaming_input
            most = scheduler.max_num_active_reqs
        if num_running >= most:
            return "seq_limit"
        left = scheduler.max_num_scheduled_tokens - output.total_num_scheduled_tokens
        if left <= 0:
            return "token_budget"
        if not scheduler.scheduler_config.enable_chunked_prefill:
            cached = num_cached.get(request.request_id)
            if cached is not None and request.num_tokens - cached > left:
                return "token_budget"
        return "unknown"

    def _used_lora_slots(self) -> set[int] | None:
        """Returns the adapters of the running requests if they use all slots, else `None`."""
        config = getattr(self._scheduler, "lora_config", None)
        if not config:
            return None
        loras = {_lora_id(request) for request in self._scheduler.running} - {0}
        return loras if len(loras) >= config.max_loras else None


def _lora_id(request: Any) -> int:
    lora = getattr(request, "lora_request", None)
    return int(lora.lora_int_id) if lora else 0


def _is_paused(scheduler: Any) -> bool:
    state = getattr(scheduler, "_pause_state", None)
    return state is not None and state.name != "UNPAUSED"
