"""The Triton kernels of layers, on a GPU or in Triton's interpreter, and compiled for three GPUs.

`make test-triton` runs these tests without a GPU; Triton is no dependency of the engine.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.platforms.torch_layers import TORCH_LAYERS
from tests.engine_stub.platforms.test_cuda import PROMPTS
from tests.support.checkpoints import make_checkpoint
from tests.support.running import greedy, run, tokens
from tests.support.simulated_cuda import simulated_cuda

pytest.importorskip("triton", reason="Triton is not installed; see make test-triton")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip(
        "needs a GPU or Triton's interpreter; see make test-triton", allow_module_level=True
    )

from engine_stub.platforms.triton_layers import TRITON_LAYERS

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_SHAPES = 40
# The kernels round once, torch's operators after each of them.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="Triton's interpreter cannot compute in bfloat16"
)
dtypes = pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=needs_gpu)],
    ids=str,
)


class Case:
    """Random numbers of random shapes."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.rng = random.Random(seed)
        self.dtype = dtype
        self.num_tokens = self.rng.choice([1, 2, 5])
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(DEVICE, self.dtype)

    def assert_close(self, ours: Tensor, expected: Tensor) -> None:
        limit = TOLERANCE[self.dtype]
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, expected, atol=limit, rtol=limit)


@dtypes
def test_addition_and_norm(dtype: torch.dtype) -> None:
    for seed in range(NUM_SHAPES):
        case = Case(seed, dtype)
        size = case.rng.choice([1, 2, 24, 64, 100, 1024, 2560])
        x, added = case.normal(case.num_tokens, size), case.normal(case.num_tokens, size)
        weight, eps = case.normal(size), case.rng.choice([1e-6, 1e-5, 1.0])
        for given in (added, None):
            total, normed = TRITON_LAYERS.add_rms_norm(x, given, weight, eps)
            expected_total, expected = TORCH_LAYERS.add_rms_norm(x, given, weight, eps)
            assert torch.equal(total, expected_total)
            case.assert_close(normed, expected)


@dtypes
def test_activation(dtype: torch.dtype) -> None:
    for seed in range(NUM_SHAPES):
        case = Case(seed, dtype)
        size = case.rng.choice([1, 8, 96, 1000, 1024, 1025, 2500])
        gate_up = case.normal(case.num_tokens, 2 * size) * 3
        case.assert_close(TRITON_LAYERS.silu_and_mul(gate_up), TORCH_LAYERS.silu_and_mul(gate_up))


@dtypes
def test_rotation_and_the_write_to_the_pool(dtype: torch.dtype) -> None:
    for seed in range(NUM_SHAPES):
        case = Case(seed, dtype)
        rng, num_tokens = case.rng, case.num_tokens
        num_kv_heads, heads_per_kv = rng.choice([1, 2, 3]), rng.choice([1, 2, 7])
        head_dim = rng.choice([2, 8, 24, 64, 80, 128])
        heads = case.normal(num_tokens, (heads_per_kv + 2) * num_kv_heads, head_dim)
        angles = torch.rand(num_tokens, 1, head_dim // 2) * 100
        angles = torch.cat((angles, angles), dim=-1).to(DEVICE)
        signs = torch.ones(head_dim, device=DEVICE)
        signs[: head_dim // 2] = -1
        rotation = angles.cos().to(dtype), (angles.sin() * signs).to(dtype)
        norm = None
        if rng.random() < 0.5:
            norm = case.normal(head_dim), case.normal(head_dim), rng.choice([1e-6, 1.0])
        pool = case.normal(20, num_kv_heads, 2 * head_dim)
        pools = pool, pool.clone()
        slots = torch.tensor(rng.sample(range(20), num_tokens), device=DEVICE)
        is_written = rng.random() < 0.7
        ours, expected = (
            kernels.rotate_and_write(
                *(heads, num_kv_heads, norm, rotation, (own, slots) if is_written else None)
            )
            for kernels, own in zip((TRITON_LAYERS, TORCH_LAYERS), pools, strict=True)
        )
        for one, other in zip((*ours, pools[0]), (*expected, pools[1]), strict=True):
            case.assert_close(one, other)
        assert torch.equal(pools[0][slots], ours[1]) == is_written


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the engine itself")
@pytest.mark.parametrize("name", ["mistral-sliding", "qwen3"])
def test_the_engines_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """On the simulated device, whose graphs replay the kernels, in the interpreter."""
    checkpoint = make_checkpoint(name, tmp_path)
    outputs = []
    for device in ("cpu", "cuda"):
        config = EngineConfig(
            model=checkpoint,
            device=device,
            dtype="float32",
            block_size=4,
            num_gpu_blocks=200,
            max_num_seqs=2,
            max_num_batched_tokens=16,
        )
        if device == "cpu":
            outputs.append(tokens(run(LLMEngine(config), PROMPTS[:3], greedy(8))[0]))
            continue
        with simulated_cuda(monkeypatch, layer_kernels=TRITON_LAYERS) as simulated:
            outputs.append(tokens(run(LLMEngine(config), PROMPTS[:3], greedy(8))[0]))
        assert any(graph.num_replays for graph in simulated.graphs)
    assert outputs[0] == outputs[1]


COMPILE = """
import json
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from engine_stub.platforms import triton_layers

found = []

def compile(kernel, dtype, other_types={}, num_warps=4, **constants):
    types = dict.fromkeys(kernel.arg_names, f"*{dtype}") | other_types
    types |= dict.fromkeys(constants, "constexpr")
    for capability in (80, 90, 120):
        made = triton.compile(
            ASTSource(kernel, types, constants),
            target=GPUTarget("cuda", capability, 32),
            options=dict(num_warps=num_warps),
        )
        found.append([capability, made.metadata.shared, len(made.asm["cubin"])])

for dtype in ("fp32", "fp16", "bf16"):
    for size in (1024, 5120):
        columns = triton.next_power_of_2(size)
        warps = triton_layers.num_warps(columns)
        compile(
            triton_layers._add_rms_norm, dtype, dict(eps="fp32"), warps, SIZE=size, COLUMNS=columns
        )
    compile(triton_layers._silu_and_mul, dtype, SIZE=9728, COLUMNS=1024)
    for dim, is_normed in ((64, False), (128, True), (80, False), (256, True)):
        compile(
            *(triton_layers._rotate_and_write, dtype, dict(eps="fp32", slots="*i64"), 1),
            HEADS=16, KV_HEADS=8, HEAD_DIM=dim, DIMS=triton.next_power_of_2(dim),
            IS_NORMED=is_normed, IS_WRITTEN=True,
        )
print(json.dumps(found))
"""


def test_the_kernels_compile_for_ampere_hopper_and_blackwell(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    programs = json.loads(done.stdout)
    assert {capability for capability, _, _ in programs} == {80, 90, 120}
    for _, shared, size in programs:
        assert size > 0
        assert shared < 2**10
