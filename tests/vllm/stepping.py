"""A real EngineCore of vLLM that is stepped by hand, and a viewer that is compared at each step.

Nothing of vLLM's is replaced but the model (`token_executor`). The comparison reads the scheduler
itself, block by block, which the adapter must not do.
"""

from __future__ import annotations

import functools
import heapq
import inspect
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from seqtop.adapters.vllm.hook import follow
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.waiting import SECONDS
from tests.support.watch import SteppedViewer, Watch, watched

MODEL = Path(__file__).resolve().parents[2] / "engine_stub" / "weights"
QUEUES = ("kv_holding_waiting", "skipped_waiting", "waiting")


def make_core(
    *,
    kv_cache_specs: Any = None,
    change: Callable[[Any], None] = lambda config: None,
    **arguments: Any,
) -> Any:
    """An EngineCore with a small pool, and without a model. `change` changes its configuration."""
    import token_executor
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.core import EngineCore

    token_executor.STEP_SECONDS = 0.0
    token_executor.KV_CACHE_SPECS = kv_cache_specs
    defaults: dict[str, Any] = {
        "model": str(MODEL),
        "skip_tokenizer_init": True,
        "dtype": "float16",
        "max_model_len": 256,
        "block_size": 16,
        "num_gpu_blocks_override": 64,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 96,
        "enable_prefix_caching": True,
        "enforce_eager": True,
        "async_scheduling": False,
    }
    options = defaults | arguments
    config = EngineArgs(**{**options, "async_scheduling": False}).create_engine_config()
    change(config)
    core = EngineCore(
        forced(config, is_async=options["async_scheduling"]),
        token_executor.TokenExecutor,
        log_stats=True,
    )
    assert_scheduling(core, is_async=options["async_scheduling"])
    return core


def forced(config: Any, *, is_async: bool) -> Any:
    """The configuration with or without async scheduling, which vLLM's CPU platform turns off."""
    config.scheduler_config.async_scheduling = is_async
    return config


def assert_scheduling(core: Any, *, is_async: bool) -> None:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    assert isinstance(core.scheduler, AsyncScheduler) is is_async
    num_stages = core.vllm_config.parallel_config.pipeline_parallel_size
    assert (core.batch_queue is not None) is (is_async or num_stages > 1)


