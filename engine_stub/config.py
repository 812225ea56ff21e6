"""The settings that an engine is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from seqtop.wire.messages import PreemptionMode

PreemptionVictim: TypeAlias = Literal["last", "largest"]
PoolingType: TypeAlias = Literal["LAST", "MEAN"]
SpeculativeMethod: TypeAlias = Literal["ngram", "draft-head"]
DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]

DEFAULT_MODEL = Path(__file__).with_name("weights")
"""Directory of the small story model that ships with the package."""


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; lengths are tokens.

    A setting that is None or "auto" is chosen by the engine; `LLMEngine.config` has its value.

    Attributes:
        model: Directory in Hugging Face layout, or ``organisation/name`` on the Hugging Face Hub.
        device: "cpu", "cuda", or "auto" for CUDA if there is a CUDA device.
        dtype: A torch dtype's name, or "auto": float32 on a CPU, the checkpoint's on CUDA (float16
            instead of bfloat16 where the device has none).
        block_size: Slots per KV cache block.
        num_gpu_blocks: Blocks in the KV pool, on any device (the name is vLLM's). None for what
            `gpu_memory_utilization` leaves on CUDA, and for a few hundred MiB on a CPU.
        gpu_memory_utilization: The part of the memory of a CUDA device, from 0 to 1, that may be in
            use while the engine runs, by its weights, its largest steps, its pool, and by others.
        max_num_seqs: The most sequences that run at once.
        max_num_batched_tokens: The most tokens that one step computes.
        max_model_len: The longest prompt and output together. None for what the model allows, or
            as much of it as the pool holds.
        enable_chunked_prefill: Whether a prompt may be computed over several steps.
        enable_prefix_caching: Whether later prompts may share computed blocks.
        seed: The seed of random numbers for requests without a seed of their own.
        pipeline_parallel_size: The number of stages of the decoder, each a process of its own.
        preemption_mode: The treatment of a preempted group's blocks. "recompute" drops them; "swap"
            moves them to host memory while there is room. Groups of several sequences cost the
            most to recompute: with either mode, they are swapped if there are host blocks.
        num_cpu_blocks: Blocks in host memory to swap to. None for as many as on the device, up to
            4 GiB, if `preemption_mode` is "swap", else 0.
        preemption_victim: Which running group is preempted, among those that rank behind the group
            in need (by priority, then by arrival): the "last" of them, or the one with the
            "largest" number of blocks, so that fewer groups are preempted. A group with no other
            behind it is preempted itself.
        scheduling_policy: A Python file with a `SchedulingPolicy`, whose order and victim are used.
            None for priority, then arrival, and `preemption_victim`.
        pooling_type: The vector of a prompt in embedding requests: the hidden state of its "LAST"
            token, or the "MEAN" of all.
        pooling_normalize: Whether embeddings are scaled to a length of 1.
        num_scheduler_steps: The most tokens that a decode yields in one step, by as many forward
            passes without returning to the scheduler.
        speculative: The source of draft tokens, which the model verifies in one forward pass:
            "ngram" for the text so far, "draft-head" for a small network that comes with the
            model, None for no speculation. Excludes `num_scheduler_steps`.
        num_speculative_tokens: The most tokens of a draft.
        enforce_eager: Whether steps on CUDA run kernel by kernel instead of as graphs.

    Raises:
        ValueError: A setting is out of range or contradicts another one.
    """

    model: Path = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"
    block_size: int = 16
    num_gpu_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
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
    scheduling_policy: str | None = None
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
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                "gpu_memory_utilization must be above 0 and at most 1, got"
                f" {self.gpu_memory_utilization:g}"
            )
        if self.num_cpu_blocks is not None and self.num_cpu_blocks < 0:
            raise ValueError(f"num_cpu_blocks must be at least 0, got {self.num_cpu_blocks}")
        for name, choices in CHOICES.items():
            allowed = (*choices, None) if name == "speculative" else choices
            # Any floating-point type of torch may be a dtype; see `resolve_dtype`.
            if name != "dtype" and getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be {' or '.join(map(str, allowed))}, got {getattr(self, name)!r}"
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

    @property
    def num_draft_tokens(self) -> int:
        """The most tokens of a draft; 0 without speculation."""
        return self.num_speculative_tokens if self.speculative else 0


CHOICES: dict[str, tuple[str, ...]] = {
    "dtype": get_args(DType),
    "preemption_mode": get_args(PreemptionMode),
    "preemption_victim": get_args(PreemptionVictim),
    "pooling_type": get_args(PoolingType),
    "speculative": get_args(SpeculativeMethod),
}
"""The values of settings that have a fixed set of them, by the name of the setting."""

SCHEDULER_SETTINGS = (
    "num_scheduler_steps",
    "num_speculative_tokens",
    "pipeline_parallel_size",
    "preemption_victim",
    "seed",
    "speculative",
)
"""Settings that the engine's decisions depend on, and that have no field in `EngineInfo`."""
