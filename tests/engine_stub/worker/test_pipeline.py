"""A decoder cut into stages gives the same tokens, and its processes go when the engine does."""

import multiprocessing
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.model_executor.loader import WeightsError
from seqtop.sequence import PoolingParams, SamplingParams
from tests.support.checkpoints import add_draft_head, generate, make_checkpoint
from tests.support.running import LOOKAHEADS, drain, repeating_prompts
from tests.support.waiting import SECONDS, wait_until

MAX_TOKENS = 12
MORE = pytest.mark.release("many cases")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, of which the last two have a window: stages of unequal layers."""
    path = tmp_path_factory.mktemp("qwen2")
    return make_checkpoint("qwen2-sliding", path, num_hidden_layers=3, tie_word_embeddings=True)


def make_engine(checkpoint: Path, **settings: Any) -> LLMEngine:
    defaults: dict[str, Any] = {
        "device": "cpu",
        "block_size": 4,
        "num_gpu_blocks": 40,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 16,
        "max_model_len": 128,
    }
    return LLMEngine(EngineConfig(model=checkpoint, **(defaults | settings)))


@pytest.fixture(scope="module")
def staged(checkpoint: Path) -> Iterator[LLMEngine]:
    before = set(multiprocessing.active_children())
    engine = make_engine(checkpoint, pipeline_parallel_size=2, preemption_mode="swap")
    stages = set(multiprocessing.active_children()) - before
    assert len(stages) == 2
    yield engine
    engine.close()
    assert [stage.exitcode for stage in stages] == [0, 0]  # gone, and by themselves


def prompts() -> list[list[int]]:
    rng = random.Random(5)
    shared = [rng.randrange(1, 257) for _ in range(17)]
    own = [[rng.randrange(1, 257) for _ in range(length)] for length in (1, 30, 14, 41, 25, 9)]
    return [shared + prompt if index % 2 else prompt for index, prompt in enumerate(own)]


def test_greedy_tokens_are_those_of_transformers(checkpoint: Path, staged: LLMEngine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    groups = [staged.add_request(f"r{i}", prompt, params)[0] for i, prompt in enumerate(prompts())]
    records = drain(staged)
    outputs = [list(group.first_seq.get_output_token_ids()) for group in groups]
    assert outputs == generate(checkpoint, prompts(), MAX_TOKENS)
    modes = {preemption.mode for record in records for preemption in record.preemptions}
    assert "swap" in modes
    assert records[-1].blocks.prefix_hits > 0
    assert {record.execute_model_req.virtual_engine for record in records} == {0}
    for record in records:
        assert record.model_forward_time <= record.model_execute_time


def test_samples_are_those_of_one_stage(checkpoint: Path, staged: LLMEngine) -> None:
    params = SamplingParams(temperature=0.9, seed=4, n=2, max_tokens=MAX_TOKENS, logprobs=2)
    ours, theirs = (
        engine.generate([prompts()[1], "text"], params)
        for engine in (staged, make_engine(checkpoint))
    )
    for ours_of_prompt, theirs_of_prompt in zip(ours, theirs, strict=True):
        for mine, other in zip(ours_of_prompt.seqs, theirs_of_prompt.seqs, strict=True):
            assert mine.get_output_token_ids() == other.get_output_token_ids()
            assert mine.output_text == other.output_text
            assert [set(candidates) for candidates in mine.output_logprobs] == [
                set(candidates) for candidates in other.output_logprobs
            ]


def test_more_stages_than_layers(checkpoint: Path) -> None:
    with pytest.raises(ValueError, match="pipeline_parallel_size=4 is more than the model's 3"):
        make_engine(checkpoint, pipeline_parallel_size=4)


@pytest.mark.release("another start of processes that import torch")
def test_weights_that_a_stage_cannot_load(tmp_path: Path) -> None:
    path = make_checkpoint("llama", tmp_path)
    shard = next(path.glob("model-00002*"))
    shard.write_bytes(shard.read_bytes()[:50])
    before = set(multiprocessing.active_children())
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        make_engine(path, pipeline_parallel_size=2)
    assert set(multiprocessing.active_children()) == before


@contextmanager
def served(endpoint: str) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """`engine-stub serve` with two stages and something to do, and its stages' processes."""
    serve = (sys.executable, "-m", "engine_stub", "serve", "--demo", "--device", "cpu")
    process = subprocess.Popen(
        [*serve, "--bind", endpoint, "--pipeline-parallel-size", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "published at" in process.stdout.readline()
        yield process, psutil.Process(process.pid).children(recursive=True)
    finally:
        process.kill()
        process.communicate()


def stages_of(children: list[psutil.Process]) -> list[psutil.Process]:
    """Without the process by which multiprocessing tidies up."""
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


def gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    return lambda: (
        not any(
            process.is_running() and process.status() != psutil.STATUS_ZOMBIE
            for process in processes
        )
    )


@pytest.mark.release("another start of processes that import torch")
def test_nothing_outlives_an_engine_that_was_killed(endpoint: str) -> None:
    with served(endpoint) as (process, children):
        assert len(stages_of(children)) == 2
        process.kill()
        wait_until(gone(children))


def test_the_command_says_that_a_stage_has_died(endpoint: str) -> None:
    with served(endpoint) as (process, children):
        stages_of(children)[1].send_signal(signal.SIGKILL)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        (sentence,) = stderr.strip().splitlines()
        assert "has ended with status -9; start the engine again" in sentence
        wait_until(gone(children))


def test_embeddings_come_from_the_last_stage(checkpoint: Path, staged: LLMEngine) -> None:
    ours, theirs = (
        [group.pooled_data for group in engine.generate(prompts(), PoolingParams())]
        for engine in (staged, make_engine(checkpoint))
    )
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


@MORE
def test_beams_are_forked_in_every_stage(checkpoint: Path, staged: LLMEngine) -> None:
    params = BeamSearchParams(beam_width=3, max_tokens=9)
    ours, theirs = (
        engine.generate(prompts()[:2], params) for engine in (staged, make_engine(checkpoint))
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert [seq.get_output_token_ids() for seq in mine.seqs] == [
            seq.get_output_token_ids() for seq in other.seqs
        ]


@MORE
@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "qwen3"])
@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_stages_that_look_ahead_give_the_tokens_of_transformers(
    tmp_path: Path, family: str, lookahead: str
) -> None:
    path = add_draft_head(make_checkpoint(family, tmp_path))
    engine = make_engine(path, pipeline_parallel_size=2, num_gpu_blocks=24, max_model_len=80,
                         **LOOKAHEADS[lookahead])  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    prompts = repeating_prompts()
    groups = [engine.add_request(f"r{i}", prompt, params)[0] for i, prompt in enumerate(prompts)]
    records = drain(engine)
    engine.close()
    outputs = [list(group.first_seq.get_output_token_ids()) for group in groups]
    assert outputs == generate(path, prompts, MAX_TOKENS)
    assert any(record.preemptions for record in records)
