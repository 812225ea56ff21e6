"""The worker: holds a stage of the model and its part of the KV cache, and runs steps."""

from __future__ import annotations

import torch

from engine_stub.config import EngineConfig
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import WHOLE
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.pooler import Pooler
from engine_stub.model_executor.stages import PipelineComm, Stage
from engine_stub.platforms import platform_of
from engine_stub.spec_decode.draft_head import DraftHeadProposer, load_draft_head
from engine_stub.spec_decode.ngram import NgramProposer
from engine_stub.spec_decode.speculation import Proposer, Speculator
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.memory_profile import run_largest_steps
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.model_runner import ModelRunner
from engine_stub.worker.multi_step import run_steps
from engine_stub.worker.pool_sizes import bytes_per_block
from engine_stub.worker.sent_groups import update_group
from engine_stub.worker.step_graphs import StepGraphs
from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceGroupMetadata,
)


class Worker:
    """Runs steps on one device. It keeps a copy of each group and updates it from deltas.

    Call `initialize_cache` before the first step.

    Args:
        config: The engine's settings, all resolved but the sizes of the pools.
        model_config: The shape of the model that `config` names.
        stage: The part of the model to run.
        pipeline_comm: Communication with the other stages; None if there is one stage.

    Raises:
        FileNotFoundError, UnsupportedModel, WeightsError: See `load_model`.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        stage: Stage = WHOLE,
        pipeline_comm: PipelineComm | None = None,
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.layers = stage.layers(model_config.num_hidden_layers)
        self.pipeline_comm = pipeline_comm
        self.device = torch.device(config.device)
        self.platform = platform_of(self.device)
        self.platform.activate(self.device)
        self.dtype = getattr(torch, config.dtype)
        self.model = load_model(
            config.model,
            device=self.device,
            dtype=self.dtype,
            stage=stage,
            embeds=config.speculative == "draft-head" and stage.is_last,
        )
        self.proposer = self._proposer()
        self.seq_groups: dict[str, SequenceGroupMetadata] = {}

    def determine_num_available_blocks(self) -> int:
        """Returns the number of blocks that the device's memory has room for, at least 1.

        Raises:
            ValueError: There is no room for any.
        """
        cache = self._cache(1)
        available = self.platform.kv_pool_bytes(
            self.device,
            lambda: run_largest_steps(self.model, cache, self.config, self._max_model_len),
            self.config.gpu_memory_utilization,
        )
        # One block more is allocated: the scratch block, which padding rows write to.
        per_block = bytes_per_block(self.config, self.model_config, len(self.layers))
        num_blocks = available // per_block - 1
        if num_blocks < 1:
            raise ValueError(
                f"{self.device} has no room for a KV pool beside the model and what others use, if"
                f" {self.config.gpu_memory_utilization:.0%} of its memory may be in use; choose a"
                " smaller model, fewer max_num_batched_tokens, or more gpu_memory_utilization"
            )
        return num_blocks

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocates the KV pool, and the pool in host memory to swap to."""
        self.cache = self._cache(num_gpu_blocks, num_cpu_blocks)
        longest = min(-(-self._max_model_len // self.config.block_size), num_gpu_blocks)
        block_tables = DeviceBlockTables(self.config.max_num_seqs, longest, self.device)
        graphs = None
        if not self.cache.kernels.has_whole_tiles and not self.config.enforce_eager:
            graphs = StepGraphs(
                self.model,
                self.cache,
                block_tables,
                self.config.max_num_seqs,
                self.config.max_num_batched_tokens,
                self.config.num_draft_tokens,
            )
        speculator = None
        if self.config.speculative is not None:
            speculator = Speculator(self.proposer, self.pipeline_comm)
        self.model_runner = ModelRunner(
            self.model,
            self.cache,
            block_tables,
            self.config.seed,
            Pooler(self.config.pooling_type, normalize=self.config.pooling_normalize),
            self.pipeline_comm,
            speculator,
            graphs,
        )

    def close(self) -> None:
        """Does nothing; the counterpart of `Pipeline.close`."""

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Moves blocks, then runs a step.

        Raises:
            SequenceError: A delta does not fit the group that was sent before.
            KeyError: A delta came for a group that was not sent in full.
        """
        for request_id in execute_model_req.finished_requests_ids:
            # A group that was aborted while it waited was never sent.
            self.seq_groups.pop(request_id, None)
            self.model_runner.remove_request(request_id)
        # In this order: blocks that are swapped out may be given to others in the same step.
        self.cache.swap_out(execute_model_req.blocks_to_swap_out)
        self.cache.swap_in(execute_model_req.blocks_to_swap_in)
        self.cache.copy_blocks(execute_model_req.blocks_to_copy)
        groups = [
            update_group(self.seq_groups, sent)
            for sent in execute_model_req.seq_group_metadata_list
        ]
        if self.config.speculative is not None:
            for group in groups:
                if group.state is not None:
                    group.num_speculative_tokens = group.state.num_steps - 1
        if execute_model_req.num_steps > 1:
            return run_steps(self.model_runner, groups)
        return self.model_runner.execute_model(groups)

    @property
    def _max_model_len(self) -> int:
        """The longest sequence that the model and the settings allow, in tokens."""
        return self.config.max_model_len or self.model_config.max_position_embeddings

    def _cache(self, num_blocks: int, num_cpu_blocks: int = 0) -> PagedKVCache:
        return PagedKVCache(
            len(self.layers),
            num_blocks,
            self.model_config.num_key_value_heads,
            self.config.block_size,
            self.model_config.head_dim,
            device=self.device,
            dtype=self.dtype,
            windows=self.model_config.layer_windows[self.layers.start : self.layers.stop],
            num_cpu_blocks=num_cpu_blocks,
            heads_per_kv=self.model_config.num_attention_heads
            // self.model_config.num_key_value_heads,
        )

    def _proposer(self) -> Proposer | None:
        """Returns the source of drafts; None without speculation and in all stages but the last."""
        if self.config.speculative is None or not self.model.stage.is_last:
            return None
        if self.config.speculative == "ngram":
            return NgramProposer()
        size = self.model_config.hidden_size
        head = load_draft_head(self.config.model, size, device=self.device, dtype=self.dtype)
        return DraftHeadProposer(head, self.model)
