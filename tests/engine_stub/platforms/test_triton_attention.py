"""Paged attention in Triton, on a GPU or in Triton's interpreter, and compiled for two GPUs.

`make test-triton` runs these tests without a GPU; Triton is no dependency of the engine.
"""

import json
import os
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.platforms.interface import AttentionKernels
from engine_stub.platforms.torch_attention import TorchAttention
from engine_stub.worker.block_tables import DeviceBlockTables
from engine_stub.worker.input_batch import prepare_batch
from engine_stub.worker.step_inputs import PagedAttention
from seqtop.sequence import SequenceData, SequenceGroupMetadata
from tests.engine_stub.platforms.test_cuda import PROMPTS
from tests.support.attention_kernels import PAGED_ONLY
from tests.support.checkpoints import make_checkpoint
from tests.support.running import greedy, run, tokens
from tests.support.simulated_cuda import simulated_cuda

pytest.importorskip("triton", reason="Triton is not installed; see make test-triton")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip(
        "needs a GPU or Triton's interpreter; see make test-triton", allow_module_level=True
    )

from engine_stub.platforms import triton_attention
from engine_stub.platforms.triton_attention import paged_attention, splits_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NUM_SHAPES = 200
KERNELS = AttentionKernels(paged_attention, None)
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3.2e-2}
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="Triton's interpreter cannot compute in bfloat16"
)


class Case:
    """A step of random sequences, with a pool of random keys and values."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        rng = random.Random(seed)
        self.kv_heads = rng.choice([1, 2, 4])
        self.heads_per_kv = rng.choice([1, 2, 3, 4, 7, 8])
        self.head_dim = rng.choice([8, 16, 24, 64, 80, 128])
        self.block_size = rng.choice([1, 2, 4, 8, 16, 32, 64])
        self.window = rng.choice([None, None, rng.randint(1, 60)])
        self.groups = []
        self.num_tokens = 0
        num_seqs = rng.choice([1, 2, 4])
        most_tokens = rng.choice([1, 1, 4, 30])
        longest = rng.choice([20, 90, 250])
        num_blocks = num_seqs * -(-longest // self.block_size)
        blocks = iter(rng.sample(range(num_blocks), num_blocks))
        for seq_id in range(num_seqs):
            end = rng.randint(1, longest)
            chunk = min(end, rng.randint(1, most_tokens))
            self.num_tokens += chunk
            data = SequenceData.from_seqs([1] * end)
            data.update_num_computed_tokens(end - chunk)
            self.groups.append(
                SequenceGroupMetadata(
                    request_id=str(seq_id),
                    is_prompt=chunk > 1,
                    seq_data={seq_id: data},
                    sampling_params=None,
                    block_tables={seq_id: [*islice(blocks, -(-end // self.block_size))]},
                    do_sample=False,
                    token_chunk_size=chunk,
                )
            )
        self.block_tables = DeviceBlockTables(num_seqs, num_blocks // num_seqs, DEVICE)
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).to(DEVICE, dtype)

        self.q = normal(self.num_tokens, self.kv_heads * self.heads_per_kv, self.head_dim)
        self.kv = normal(self.num_tokens, self.kv_heads, 2 * self.head_dim)
        self.cache = PagedKVCache(
            *(1, num_blocks, self.kv_heads, self.block_size, self.head_dim),
            device=DEVICE,
            dtype=dtype,
            windows=(self.window,),
            heads_per_kv=self.heads_per_kv,
        )
        self.cache.pool.copy_(normal(*self.cache.pool.shape))

    def attend(self, kernels: AttentionKernels) -> Tensor:
        """The attention that the engine would compute with these kernels."""
        self.cache.kernels = kernels
        batch = prepare_batch(self.groups, self.cache, self.block_tables, {})
        assert isinstance(batch.attend, PagedAttention)
        self.cache.slot_rows[0].index_copy_(0, batch.attend.slots, self.kv)
        return batch.attend(0, self.q, self.kv)

    def attend_plainly(self) -> Tensor:
        """The same in 64 bits, by the formula."""
        self.cache.kernels = PAGED_ONLY
        batch = prepare_batch(self.groups, self.cache, self.block_tables, {})
        assert isinstance(batch.attend, PagedAttention)
        tiles = batch.attend.tiles
        self.cache.slot_rows[0].index_copy_(0, batch.attend.slots, self.kv)
        out = torch.zeros_like(self.q, dtype=torch.float64)
        slots = self.cache.slot_rows[0].double()
        heads = torch.arange(self.q.shape[1], device=DEVICE) // self.heads_per_kv
        for first, count, start in zip(
            tiles.first_tokens.tolist(),
            tiles.num_queries.tolist(),
            tiles.table_starts.tolist(),
            strict=True,
        ):
            for token in range(first, first + count):
                position = int(tiles.positions[token])
                begin = 0 if self.window is None else max(position - self.window + 1, 0)
                keys = torch.arange(begin, position + 1, device=DEVICE)
                blocks = tiles.block_tables[start + keys // self.block_size]
                own = slots[blocks * self.block_size + keys % self.block_size]
                k, v = own[:, heads].chunk(2, dim=-1)
                scores = torch.einsum("hd,khd->hk", self.q[token].double(), k)
                weights = (scores / self.head_dim**0.5).softmax(-1)
                out[token] = torch.einsum("hk,khd->hd", weights, v)
        return out


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=needs_gpu)],
    ids=str,
)
def test_random_shapes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against attention by torch's operators over gathered blocks, and against the formula."""
    for seed in range(NUM_SHAPES):
        case = Case(seed, dtype)
        # The keys of a tile are split among 1 to 32 programs, and the interpreter is slow.
        most = random.Random(seed).choice([8, 40])
        monkeypatch.setattr(triton_attention, "most_programs", lambda _, most=most: most)
        limits: dict[str, Any] = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}

        def name(text: str, case: Case = case) -> str:
            shown = {key: value for key, value in vars(case).items() if isinstance(value, int)}
            return f"{shown}: {text}"

        attended = case.attend(KERNELS)
        torch.testing.assert_close(
            attended, case.attend(TorchAttention().kernels), **limits, msg=name
        )
        torch.testing.assert_close(attended.double(), case.attend_plainly(), **limits, msg=name)


