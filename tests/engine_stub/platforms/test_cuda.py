"""The engine's CUDA path on a device that the CPU plays: tokens, placement, waiting, replays."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.stages import Stage
from engine_stub.platforms import copy_to_device, platform_of, to_device, to_host
from engine_stub.platforms.cuda import CudaPlatform
from engine_stub.worker import step_graphs
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.worker import Worker
from seqtop.sequence import (
    ExecuteModelRequest,
    IntermediateTensors,
    PoolingParams,
    SamplingParams,
    SequenceGroup,
)
from tests.support.attention_kernels import KERNELS, PAGED_ONLY
from tests.support.checkpoints import add_draft_head, make_checkpoint
from tests.support.running import drain, greedy, run, tokens
from tests.support.simulated_cuda import DEVICE, DeviceError, Graph, simulated_cuda

# On the bundled engine's own account, at the end of a step.
READ = "synchronize: a stream is waited for"

PROMPTS = [[index + 1, *range(3, 3 + 4 * index), 7, 8, 7, 8] for index in range(9)]
PARAMS: list[Any] = [
    greedy(24),
    SamplingParams(temperature=0.8, seed=11, max_tokens=20),
    SamplingParams(top_k=20, top_p=0.9, min_p=0.01, seed=3, logprobs=2, max_tokens=20),
    greedy(18, repetition_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, min_tokens=4),
    greedy(12, logit_bias={5: 3.0}, allowed_token_ids=list(range(1, 100))),
    SamplingParams(n=2, seed=5, max_tokens=12),
    BeamSearchParams(beam_width=3, max_tokens=10),
    greedy(6, prompt_logprobs=2),
    PoolingParams(),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "graphs": {"max_num_batched_tokens": 24},
    "eager": {"enforce_eager": True},
    "swap": {"num_gpu_blocks": 34, "preemption_mode": "swap", "num_cpu_blocks": 34},
    "several steps": {"num_scheduler_steps": 5},
    "sized by memory": {"num_gpu_blocks": None},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With sliding windows, and two query heads to a key head."""
    return add_draft_head(make_checkpoint("mistral-sliding", tmp_path_factory.mktemp("simulated")))


