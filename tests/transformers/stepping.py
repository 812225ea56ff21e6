"""A real ContinuousBatchingManager that is stepped by hand, and a viewer that is compared.

Nothing of transformers' is replaced; the model has two layers and random weights. The comparison
reads the processor itself, block by block, which the adapter must not do.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.continuous_batching import (
    continuous_api,
    input_outputs,
    model_runner,
    offloading_manager,
)

from seqtop.adapters.transformers.hook import follow
from seqtop.checks.thresholds import Thresholds
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state.model import SequenceState
from tests.support.watch import SteppedViewer, Watch, watched

THRESHOLDS = Thresholds(stalled_seconds=1e-6, overtaken_seconds=1e-6)
"""Of those with a unit of time, none is left to the speed of the machine."""
TRUE_FINDINGS = {"preempt-gains-nothing", "thrash", "overtaken", "recomputes"}
"""Rules by which `seqtop check` finds what transformers does: it offloads requests whose blocks
others hold, too, or that have gained nothing since the last time, and admits later requests that
fit before one that does not. On a slow machine, steps last so long that it also finds how many
tokens are computed again."""
VOCABULARY = 512

os.environ["SEQTOP_TOKENIZER"] = ""


def make_model(*, kinds: str = "ff", window: int = 24) -> Any:
    """A model with random weights. `kinds` has a letter for each layer: full or sliding."""
    torch.manual_seed(0)
    names = {"f": "full_attention", "s": "sliding_attention"}
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": len(kinds),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    }
    if kinds == "f" * len(kinds):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).eval()
    config = transformers.Gemma2Config(
        **shape,
        head_dim=16,
        sliding_window=window,
        layer_types=[names[kind] for kind in kinds],
        attn_implementation="eager",
    )
    return transformers.Gemma2ForCausalLM(config).eval()


def make_manager(model: Any, *, samples: int = 1, eos: int = -1, **options: Any) -> Any:
    """A manager with a small pool, which has not been started."""
    config: dict[str, Any] = {
        "page_size": 16,
        "num_blocks": 24,
        "max_batch_tokens": 64,
        "use_async_batching": False,
        **options,
    }
    generation = GenerationConfig(
        max_new_tokens=24,
        do_sample=samples > 1,
        num_return_sequences=samples,
        eos_token_id=eos,
        pad_token_id=0,
    )
    return model.init_continuous_batching(
        generation_config=generation,
        continuous_batching_config=ContinuousBatchingConfig(**config),
    )


class _Stream:
    """A stream or an event of a device that computes at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record_event(self, *_: Any) -> None: ...
    def wait_event(self, *_: Any) -> None: ...
    def synchronize(self) -> None: ...


def allow_without_gpu(patch: pytest.MonkeyPatch) -> None:
    """Lets transformers batch asynchronously and offload to host memory on a processor.

    Both need CUDA only for streams and for pinned memory.
    """
    empty = torch.empty

    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return empty(*args, **kwargs)

    patch.setattr(torch, "empty", unpinned)
    patch.setattr(torch, "Event", _Stream)
    patch.setattr(
        input_outputs.ContinuousBatchingAsyncIOs,
        "_supported_device_types",
        ("cpu",),
        raising=False,
    )
    for module in (continuous_api, input_outputs, model_runner, offloading_manager):
        if hasattr(module, "stream_context"):
            patch.setattr(module, "stream_context", lambda _: nullcontext())
        if hasattr(module, "create_device_stream"):
            patch.setattr(module, "create_device_stream", _Stream)