def test_keys_are_split_among_enough_programs_but_not_more() -> None:
    splits = [splits_of(num_tiles, 264) for num_tiles in (1, 8, 66, 132, 133, 264, 5000)]
    assert splits == [32, 32, 4, 2, 1, 1, 1]


@pytest.mark.parametrize(("processors", "splits"), [(40, 2), (132, 8), (188, 8)])
def test_a_device_is_occupied_by_two_programs_for_each_of_its_multiprocessors(
    processors: int, splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(multi_processor_count=processors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    device = torch.device("cuda", processors)  # whose number is cached
    assert splits_of(32, triton_attention.most_programs(device)) == splits


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the engine itself")
@pytest.mark.parametrize("settings", [{}, {"speculative": "ngram"}], ids=["decodes", "drafts"])
def test_the_engines_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """On the simulated device, whose graphs replay the kernel, in the interpreter."""
    monkeypatch.setattr(triton_attention, "most_programs", lambda _: 8)
    checkpoint = make_checkpoint("mistral-sliding", tmp_path)
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
            **settings,
        )
        if device == "cpu":
            outputs.append(tokens(run(LLMEngine(config), PROMPTS[:3], greedy(8))[0]))
            continue
        with simulated_cuda(monkeypatch, KERNELS) as simulated:
            outputs.append(tokens(run(LLMEngine(config), PROMPTS[:3], greedy(8))[0]))
        assert any(graph.num_replays for graph in simulated.graphs)
    assert outputs[0] == outputs[1]


COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from engine_stub.platforms import triton_attention

found = []

def compile(kernel, capability, constants, types):
    signature = types | dict.fromkeys(constants, "constexpr")
    made = triton.compile(
        ASTSource(kernel, {name: signature[name] for name in kernel.arg_names}, constants),
        target=GPUTarget("cuda", capability, 32),
        options=dict(num_warps=4, num_stages=2),
    )
    found.append([capability, made.metadata.shared, len(made.asm["cubin"])])

for capability in (80, 90):
    for dtype, dim, rows in (
        ("fp32", 128, 16), ("fp32", 256, 64), ("fp16", 64, 16), ("bf16", 128, 16),
        ("bf16", 128, 64), ("bf16", 256, 64),
    ):
        names = triton_attention._attend.arg_names
        types = {name: "i32" if "stride" in name else "*i64" for name in names}
        types |= dict(q=f"*{dtype}", pool=f"*{dtype}", out="*fp32", log_sums="*fp32")
        types |= dict(scale="fp32", window="i32", num_splits="i32")
        keys = triton_attention.keys_at_once(dim, 4 if dtype == "fp32" else 2)
        constants = dict(
            HEADS_PER_KV=4, HEAD_DIM=dim, BLOCK_SIZE=16, ROWS=rows, DIMS=dim, KEYS=keys,
            IS_SPLIT=True,
        )
        compile(triton_attention._attend, capability, constants, types)
    types = dict(parts="*fp32", log_sums="*fp32", out="*bf16", num_splits="i32")
    constants = dict(HEAD_DIM=128, DIMS=128, MOST_SPLITS=32)
    compile(triton_attention._combine, capability, constants, types)
print(json.dumps(found))
"""


def test_the_kernels_compile_for_ampere_and_hopper(tmp_path: Path) -> None:
    """With shared memory to spare: a multiprocessor has 163 and 227 KiB for a program."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    programs = json.loads(done.stdout)
    assert [capability for capability, _, _ in programs] == [80] * 7 + [90] * 7
    for _, shared, size in programs:
        assert size > 0
        assert shared < 128 * 2**10