class SchedulerSpy:
    """Records the calls of a scheduler: what `allocate_slots` was called with, the requests that it
    found no blocks for, the batch whose outputs have arrived, and lookups in the prefix cache.

    It wraps the classes, and before the adapter wraps the instances.
    """

    def __init__(self, scheduler: Any) -> None:
        self.refused: list[str] = []
        self.num_running = 0
        self.preempted: set[str] = set()
        self.num_schedules = self.num_updates = 0
        self.is_ahead = False
        """True if a step was scheduled before the outputs of the one before."""
        self.output: Any = None
        """The `SchedulerOutput` of the last batch whose outputs have arrived."""
        self.batch: dict[str, int] = {}
        """The tokens of each request in the last batch whose outputs have arrived."""
        self.cached: dict[str, tuple[int, int]] = {}
        """By request, the tokens that its last admission began with, and those of a connector."""
        self.prefix = [0, 0]
        """The queries and hits of vLLM's own statistics of the prefix cache."""
        self.examined: set[str] | None = None
        """The waiting requests that the last call of `schedule` has examined, if that is known."""
        self.names: dict[str, str] = {}
        """The names of requests in the viewer, if they are not those of `name`."""
        self.ended: dict[str, tuple[str, list[int]]] = {}
        """The status and the output of ended requests, by name."""
        self._loading: dict[str, int] = {}
        from vllm.v1.metrics.stats import PrefixCacheStats

        manager, scheduler_class = type(scheduler.kv_cache_manager), type(scheduler)
        self._patch = pytest.MonkeyPatch()  # which also restores what a class inherits
        allocate, schedule, update, free = (
            manager.allocate_slots,
            scheduler_class.schedule,
            scheduler_class.update_from_output,
            scheduler_class._free_request,
        )
        signature = inspect.signature(allocate)  # versions pass the same by position or by name
        batches: dict[int, dict[str, int]] = {}

        @functools.wraps(allocate)
        def allocated(this: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            is_waiting = request.status.name != "RUNNING"
            num_computed, request_id = request.num_computed_tokens, request.request_id
            result = allocate(this, request, *args, **kwargs)
            if this is not scheduler.kv_cache_manager:
                return result
            if result is None:
                self.refused.append(request_id)
            elif is_waiting:
                given = signature.bind(this, request, *args, **kwargs).arguments
                external = given.get("num_external_computed_tokens", 0)
                if given.get("delay_cache_blocks"):
                    self._loading[request_id] = external
                else:
                    loaded = external or self._loading.pop(request_id, 0)
                    found = given.get("num_new_computed_tokens", 0) + external
                    # Of a load that has failed, some tokens were not loaded.
                    total = num_computed + found
                    self.cached[request_id] = total, min(loaded, total)
            return result

        @functools.wraps(schedule)
        def scheduled(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is scheduler:
                self.refused = []
                if self.examined is not None:
                    self.examined = set()
            output = schedule(this, *args, **kwargs)
            if this is scheduler:
                batches[id(output)] = {
                    self.name(request_id): num_tokens
                    for request_id, num_tokens in output.num_scheduled_tokens.items()
                }
                self.num_schedules += 1
                self.is_ahead |= self.num_schedules > self.num_updates + 1
                self.preempted = set(output.preempted_req_ids or ())
                # A session that waits for input keeps its place.
                self.num_running = len(this.running) + (
                    this.num_waiting_for_streaming_input
                    if hasattr(this, "max_num_active_reqs")
                    else 0
                )
            return output

        @functools.wraps(update)
        def updated(this: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
            if this is scheduler:
                self.num_updates += 1
                self.output = output
                self.batch = batches.pop(id(output))
            return update(this, output, *args, **kwargs)

        @functools.wraps(free)
        def freed(this: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            if this is scheduler:
                ended = request.status.name, list(request.output_token_ids)
                self.ended[self.name(request.request_id)] = ended
            return free(this, request, *args, **kwargs)

        record = PrefixCacheStats.record

        @functools.wraps(record)
        def recorded(
            this: Any, num_tokens: int, num_hits: int, preempted: bool, *args: Any, **kwargs: Any
        ) -> None:
            if this is scheduler.kv_cache_manager.prefix_cache_stats and not preempted:
                self.prefix[0] += num_tokens
                self.prefix[1] += num_hits
            record(this, num_tokens, num_hits, preempted, *args, **kwargs)

        self._patch.setattr(manager, "allocate_slots", allocated)
        self._patch.setattr(scheduler_class, "schedule", scheduled)
        self._patch.setattr(scheduler_class, "update_from_output", updated)
        self._patch.setattr(scheduler_class, "_free_request", freed)
        self._patch.setattr(PrefixCacheStats, "record", recorded)
        if hasattr(scheduler_class, "_handle_blocked_waiting_request"):
            examine = scheduler_class._handle_blocked_waiting_request
            self.examined = set()

            @functools.wraps(examine)
            def examined(this: Any, request: Any) -> Any:
                if this is scheduler and self.examined is not None:
                    self.examined.add(request.request_id)
                return examine(this, request)

            self._patch.setattr(scheduler_class, "_handle_blocked_waiting_request", examined)
        fits = getattr(manager, "can_fit_full_sequence", None)
        if fits is None:
            return

        @functools.wraps(fits)
        def fitted(this: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            result = fits(this, request, *args, **kwargs)
            if this is scheduler.kv_cache_manager and not result:
                self.refused.append(request.request_id)
            return result

        self._patch.setattr(manager, "can_fit_full_sequence", fitted)

    def name(self, request_id: str) -> str:
        """The name in the viewer: without the characters that stand for the random ones."""
        return self.names.get(request_id, request_id[:-9])

    def close(self) -> None:
        self._patch.undo()


def new_request(name: str, prompt: list[int], *, max_tokens: int = 20, **more: Any) -> Any:
    """A request as vLLM's front end sends it."""
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    options = {"temperature": 0, "ignore_eos": True, "detokenize": False}
    params = more.pop("params", None) or SamplingParams(max_tokens=max_tokens, **options)
    fields: dict[str, Any] = {
        "request_id": f"{name}-00000000",
        "external_req_id": name,
        "prompt_token_ids": prompt,
        "mm_features": None,
        "sampling_params": params,
        "pooling_params": None,
        "arrival_time": time.time(),
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
        **more,
    }
    known = EngineCoreRequest.__struct_fields__
    if "eos_token_id" in known:
        fields.setdefault("eos_token_id", None)
    return EngineCoreRequest(**{name: value for name, value in fields.items() if name in known})


class SteppedEngine(SteppedViewer):
    """An EngineCore and its viewer."""

    def __init__(self, core: Any, session: Session, watch: Watch, spy: SchedulerSpy) -> None:
        super().__init__(session, watch)
        self.core = core
        self.scheduler = core.scheduler
        self.is_queue_known = True
        """False if the scheduler does not keep to the order that its policy promises."""
        self.graph: Callable[[Any], tuple[str, int, int] | None] = lambda output: None
        """Returns the CUDA graph of the step with this `SchedulerOutput`."""
        self.encoder: Callable[[Any], tuple[int, int] | None] = lambda output: None
        """Returns the encoder tokens of the step with this `SchedulerOutput`, and those in the
        cache that a request needs."""
        self.parents: dict[str, str] = {}
        """The internal id of the request that a sample belongs to, by that of the sample."""
        self._spy = spy

    def add(self, name: str, prompt: list[int], *, max_tokens: int = 20, **more: Any) -> None:
        """Adds a request. Its name in the viewer is `shown`; by default it is `name`."""
        shown = more.pop("shown", name)
        request = new_request(name, prompt, max_tokens=max_tokens, **more)
        self._spy.names[request.request_id] = shown
        self.core.add_request(*self.core.preprocess_add_request(request))

    def abort(self, name: str) -> None:
        self.core.abort_requests([f"{name}-00000000"])

    def step(self) -> None:
        """Make a step, and compare what the viewer shows after it with what is true.

        With async scheduling, a call that only schedules publishes nothing.
        """
        num_updates = self._spy.num_updates
        _, ran = self.core.step_fn()
        post = getattr(self.core, "post_step", None)
        if post is not None:
            post(ran)
        if self.core.batch_queue is None or self._spy.num_updates > num_updates:
            self.compare()

    def run(self, most: int = 2_000) -> None:
        for _ in range(most):
            if not self.scheduler.has_requests() and not self.core.batch_queue:
                return
            self.step()
        raise AssertionError("it does not end")

    def is_late(self) -> bool:
        return self.session.state.step < self._spy.num_updates - 1

    def excuse(self, shown: dict[str, Any], truth: dict[str, Any]) -> None:
        if not self.is_queue_known:
            shown["waiting"] = truth["waiting"]

    @property
    def not_available(self) -> dict[str, str]:
        """The columns that the viewer knows to be not available, with the reasons."""
        self.session.wait_until(lambda: self.session.state.info is not None, SECONDS)
        info = self.session.state.info
        assert info is not None
        return info.not_available

    def truth(self) -> dict[str, Any]:
        scheduler, name = self.scheduler, self._spy.name
        manager = scheduler.kv_cache_manager
        blocks = [block for block in manager.block_pool.blocks if not block.is_null]
        free = [block for block in blocks if not block.ref_cnt]
        num_free = sum(block.block_hash is None for block in free)
        pool: dict[str, int | None] = {"free": num_free, "cached": len(free) - num_free}
        if "cached_blocks" in self.not_available:
            pool = {"free": len(free), "cached": None}
        return {
            "requests": {
                name(request.request_id): {
                    "status": request.status.name,
                    # Without drafts in flight, which are no tokens of the request yet.
                    "computed": min(request.num_computed_tokens, request.num_tokens),
                    "tables": [list(table) for table in manager.get_block_ids(request.request_id)]
                    if not request.is_finished() or request.request_id in manager_tables(manager)
                    else [],
                    "prompt": list(request.prompt_token_ids or []),
                    "output": list(request.output_token_ids),
                    "preemptions": request.num_preemptions,
                    "priority": request.priority,
                    "lora": request.lora_request.lora_name if request.lora_request else "",
                    "parent": self.parents.get(request.request_id, ""),
                    "cached": self._spy.cached[request.request_id]
                    if request.status.name == "RUNNING"
                    else None,
                }
                for request in scheduler.requests.values()
            },
            "running": {name(request.request_id) for request in scheduler.running},
            "waiting": [name(request.request_id) for request in waiting_requests(scheduler)],
            "prefix": self._spy.prefix,
            "loras": len(
                {
                    request.lora_request.lora_int_id
                    for request in scheduler.running
                    if request.lora_request
                }
            )
            if scheduler.lora_config
            else None,
            "graph": self.graph(self._spy.output),
            "encoder": self.encoder(self._spy.output),
            **pool,
            "used": len(blocks) - len(free),
            "batch": self._spy.batch,
            "tokens": sum(self._spy.batch.values()),
        }

    def shown(self) -> dict[str, Any] | None:
        state = self.session.state
        if state.stats is None:
            return None
        rows = self.rows(state)
        return {
            "requests": {
                name: {
                    "status": sequence.engine_status or sequence.status.name,
                    "computed": sequence.num_computed_tokens,
                    "tables": self._in_order(
                        [sequence.block_table.copy(), *sequence.group_block_tables]
                    ),
                    "prompt": list(request.prompt_token_ids),
                    "output": list(sequence.output_token_ids),
                    "preemptions": request.num_preemptions,
                    "priority": request.priority,
                    "lora": request.lora,
                    "parent": request.parent_request_id,
                    "cached": (sequence.num_cached_tokens, sequence.num_external_tokens)
                    if sequence.status is SequenceStatus.RUNNING
                    else None,
                }
                for name, (request, sequence) in rows.items()
            },
            **self.shown_queues(rows),
            "prefix": [state.stats.prefix_cache_queries, state.stats.prefix_cache_hits],
            "loras": state.stats.num_used_loras,
            "graph": None
            if (graph := state.stats.cuda_graph) is None
            else (graph.mode, graph.num_tokens, graph.num_padded_tokens),
            "encoder": None
            if (num_tokens := state.stats.num_encoder_tokens) is None
            else (num_tokens, state.stats.num_used_encoder_slots),
            "free": state.stats.num_free_blocks,
            "cached": state.stats.num_cached_blocks,
            "used": state.stats.num_used_blocks,
        }

    def _in_order(self, tables: list[list[int]]) -> list[list[int]]:
        """The tables in vLLM's order of groups, of which the viewer has the main one first."""
        num = len(self.scheduler.kv_cache_config.kv_cache_groups)
        tables = tables + [[] for _ in range(num - len(tables))]
        from seqtop.adapters.vllm.engine_description import describe

        main = describe(self.scheduler, PublisherSettings(bind=""))[1].main_group
        return [*tables[1 : main + 1], tables[0], *tables[main + 1 :]]

    def compare_reasons(self, given: dict[str, str]) -> None:
        """A reason of no blocks is one where `allocate_slots` has failed, and the reverse."""
        if "why" in self.not_available:
            if not {"unknown"}.issuperset(given.values()):
                self.differ(f"reasons {given} are not known")
            return
        waiting = [request.request_id for request in waiting_requests(self.scheduler)]
        refused = [request_id for request_id in self._spy.refused if request_id in waiting]
        # Those that no longer wait ran after others had been preempted for them.
        no_blocks = {request_id for request_id, cause in given.items() if cause == "no_blocks"}
        if (no_blocks and not self._spy.refused) or not no_blocks.issuperset(
            self._spy.name(request_id) for request_id in refused[:1] if not self._spy.preempted
        ):
            self.differ(f"reasons {given}, no blocks found for {self._spy.refused}")
        running, most = self._spy.num_running, self.scheduler.max_num_running_reqs
        if "seq_limit" in given.values() and running < most:
            self.differ(f"{running} of {most} run, {given}")
        if self._spy.examined is not None:
            examined = {self._spy.name(request_id) for request_id in self._spy.examined}
            skipped = {name for name, cause in given.items() if cause == "lora_slots"}
            if not skipped <= examined:
                self.differ(f"{skipped - examined} not examined")

    def ends(self) -> Iterator[tuple[str, str, list[int]]]:
        for name, (status, output) in self._spy.ended.items():
            yield name, status, output


def waiting_requests(scheduler: Any) -> list[Any]:
    """The waiting requests in the order in which the scheduler examines them."""
    holding, *others = [getattr(scheduler, name, ()) for name in QUEUES]
    if scheduler.policy.value == "priority":  # it compares the first ones of both queues
        return [*holding, *heapq.merge(*others)]
    return [request for queue in (holding, *others) for request in queue]


def manager_tables(manager: Any) -> set[str]:
    return {
        name
        for single_type_manager in manager.coordinator.single_type_managers
        for name, blocks in single_type_manager.req_to_blocks.items()
        if blocks
    }


@contextmanager
def stepped(core: Any, rules: Collection[str] = ()) -> Iterator[SteppedEngine]:
    """A viewer of an EngineCore, in which `seqtop check` finds something by these rules alone."""
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        spy = SchedulerSpy(core.scheduler)
        attachment = follow(core.scheduler, PublisherSettings(bind=endpoint, tokenizer=""))
        assert attachment is not None
        with watched(endpoint) as (session, watch):
            engine = SteppedEngine(core, session, watch, spy)
            try:
                yield engine
                assert attachment.is_attached
                assert spy.is_ahead is (core.batch_queue is not None)
                attachment.close("the test has ended")  # now the last steps arrive, too
                engine.end()
                engine.assert_found(rules)
            finally:
                spy.close()
        core.shutdown()
