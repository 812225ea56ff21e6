"""An executor for vLLM's V1 engine that runs no model: it makes tokens up.

Everything above it is vLLM's own: AsyncLLM, the EngineCore process, the scheduler, the block pool
and its prefix cache. vLLM imports this module in the EngineCore process too, and with it what
`SPY_FILE`, `KV_SPY_FILE` and `INJECT_FAULT` ask for.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from typing import Any

import injected_fault
import kv_spy
import spy
import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0.001"))
FIRST_TOKEN, NUM_TOKENS = 300, 1_500
POOL_BYTES = 1 << 22
KV_CACHE_SPECS: dict[str, Any] | None = None
"""The specification of the KV cache by layer; by default one layer of full attention."""

if os.environ.get("SPY_FILE"):
    spy.install(os.environ["SPY_FILE"])
if os.environ.get("KV_SPY_FILE"):
    kv_spy.install(os.environ["KV_SPY_FILE"])
if os.environ.get("INJECT_FAULT"):
    injected_fault.install(int(os.environ["INJECT_FAULT"]))


def token(request_id: str, position: int) -> int:
    """The token of a request at a position: the same again when it is computed again."""
    return FIRST_TOKEN + (sum(request_id.encode()) + position * 7) % NUM_TOKENS


class TokenExecutor(Executor):
    """Knows only how many tokens each request has, which tells when one is due."""

    supports_pp = False

    def _init_executor(self) -> None:
        self._num_known: dict[str, int] = {}
        """By request: its tokens, those made up here included."""
        self._results: list[ModelRunnerOutput] = []
        self._drafts: DraftTokenIds | None = None
        # Once: vLLM's CPU platform changes it again when EngineCore has been created.
        is_async = self.vllm_config.scheduler_config.async_scheduling
        num_stages = self.vllm_config.parallel_config.pipeline_parallel_size
        self._num_concurrent_batches = max(2 if is_async else 1, num_stages)

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    @property
    def max_concurrent_batches(self) -> int:
        return self._num_concurrent_batches

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def determine_available_memory(self) -> list[int]:
        return [POOL_BYTES]

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        if KV_CACHE_SPECS is not None:
            return [KV_CACHE_SPECS]
        block_size = self.vllm_config.cache_config.block_size
        spec = FullAttentionSpec(
            block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        return [{"layer": spec}]

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        time.sleep(STEP_SECONDS)
        result = self._run(scheduler_output)
        if not (self.max_concurrent_batches > 1 and scheduler_output.total_num_scheduled_tokens):
            return _at_once(result) if non_block else result
        self._results.append(result)  # fetched by `sample_tokens`
        return _at_once(None) if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        result = self._results.pop(0)
        return InFlight(result) if non_block else result

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        drafts, self._drafts = self._drafts, None
        return drafts

    def _run(self, scheduler_output: Any) -> ModelRunnerOutput:
        for request_id in scheduler_output.finished_req_ids:  # first: an id may be new again
            self._num_known.pop(request_id, None)
        cached = scheduler_output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in scheduler_output.scheduled_new_reqs:
            known = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            self._num_known[new.req_id] = len(known)
            computed[new.req_id] = new.num_computed_tokens
        for request_id, token_ids in cached.all_token_ids.items():
            self._num_known[request_id] = len(token_ids)
        drafted = scheduler_output.scheduled_spec_decode_tokens
        sampled = [
            self._sample(request_id, computed[request_id] + count, len(drafted.get(request_id, ())))
            for request_id, count in scheduler_output.num_scheduled_tokens.items()
        ]
        request_ids = list(scheduler_output.num_scheduled_tokens)
        if self.vllm_config.speculative_config is not None:
            due = [name for name, ids in zip(request_ids, sampled, strict=True) if ids]
            self._drafts = DraftTokenIds(due, [[1, 2] for _ in due])
        return ModelRunnerOutput(
            kv_connector_output=self._kv_connector_output(),
            req_ids=request_ids,
            req_id_to_index={name: index for index, name in enumerate(request_ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _kv_connector_output(self) -> Any:
        """The actions of the worker's side of `kv_connector`."""
        if self.vllm_config.kv_transfer_config is None:
            return None
        import kv_connector
        from vllm.v1.outputs import KVConnectorOutput

        output = KVConnectorOutput(
            finished_recving=set(kv_connector.LOADED),
            finished_sending=set(kv_connector.SENT),
            invalid_block_ids=set(kv_connector.INVALID),
        )
        kv_connector.forget()
        return output

    def _sample(self, request_id: str, num_computed: int, num_drafted: int) -> list[int]:
        """Every second draft is accepted; a chunk that is not a prefill's last samples nothing."""
        known = self._num_known[request_id]
        if num_computed - num_drafted < known:
            return []
        count = 1 + (num_drafted + known % 2) // 2
        self._num_known[request_id] = known + count
        return [token(request_id, known + index) for index in range(count)]

    def collective_rpc(
        self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None, **more: Any
    ) -> Any:
        layouts = [["NHD"]]
        if method == "get_supported_kv_cache_layouts":
            try:
                from vllm.v1.kv_cache_layout import KVCacheLayout
            except ImportError:
                return layouts
            return [[layout.name for layout in KVCacheLayout]]
        answer = [("generate",)] if method == "get_supported_tasks" else [None]
        return _at_once(answer) if more.get("non_block") else answer

    def initialize_from_config(self, kv_cache_configs: Any) -> None: ...

    def compile_or_warm_up_model(self) -> None: ...

    def set_kv_cache_layout(self, *args: Any, **kwargs: Any) -> None: ...

    def check_health(self) -> None: ...

    def shutdown(self) -> None: ...


class InFlight(Future[Any]):
    """A result that is there only when it is waited for.

    vLLM up to 0.15 takes a result that is there before it schedules the next step.
    """

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._later = result

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.set_result(self._later)
        return super().result(timeout)


def _at_once(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future