class ProcessorSpy:
    """Records the calls of a processor.

    It wraps the classes, and before the adapter wraps the instances.
    """

    def __init__(self, processor: Any) -> None:
        self.batches: list[dict[str, int]] = []
        """The tokens of each request in the batches whose outputs have not been processed."""
        self.batch: dict[str, int] = {}
        self.refused: list[str] = []
        """The waiting requests for which the last call of `schedule_batch` found no blocks."""
        self.num_updates = 0
        self.preemptions: Counter[str] = Counter()
        self.num_swaps = 0
        self.cached: dict[str, int] = {}
        """By request, the tokens found in the prefix cache when it became active."""
        self.parents: dict[str, str] = {}
        self.ended: dict[str, tuple[str, list[int]]] = {}
        self.num_replaced = 0
        """Blocks that were replaced by equal ones."""
        self.swapped_at_once: dict[str, bool] = {}
        """By request, whether it became active in the step that offloaded it to host memory."""
        self._active: set[str] = set()
        """Active requests after the last update."""
        self.is_in_margin = True
        self.left_out: dict[str, str] = {}
        """The active requests that are not in the last batch, although it has room."""
        self._looked_at: set[str] = set()
        self._patch = pytest.MonkeyPatch()
        scheduler, cache = type(processor.scheduler), type(processor.cache)
        scheduler_of = processor.scheduler

        def wrap(owner: Any, name: str, after: Any, before: Any = None) -> None:
            original = getattr(owner, name)

            @functools.wraps(original)
            def wrapper(this: Any, *args: Any, **kwargs: Any) -> Any:
                held = before(*args) if before else None
                result = original(this, *args, **kwargs)
                after(held, result, *args)
                return result

            self._patch.setattr(owner, name, wrapper)

        def looked_at(_: Any, __: Any, state: Any, *___: Any) -> None:
            self._looked_at.add(state.request_id)

        def began(*_: Any) -> None:
            self.refused.clear()
            self._looked_at.clear()

        def scheduled(_: Any, result: Any, token_budget: int, cache_budget: int) -> None:
            has_room = (
                result[2] < token_budget
                and len(result[0] or ()) < scheduler_of.max_requests_per_batch
            )
            left_out = scheduler_of.active_requests.keys() - {
                one.state.request_id for one in result[0] or ()
            }
            is_over = result[3] >= cache_budget and not result[1]
            self.left_out = {
                name: "READ_BUDGET" if name in self._looked_at or is_over else "SAFETY_MARGIN"
                for name in (left_out if has_room else ())
            }
            waiting = scheduler_of.waiting_requests
            self.refused = [request_id for request_id in self.refused if request_id in waiting]
            if result[0]:
                self.batches.append(
                    {
                        one.state.request_id: one.query_length
                        for one in result[0]
                        if one.query_length
                    }
                )

        def stored(_: Any, fits: bool, state: Any, *__: Any) -> None:
            if not fits:
                self.refused.append(state.request_id)

        def measured(_: Any, is_in_margin: bool) -> None:
            self.is_in_margin = is_in_margin

        def matched(_: Any, num_tokens: int, request_id: str, *__: Any) -> None:
            self.cached[request_id] = num_tokens

        def offloaded(before: dict[str, Any], *_: Any) -> None:
            for request_id in before.keys() - scheduler_of.active_requests.keys():
                self.preemptions[request_id] += 1
                if scheduler_of.waiting_requests[request_id].is_cpu_offloaded:
                    self.num_swaps += 1
                    self.swapped_at_once[request_id] = request_id not in self._active

        def forked(_: Any, __: Any, source: Any, request_ids: list[str], *___: Any) -> None:
            for request_id in request_ids:
                self.parents[request_id] = source.request_id
                self.cached[request_id] = 0

        def marked(before: list[int], _: Any, request_id: str, *__: Any) -> None:
            (allocator,) = processor.cache.cache_allocators.values()
            table = allocator.block_table[request_id]
            self.num_replaced += sum(one != two for one, two in zip(before, table, strict=True))

        def table(request_id: str, *_: Any) -> list[int]:
            (allocator,) = processor.cache.cache_allocators.values()
            return list(allocator.block_table[request_id])

        def updated(*_: Any) -> None:
            self.num_updates += 1
            self.batch = self.batches.pop(0)
            self._active = set(scheduler_of.active_requests)

        def delivered(_: Any, __: Any, output: Any) -> None:
            self.ended[output.request_id] = output.status.name, list(output.generated_tokens)

        wrap(scheduler, "schedule_batch", scheduled, before=began)
        wrap(scheduler, "_infer_request_tokens", looked_at)
        wrap(cache, "can_store_request_tokens", stored)
        wrap(scheduler, "_try_to_meet_safety_margin", measured)
        wrap(cache, "search_prefix_match", matched)
        wrap(cache, "prepare_fork_request", forked)
        wrap(
            type(processor.offloading_manager),
            "offload_requests",
            offloaded,
            before=lambda: dict(scheduler_of.active_requests),
        )
        if processor.cache.use_prefix_sharing:
            (allocator,) = processor.cache.cache_allocators.values()
            wrap(type(allocator), "mark_complete_blocks", marked, before=table)
        wrap(type(processor), "update_batch", updated)
        wrap(type(processor.output_router), "deliver", delivered)
        wrap(
            type(processor.output_router),
            "deliver_batch",
            lambda _, __, outputs: [
                delivered(None, None, output) for output in outputs if output.is_finished()
            ],
        )

    def close(self) -> None:
        self._patch.undo()


