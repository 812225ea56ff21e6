"""What an engine is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from engine_stub.model_executor.loader import DEFAULT_MODEL

PreemptionMode: TypeAlias = Literal["recompute", "swap"]
PreemptionVictim: TypeAlias = Literal["last", "largest"]
PoolingType: TypeAlias = Literal["LAST", "MEAN"]
SpeculativeMethod: TypeAlias = Literal["ngram", "draft-head"]


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; lengths are tokens.

    Whatever is left to the engine (None or "auto") has its value in `LLMEngine.config`.

    Attributes:
        model: Directory in Hugging Face layout, or ``organisation/name`` on the Hugging Face Hub.
        device: "cpu", "cuda", or "auto": CUDA where there is any.
        dtype: A torch dtype's name, or "auto": float32 on a CPU, the checkpoint's on CUDA.
        block_size: Slots per KV cache block.
        num_gpu_blocks: Blocks in the KV pool, on whatever device (the name is vLLM's). None:
            most of the free memory on CUDA, a few hundred MiB on a CPU.
        max_num_seqs: The most sequences that run at once.
        max_num_batched_tokens: The most tokens one step computes.
        max_model_len: The longest prompt and output together. None: what the model allows, or
            as much of it as the pool holds.
        enable_chunked_prefill: Whether a prompt may be computed over several steps.
        enable_prefix_caching: Whether computed blocks are kept for later prompts to share.
        pipeline_parallel_size: Stages that the decoder is cut into, each a process of its own.
        preemption_mode: What becomes of a preempted group's blocks. "recompute" drops them; "swap"
            moves them to host memory, as long as there is room. Groups of several sequences are
            swapped in either mode if there are host blocks at all, for they cost the most to
            compute again.
        num_cpu_blocks: Blocks in host memory to swap to. None: as many as on the device, up to
            4 GiB, if `preemption_mode` is "swap", else 0.
        preemption_victim: Which of the running groups that rank behind the one in need (by
            priority, then by arrival) is preempted: the "last" of them, or the one that holds the
            "largest" number of blocks, so that fewer have to go. A group with nobody behind it
            makes way itself.
        pooling_type: What stands for a prompt in embedding requests: the hidden state of its
            "LAST" token, or the "MEAN" of all.
        pooling_normalize: Whether embeddings are scaled to a length of 1.
        num_scheduler_steps: The most tokens that a decode may yield in one step, by as many
            forward passes without going back to the scheduler.
        speculative: What guesses the tokens that come next, for the model to look at all of them in
            one forward pass: "ngram", the text so far, or "draft-head", a small network that comes
            with the model. None for no speculation; not together with `num_scheduler_steps`.
        num_speculative_tokens: The most tokens of a guess.
        enforce_eager: Whether decodes on CUDA are computed kernel by kernel, and not as graphs.
        seed: Of the random numbers for requests without a seed of their own.

    Raises:
        ValueError: A setting is out of range or contradicts another one.
    """

    model: Path = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"
    block_size: int = 16
    num_gpu_blocks: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    seed: int = 0
    pipeline_parallel_size: int = 1
    preemption_mode: PreemptionMode = "recompute"
    num_cpu_blocks: int | None = None
    preemption_victim: PreemptionVictim = "last"
    pooling_type: PoolingType = "LAST"
    pooling_normalize: bool = True
    num_scheduler_steps: int = 1
    speculative: SpeculativeMethod | None = None
    num_speculative_tokens: int = 4
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        for name in (
            *("block_size", "num_gpu_blocks", "max_num_seqs", "max_model_len"),
            *("max_num_batched_tokens", "pipeline_parallel_size", "num_scheduler_steps"),
            "num_speculative_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.num_cpu_blocks is not None and self.num_cpu_blocks < 0:
            raise ValueError(f"num_cpu_blocks must be at least 0, got {self.num_cpu_blocks}")
        for name, choices in (
            ("preemption_mode", get_args(PreemptionMode)),
            ("preemption_victim", get_args(PreemptionVictim)),
            ("pooling_type", get_args(PoolingType)),
            ("speculative", (*get_args(SpeculativeMethod), None)),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name} must be {' or '.join(map(str, choices))}, got {getattr(self, name)!r}"
                )
        if self.speculative is not None and self.num_scheduler_steps > 1:
            raise ValueError(
                f"speculative={self.speculative!r} and num_scheduler_steps="
                f"{self.num_scheduler_steps} exclude each other; choose one"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens={self.max_num_batched_tokens} cannot give each of "
                f"max_num_seqs={self.max_num_seqs} sequences a token per step"
            )
        if (
            not self.enable_chunked_prefill
            and self.max_model_len is not None
            and self.max_num_batched_tokens < self.max_model_len
        ):
            raise ValueError(
                f"without chunked prefill, max_num_batched_tokens={self.max_num_batched_tokens} "
                f"must hold a prompt of max_model_len={self.max_model_len}"
            )