def make_engine(checkpoint: Path, device: str, **settings: Any) -> LLMEngine:
    defaults: dict[str, Any] = {"block_size": 4, "max_num_seqs": 8, "num_gpu_blocks": 200}
    return LLMEngine(
        EngineConfig(model=checkpoint, device=device, dtype="float32", **(defaults | settings))
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_the_cpu_and_only_they_are_waited_for(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = SETTINGS[name]
    # Pooled vectors go to the host by themselves; see below.
    expected, _ = run(make_engine(checkpoint, "cpu", **settings), PROMPTS[:8], *PARAMS[:8])
    kernels = PAGED_ONLY if name == "several steps" else KERNELS
    with simulated_cuda(monkeypatch, kernels) as device:
        engine = make_engine(checkpoint, "cuda", **settings)
        device.waits.clear()
        groups, records = run(engine, PROMPTS[:8], *PARAMS[:8])
    assert tokens(groups) == tokens(expected)
    assert set(device.waits) == {READ}
    assert any(graph.num_replays for graph in device.graphs) == (name != "eager")
    if name == "swap":
        assert {preemption.mode for record in records for preemption in record.preemptions} == {
            "swap"
        }


def test_a_step_of_decodes_waits_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda(monkeypatch) as device:
        engine = make_engine(checkpoint, "cuda")
        run(engine, PROMPTS[:4], *PARAMS[:4])
        for index, params in enumerate(PARAMS[:4]):
            engine.add_request(f"again-{index}", [9 + index, 4, 2], params)
        engine.step()
        device.waits.clear()
        num_replays = sum(graph.num_replays for graph in device.graphs)
        for _ in range(10):
            engine.step()
    assert Counter(device.waits) == {READ: 10}
    assert sum(graph.num_replays for graph in device.graphs) == num_replays + 10


@pytest.mark.parametrize("method", ["ngram", "draft-head"])
def test_speculation_on_the_device(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    expected, _ = run(make_engine(checkpoint, "cpu", speculative=method), PROMPTS[:8], *PARAMS[:6])
    with simulated_cuda(monkeypatch):
        engine = make_engine(checkpoint, "cuda", speculative=method)
        groups, _ = run(engine, PROMPTS[:8], *PARAMS[:6])
    assert tokens(groups) == tokens(expected)
    if method == "draft-head":
        graphs = engine.worker.model_runner.graphs
        assert {num_queries for _, num_queries in graphs.decodes} == {1, 5}


@pytest.mark.parametrize("speculative", [None, "ngram"])
def test_steps_with_prompts_are_replayed_too(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, speculative: str | None
) -> None:
    """Each up to the largest size with one replay, and larger ones kernel by kernel."""
    monkeypatch.setattr(step_graphs, "_MOST_TOKENS", 16)
    settings = {"max_num_batched_tokens": 40, "speculative": speculative}
    seen: set[tuple[bool, bool, int]] = set()

    def serve(engine: LLMEngine, count_replays: Callable[[], int]) -> list[tuple[int, ...]]:
        groups: list[SequenceGroup] = []
        for index, prompt in enumerate(PROMPTS[:8]):
            groups += engine.add_request(f"r{index}", prompt, PARAMS[index])
            for _ in range(2):
                before = count_replays()
                record = engine.step()
                num_tokens = record.num_prefill_tokens, record.num_decode_tokens
                is_large = sum(num_tokens) > 16
                seen.add((num_tokens[0] > 0, is_large, count_replays() - before))
        drain(engine)
        return tokens(groups)

    expected = serve(make_engine(checkpoint, "cpu", **settings), lambda: 0)
    seen.clear()
    with simulated_cuda(monkeypatch) as device:
        engine = make_engine(checkpoint, "cuda", **settings)
        replayed = serve(engine, lambda: sum(graph.num_replays for graph in device.graphs))
    assert replayed == expected
    assert {own for own in seen if not own[1]} == {(False, False, 1), (True, False, 1)}
    assert (True, True, 0) in seen


class TwoStages:
    """A pipeline in one process: the first stage's states wait for the second."""

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        self.states: list[IntermediateTensors] = []
        self.workers = [Worker(config, model_config, Stage(rank, 2), self) for rank in range(2)]

    def send(self, tensors: IntermediateTensors) -> None:
        self.states.append(tensors)

    def receive(self, num_tokens: int) -> IntermediateTensors:
        states = self.states.pop()
        assert len(states["hidden_states"]) == num_tokens
        return states

    def broadcast_from_last(self, numbers: list[int]) -> list[int]:
        raise AssertionError("stages that take single steps broadcast nothing")

    def determine_num_available_blocks(self) -> int:
        return min(worker.determine_num_available_blocks() for worker in self.workers)

    def initialize_cache(self, *sizes: int) -> None:
        for worker in self.workers:
            worker.initialize_cache(*sizes)

    def execute_model(self, request: ExecuteModelRequest) -> ModelOutput:
        return [worker.execute_model(request) for worker in self.workers][-1]


def test_stages_replay_what_they_hand_on(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = run(make_engine(checkpoint, "cpu"), PROMPTS[:8], *PARAMS[:8])
    monkeypatch.setattr("engine_stub.worker.start.Pipeline", TwoStages)
    with simulated_cuda(monkeypatch) as device:
        staged = make_engine(checkpoint, "cuda", pipeline_parallel_size=2, num_gpu_blocks=None)
        groups, _ = run(staged, PROMPTS[:8], *PARAMS[:8])
    assert tokens(groups) == tokens(expected)
    assert sum(graph.num_replays for graph in device.graphs) > 20


def test_vectors_of_prompts(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (expected,), _ = run(make_engine(checkpoint, "cpu"), PROMPTS[8:], PARAMS[8])
    with simulated_cuda(monkeypatch):
        (group,), _ = run(make_engine(checkpoint, "cuda"), PROMPTS[8:], PARAMS[8])
    assert expected.pooled_data is not None
    assert group.pooled_data == pytest.approx(expected.pooled_data, abs=1e-5)


def test_weights_may_be_in_bfloat16(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounding differs from that of other paths, so that tokens may; all must be numbers."""
    with simulated_cuda(monkeypatch) as device:
        config = EngineConfig(
            model=checkpoint, device="cuda", dtype="bfloat16", num_gpu_blocks=40, max_num_seqs=4
        )
        (group,), _ = run(LLMEngine(config), [PROMPTS[3]], greedy(12, logprobs=1))
    assert group.first_seq.get_output_len() == 12
    logprobs = [
        one.logprob for candidates in group.first_seq.output_logprobs for one in candidates.values()
    ]
    assert all(-30 < logprob <= 0 for logprob in logprobs)
    assert any(graph.num_replays for graph in device.graphs)


def test_graphs_are_captured_at_start_and_only_there(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_cuda(monkeypatch) as device:
        engine = make_engine(checkpoint, "cuda")
        captured = [*device.graphs]
        graphs = engine.worker.model_runner.graphs
        assert (len(graphs.decodes), len(graphs.others)) == (4, 6)
        assert len(captured) == 10
        run(engine, PROMPTS, greedy(20), greedy(9), greedy(30))
        assert device.graphs == captured
    assert sum(graph.num_replays > 0 for graph in captured) >= 2


def test_memory_that_sequences_do_not_need_becomes_prefix_cache(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_cuda(monkeypatch):
        config = make_engine(checkpoint, "cuda", num_gpu_blocks=None, max_num_seqs=1).config
    assert config.num_gpu_blocks > 10 * config.max_model_len // config.block_size


@pytest.mark.parametrize("kind", ["attention", "layer"])
def test_a_device_without_triton_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kernels = getattr(CudaPlatform, f"{kind}_kernels")
    module = {"attention": "triton_attention", "layer": "triton_layers"}[kind]
    with simulated_cuda(monkeypatch):
        monkeypatch.setattr(CudaPlatform, f"{kind}_kernels", kernels)
        monkeypatch.setitem(sys.modules, f"engine_stub.platforms.{module}", None)
        with pytest.raises(ValueError, match="cuda needs Triton, which is not installed"):
            make_engine(checkpoint, "cuda")


def test_stages_without_a_device_each_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda(monkeypatch):
        assert platform_of("cuda").stage_device(0) == DEVICE
        with pytest.raises(ValueError, match="needs a CUDA device, and torch sees 1"):
            platform_of("cuda").stage_device(1)


def test_the_pool_gets_the_rest_of_the_utilization_of_the_whole_device(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def num_blocks(used_by_others: int, utilization: float) -> int:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**26 - used_by_others, 2**26))
        config = make_engine(
            checkpoint, "cuda", num_gpu_blocks=None, gpu_memory_utilization=utilization
        ).config
        assert isinstance(config.num_gpu_blocks, int)
        return config.num_gpu_blocks

    with simulated_cuda(monkeypatch):
        all_of_it = num_blocks(0, 1.0)  # all but 1 MiB that the largest step takes
        per_block = (2**26 - 2**20) / (all_of_it + 1)
        assert num_blocks(0, 0.5) == pytest.approx((2**25 - 2**20) / per_block, abs=2)
        assert num_blocks(2**24, 0.5) == pytest.approx((2**24 - 2**20) / per_block, abs=2)


def test_a_device_without_room_for_a_pool_is_named(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with simulated_cuda(monkeypatch):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (2**20, 2**26))
        with pytest.raises(ValueError, match="cuda has no room for a KV pool beside the model"):
            make_engine(checkpoint, "cuda", num_gpu_blocks=None)
        with pytest.raises(ValueError, match="if 50% of its memory may be in use"):
            make_engine(checkpoint, "cuda", num_gpu_blocks=None, gpu_memory_utilization=0.5)
        with pytest.raises(ValueError, match=r"cuda:3 was asked for, but torch sees 1 of them"):
            make_engine(checkpoint, "cuda:3")


def test_the_simulation_finds_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda(monkeypatch) as device:
        ours = to_device([3, 1, 2], DEVICE)
        assert ours.device == DEVICE
        assert to_host(ours) == [[3, 1, 2]]
        assert device.waits == [READ]
        with pytest.raises(DeviceError, match="on the device and on the host"):
            ours + torch.tensor([1, 2, 3])
        with pytest.raises(DeviceError, match="generator on the host"):
            ours.float().exponential_(generator=torch.Generator())
        layers = platform_of(DEVICE).layer_kernels()
        heads = torch.ones(3, 4, 2, device=DEVICE)
        rotation, slots = (heads[:, :1], heads[:, :1]), (torch.zeros(3, 1, 4), ours - 1)
        with pytest.raises(DeviceError, match="a kernel has operands on the host"):
            layers.rotate_and_write(heads, 1, None, rotation, slots)
        q, kv = layers.rotate_and_write(heads, 1, None, rotation, None)
        assert q.device == kv.device == DEVICE
        device.waits.clear()
        torch.tensor([1, 2], device=DEVICE)
        ours[[0, 1]].cpu()
        ours[ours > 1].tolist()
        assert len(device.waits) == 5
        device.waits.clear()
        ours[to_device([0, 2], DEVICE)] = 7
        assert len(device.waits) == 1
        ours.index_fill_(0, to_device([0], DEVICE), 3)
        ours[to_device([1], DEVICE)] = to_device([1], DEVICE)
        assert len(device.waits) == 1
        ours[2] = 2
        ours.copy_(to_device([3, 1, 2], DEVICE))

        graph: Any = Graph()
        pool: Any = "memory"
        total = torch.zeros(3, dtype=torch.int64, device=DEVICE)
        with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.Stream(DEVICE)):
            total += ours * 2
            with pytest.raises(DeviceError, match="while a graph is captured"):
                ours.tolist()
        total.zero_()
        copy_to_device([5, 6, 7], ours)
        graph.replay()
        assert to_host(total) == [[10, 12, 14]]