class SteppedEngine(SteppedViewer):
    """A manager without a thread, its processor, and their viewer."""

    def __init__(
        self, manager: Any, processor: Any, session: Session, watch: Watch, spy: ProcessorSpy
    ) -> None:
        super().__init__(session, watch)
        self.manager, self.processor = manager, processor
        self.scheduler = processor.scheduler
        self.spy = spy
        self.num_starved = 0
        self.unknown: set[str] = set()
        """Fields of requests that are not compared."""
        self._has_begun = False
        """True if the next batch is scheduled before the outputs of one."""
        self._names: dict[str, str] = {}
        """The names of requests in the viewer, if they are not their ids."""
        self._sector = processor.cache.bytes_per_sector

    def add(
        self, name: str, prompt: list[int], max_tokens: int = 24, shown: str | None = None
    ) -> None:
        """Adds a request. Its name in the viewer is `shown`; by default it is `name`."""
        self._names[name] = shown or name
        self.manager.add_request(prompt, request_id=name, max_new_tokens=max_tokens)

    def _name(self, request_id: str) -> str:
        return self._names.get(request_id, request_id)

    def cancel(self, name: str) -> None:
        self.manager.cancel_request(name)

    def step(self) -> None:
        """Make a step, and compare what the viewer shows after it with what is true."""
        num_updates = self.spy.num_updates
        is_first = self.processor.use_async_batching and not self._has_begun
        self._has_begun |= not self.manager._generation_loop_body(self.processor, is_first)
        if self.spy.num_updates > num_updates:
            self.compare()

    def run(self, most: int = 2_000) -> None:
        for _ in range(most):
            if self.manager.input_queue.empty() and not self.processor.has_pending_requests():
                return
            self.step()
        raise AssertionError("it does not end")

    def is_late(self) -> bool:
        return self.session.state.step < self.spy.num_updates - 1

    def excuse(self, shown: dict[str, Any], truth: dict[str, Any]) -> None:
        for name in self.unknown:
            for request in (*shown["requests"].values(), *truth["requests"].values()):
                request[name] = None
            shown["batch"] = truth["batch"]  # the step with it may have been in the gap

    def truth(self) -> dict[str, Any]:
        scheduler, cache = self.scheduler, self.processor.cache
        starved = {state.request_id for state, _ in scheduler.starved_requests}
        active, spy = scheduler.active_requests, self.spy
        states = {**active, **scheduler.waiting_requests}
        allocators = cache.cache_allocators.values()
        num_cached = sum(len(one.ledger.cached_blocks) * one.bytes_per_block for one in allocators)
        capacity = cache.pool.num_sectors * self._sector
        free = cache.compute_free_capacity(relative=False)

        def status(state: Any) -> str:
            if state.request_id in active:
                left_out = spy.left_out.get(state.request_id, "RUNNING")
                return "STARVED" if state.request_id in starved else left_out
            if state.is_cpu_offloaded:
                return "SWAPPED"
            return "PREEMPTED" if spy.preemptions[state.request_id] else "WAITING"

        def tokens(state: Any) -> tuple[list[int], list[int]]:
            output = state.to_generation_output()
            return output.prompt_ids, output.generated_tokens

        return {
            "requests": {
                self._name(name): {
                    "status": status(state),
                    "computed": state.position_offset,
                    "tables": {
                        kind: [block * one.bytes_per_block for block in one.block_table[name]]
                        for kind, one in cache.cache_allocators.items()
                        if one.block_table.get(name)
                    },
                    "tokens": tokens(state),
                    "preemptions": spy.preemptions[name],
                    "parent": spy.parents.get(name, ""),
                    "cached": spy.cached.get(name, 0) if name in active else None,
                }
                for name, state in states.items()
            },
            "running": set(map(self._name, active)),
            "waiting": [
                self._name(name)
                for name in dict.fromkeys(scheduler.waiting_requests_order)
                if not states[name].is_cpu_offloaded
            ],
            "free": free,
            "cached": num_cached,
            "used": capacity - free - num_cached,
            "batch": {self._name(name): num for name, num in spy.batch.items()},
            "tokens": sum(spy.batch.values()),
            "host": self._host(),
        }

    def _host(self) -> Any:
        manager = self.processor.offloading_manager
        if manager._cpu_pool is None or len(self.processor.cache.cache_allocators) > 1:
            return None
        blocks = manager._request_id_to_cpu_blocks
        return {
            self._name(name): list(*own.values())
            for name, own in blocks.items()
            if not self.spy.swapped_at_once[name]
        }

    def shown(self) -> dict[str, Any] | None:
        state, info = self.session.state, self.session.state.info
        if state.stats is None or info is None:
            return None
        cache = self.processor.cache
        num_sectors = cache.pool.num_sectors + cache.pool.num_reserved_sectors
        unit = num_sectors * self._sector // info.num_gpu_blocks
        rows = self.rows(state)
        kinds = info.kv_cache_groups or list(cache.cache_allocators)

        def tables(sequence: Any) -> dict[str, list[int]]:
            """The address of each block, by kind, from the viewer's blocks of one size."""
            own = dict(
                zip(kinds, [sequence.block_table, *sequence.group_block_tables], strict=False)
            )
            addresses: dict[str, list[int]] = {}
            for kind, one in cache.cache_allocators.items():
                if table := own.get(kind):
                    size = one.bytes_per_block
                    held = {block * unit for block in table}
                    if f"{kind}, rest" in own:
                        held |= {block * unit for block in own[f"{kind}, rest"]}
                    starts = [block * unit for block in table if block * unit % size == 0]
                    assert held == {
                        address for start in starts for address in range(start, start + size, unit)
                    }
                    addresses[kind] = starts
            return addresses

        return {
            "requests": {
                name: {
                    "status": sequence.engine_status or sequence.status.name,
                    "computed": sequence.num_computed_tokens,
                    "tables": tables(sequence),
                    "tokens": (list(request.prompt_token_ids), list(sequence.output_token_ids)),
                    "preemptions": request.num_preemptions,
                    "parent": request.parent_request_id,
                    "cached": sequence.num_cached_tokens
                    if sequence.status is SequenceStatus.RUNNING
                    else None,
                }
                for name, (request, sequence) in rows.items()
            },
            **self.shown_queues(rows),
            "free": state.stats.num_free_blocks * unit,
            "cached": (state.stats.num_cached_blocks or 0) * unit,
            "used": state.stats.num_used_blocks * unit,
            "host": {
                name: list(sequence.host_table)
                for name, (_, sequence) in rows.items()
                if sequence.host_table
            }
            if info.num_cpu_blocks is not None
            else None,
        }

    def compare_reasons(self, given: dict[str, str]) -> None:
        """A reason of no blocks is one where no blocks were found, and the reverse."""
        self.num_starved += len(self.scheduler.starved_requests)
        scheduler, spy = self.scheduler, self.spy
        missing = set(spy.refused) - given.keys()
        if missing:
            self.differ(f"{missing} found no blocks, {given}")
        batch = spy.batches[-1] if spy.batches else spy.batch
        for name, cause in given.items():
            is_true = {
                "no_blocks": name in spy.refused,
                "reserved_blocks": not spy.is_in_margin or sum(spy.preemptions.values()) > 0,
                "token_budget": sum(batch.values()) == self.processor.max_batch_tokens,
                "seq_limit": len(batch) == scheduler.max_requests_per_batch,
            }.get(cause, True)
            if not is_true:
                self.differ(f"{name} waits for {cause}")

    def ends(self) -> Iterator[tuple[str, str, list[int]]]:
        for name, (status, output) in self.spy.ended.items():
            yield self._name(name), status, output

    def ended_status(self, sequence: SequenceState) -> str:
        return sequence.engine_status or sequence.status.name.split("_")[0]


@contextmanager
def stepped(manager: Any) -> Iterator[SteppedEngine]:
    """A viewer of a manager, in which `seqtop check` finds nothing but what is true."""
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        manager.batch_processor = processor = manager._create_batch_processor()
        manager.current_batch = 0
        assert isinstance(processor, continuous_api.ContinuousBatchProcessor)
        spy = ProcessorSpy(processor)
        follow(manager, endpoint)
        assert manager._create_batch_processor() is processor  # as its thread does
        attachment = manager._seqtop_follower._attachment
        assert attachment is not None
        with watched(endpoint, THRESHOLDS) as (session, watch):
            engine = SteppedEngine(manager, processor, session, watch, spy)
            try:
                yield engine
                assert attachment.is_attached
                manager.background_thread_status.mark_as_stopped()
                engine.end()
                false = [one for one in watch.findings if one.rule not in TRUE_FINDINGS]
                # After a gap, a checker of its own would have to begin with the viewer's state.
                assert not false or engine.unknown, false[:3]
            finally:
                spy.close()
