"""The side of the engine that holds the model: it knows of requests what it is sent."""

from __future__ import annotations

import msgspec
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.metadata import snapshot
from engine_stub.model_executor.attention import PagedKVCache, choose_kernels
from engine_stub.model_executor.cpu.cpu_layers import use_cpu_layers
from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import WHOLE
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.pooler import Pooler
from engine_stub.model_executor.stages import PipelineComm, Stage
from engine_stub.platforms.cuda_graphs import DecodeGraphs
from engine_stub.platforms.memory_profile import available_bytes
from engine_stub.spec_decode.draft_head import DraftHeadProposer, load_draft_head
from engine_stub.spec_decode.ngram import NgramProposer
from engine_stub.spec_decode.speculation import Proposer, Speculator
from engine_stub.worker.model_runner import ModelOutput, ModelRunner
from engine_stub.worker.multi_step import run_steps
from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceGroupMetadata,
    SequenceGroupMetadataLike,
)

# Of memory that is everybody's.
_CPU_POOL_BYTES = 256 * 2**20


class Worker:
    """Runs steps. Keeps the groups it was sent in full, and brings them up to date by deltas.

    Call `initialize_cache` before the first step.

    Args:
        config: The engine's, with nothing left open but the size of the pool.
        model_config: Of the model that `config` names.
        stage: Which part of the model to run.
        neighbours: The parts before and after.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        stage: Stage = WHOLE,
        neighbours: PipelineComm | None = None,
    ) -> None:
        self.config = config
        self.model_config = model_config
        self.layers = stage.layers(model_config.num_hidden_layers)
        self.neighbours = neighbours
        self.device = torch.device(config.device)
        if self.device.type == "cuda":
            choose_kernels()
            if self.device.index is not None:
                # Events, streams and graphs belong to the device that is current.
                torch.cuda.set_device(self.device)
        self.dtype = getattr(torch, config.dtype)
        self.model = load_model(
            config.model,
            device=self.device,
            dtype=self.dtype,
            stage=stage,
            embeds=config.speculative == "draft-head" and stage.is_last,
        )
        self.proposer = self._proposer()
        if self.device.type == "cpu" and self.dtype is torch.float32:
            use_cpu_layers(self.model)
        self.seq_groups: dict[str, SequenceGroupMetadata] = {}

    def determine_num_available_blocks(self) -> int:
        """How many blocks the device's memory affords, at least 1.

        Raises:
            ValueError: It affords none.
        """
        per_block = PagedKVCache.bytes_per_block(
            len(self.layers),
            self.model_config.num_key_value_heads,
            self.config.block_size,
            self.model_config.head_dim,
            self.dtype,
        )
        if self.device.type == "cuda":
            available = available_bytes(
                self.model, self._cache(1), self.config, self._max_model_len
            )
        else:
            available = _CPU_POOL_BYTES
        num_blocks = available // per_block - 1  # and one for steps that are padded
        if num_blocks < 1:
            raise ValueError(
                f"{self.device} has no room for a KV pool beside the model; choose a smaller model,"
                " or fewer max_num_batched_tokens"
            )
        return num_blocks

    def initialize_cache(self, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocate the KV pool, and the one to swap to in host memory."""
        self.cache = self._cache(num_gpu_blocks, num_cpu_blocks)
        graphs = None
        if self.device.type == "cuda" and not self.config.enforce_eager:
            graphs = DecodeGraphs(
                self.model,
                self.cache,
                self.config.max_num_seqs,
                self._max_model_len,
                self.config.num_speculative_tokens if self.config.speculative else 0,
            )
        self.model_runner = ModelRunner(
            self.model,
            self.cache,
            self.config.seed,
            Pooler(self.config.pooling_type, normalize=self.config.pooling_normalize),
            self.neighbours,
            self._speculator(),
            graphs,
        )

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
        )

    @property
    def _max_model_len(self) -> int:
        """The longest sequence, but for what the pool has room for."""
        return self.config.max_model_len or self.model_config.max_position_embeddings

    def _speculator(self) -> Speculator | None:
        """Makes drafts, in the last stage; elsewhere it hears of them."""
        if self.config.speculative is None:
            return None
        return Speculator(self.proposer, self.neighbours)

    def _proposer(self) -> Proposer | None:
        if self.config.speculative is None or not self.model.stage.is_last:
            return None
        if self.config.speculative == "ngram":
            return NgramProposer()
        size = self.model_config.hidden_size
        head = load_draft_head(self.config.model, size, device=self.device, dtype=self.dtype)
        return DraftHeadProposer(head, self.model)

    def close(self) -> None:
        """Nothing is left to do: what a worker holds goes with it."""

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Move blocks, then run a step.

        Raises:
            SequenceError: A delta does not fit what was sent before.
            KeyError: A delta came of a group that was not sent in full.
        """
        for request_id in execute_model_req.finished_requests_ids:
            # One that was aborted while it waited was never sent.
            self.seq_groups.pop(request_id, None)
            self.model_runner.forget(request_id)
        moves = execute_model_req
        if moves.blocks_to_swap_out or moves.blocks_to_swap_in or moves.blocks_to_copy:
            self.model_runner.write_back()
        # In this order: blocks that are swapped out may be given to others in the same step.
        self.cache.swap_out(execute_model_req.blocks_to_swap_out)
        self.cache.swap_in(execute_model_req.blocks_to_swap_in)
        self.cache.copy_blocks(execute_model_req.blocks_to_copy)
        groups = [self._update(each) for each in execute_model_req.seq_group_metadata_list]
        if self.config.speculative is not None:
            for group in groups:
                if group.state is not None:
                    group.num_speculative_tokens = group.state.num_steps - 1
        if execute_model_req.num_steps > 1:
            return run_steps(self.model_runner, groups)
        return self.model_runner.execute_model(groups)

    def _update(self, sent: SequenceGroupMetadataLike) -> SequenceGroupMetadata:
        """The group as it is now, after a full (also when recomputed) or a delta."""
        if isinstance(sent, SequenceGroupMetadata):
            # Deltas will change it, and the request is not ours to change.
            seq_data = {seq_id: snapshot(data) for seq_id, data in sent.seq_data.items()}
            group = msgspec.structs.replace(sent, seq_data=seq_data)
            self.seq_groups[sent.request_id] = group
        else:
            group = self.seq_groups[sent.request_id]
            group.apply_delta(sent)
            group.state = sent.state  # which deltas leave alone
        return group


def resolve_device(name: str) -> str:
    """The device to run on; "auto" prefers CUDA.

    Raises:
        ValueError: There is no such device here.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device must be auto, cpu or cuda, got {name!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch sees no CUDA device")
    if kind == "cuda" and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name} was asked for, but torch sees {torch.cuda.device_count()} of them"
        )
    return name


def resolve_dtype(name: str, device: str, model_config: ModelConfig) -> str:
    """The dtype to run in; "auto" is float32 on a CPU and the checkpoint's own on CUDA.

    Raises:
        ValueError: torch has no floating-point type of this name.
    """
    if name == "auto":
        name = model_config.torch_dtype if device.startswith("cuda") else "float32"
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ValueError(f"dtype must be auto or a floating-point type of torch, got {name!r}")
    return name
