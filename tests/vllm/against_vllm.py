"""The real vLLM, a real viewer, a spy inside the scheduler: the viewer has to show what is true.

Run by `make test-vllm`, in an environment of its own; `make test` does not know this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from serve import ABORTED_AFTER, MODEL, NUM_REQUESTS, num_tokens

from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.ordering import SequenceView
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import rank_endpoint
from seqtop.wire.messages import Step
from tests.support.watch import THRESHOLDS, Watch

HERE = Path(__file__).resolve().parent
START_SECONDS = 400.0
"""vLLM takes its time to start, most of all on a busy machine."""

RUNS = {
    "fcfs": ([], {}),
    "async": (["--async-scheduling"], {}),
    "async, model runner V2": (["--async-scheduling"], {"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    "priority": (["--policy", "priority"], {}),
    "drafts": (["--draft"], {}),
    "two ranks": (["--data-parallel-size", "2"], {}),
}


class Seen(Watch):
    """As a listener: what the viewer's state was at each step, and what the checker says."""

    def __init__(self) -> None:
        super().__init__(THRESHOLDS)
        self.steps: list[dict[str, Any]] = []

    def note(self, change: StateChange) -> None:
        super().note(change)
        if isinstance(change.event, Step):
            self.steps.append(shown(change.state))
        elif change.event is None:
            assert change.state.step == -1, "the viewer was there before the first step"


def shown(state: EngineState) -> dict[str, Any]:
    """The viewer's state in the form of the spy's lines."""
    assert state.stats is not None
    view = SequenceView()
    view.rebuild(state)
    unfinished = [
        sequence
        for sequence in state.sequences.values()
        if not SequenceStatus.is_finished(sequence.status)
    ]
    return {
        "requests": {
            sequence.request_id: {
                "status": sequence.engine_status or sequence.status.name,
                "num_computed_tokens": sequence.num_computed_tokens,
                "block_ids": sequence.block_table.copy(),
                "num_prompt_tokens": sequence.num_prompt_tokens,
                "output_token_ids": sequence.output_token_ids.copy(),
                "num_preemptions": state.requests[sequence.request_id].num_preemptions,
            }
            for sequence in unfinished
        },
        "waiting": [state.sequences[seq_id].request_id for seq_id in view.queue.ids],
        "num_free": state.stats.num_free_blocks,
        "num_cached": state.stats.num_cached_blocks,
        "num_used": state.stats.num_used_blocks,
    }


def spied(line: str) -> dict[str, Any]:
    """A line of the spy's, with requests called as their users do."""
    step: dict[str, Any] = json.loads(line)
    step["requests"] = {name[:-9]: request for name, request in step["requests"].items()}
    step["waiting"] = [name[:-9] for name in step["waiting"]]
    running = {name[:-9] for name in step.pop("running")}
    is_running = {
        name for name, request in step["requests"].items() if request["status"] == "RUNNING"
    }
    assert running == is_running
    del step["scheduler"]
    return step


@contextmanager
def vllm(directory: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """vLLM, started, and waiting for the word to begin."""
    environ = {
        "SPY_FILE": str(directory / "spy"),
        "SEQTOP_TOKENIZER": str(MODEL),
        "HF_HUB_OFFLINE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_LOGGING_LEVEL": "WARNING",
        **environ,
    }
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py"), *arguments],
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                # Other processes of vLLM's may write to the same line.
                if "ready to serve" in line:
                    break
            else:
                logged = (directory / "log").read_text()
                if "Model Runner V2 requires Triton" in logged:  # as 0.28.0 says
                    pytest.skip("this version needs Triton for it")
                raise AssertionError(logged[-5_000:])
            yield process
        finally:
            process.kill()
            process.wait()


def serve(process: subprocess.Popen[str], directory: Path) -> list[dict[str, Any]]:
    """Say the word; return how each request ended. What vLLM logs goes to `directory / "said"`."""
    output, _ = process.communicate("go\n", timeout=START_SECONDS)
    (directory / "said").write_text(output)
    ended: list[dict[str, Any]] = json.JSONDecoder().raw_decode(output, output.index('[{"id": '))[0]
    return ended


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sq") as name:
        yield Path(name)


@pytest.mark.parametrize("run", RUNS)
def test_viewer_shows_what_the_scheduler_holds_at_every_step(run: str, directory: Path) -> None:
    arguments, environ = RUNS[run]
    endpoint = f"ipc://{directory}/e"
    num_ranks = 2 if run == "two ranks" else 1
    watched = [Seen() for _ in range(num_ranks)]
    with (
        vllm(directory, *arguments, SEQTOP_BIND=endpoint, **environ) as process,
        ExitStack() as stack,
    ):
        sessions = [Session(rank_endpoint(endpoint, rank)) for rank in range(num_ranks)]
        for session, seen in zip(sessions, watched, strict=True):
            session.add_listener(seen.note)
            stack.enter_context(session)
            assert session.wait_for(ConnectionState.LIVE, timeout=60)
        ended = serve(process, directory)
        for session in sessions:
            assert session.wait_for(ConnectionState.STOPPED, timeout=60)
    states = [session.state for session in sessions]
    for rank, (session, seen) in enumerate(zip(sessions, watched, strict=True)):
        lines = (directory / f"spy{rank}").read_text().splitlines()
        scheduler = "AsyncScheduler" if "--async-scheduling" in arguments else "Scheduler"
        assert {json.loads(line)["scheduler"] for line in lines} == {scheduler}
        truth = [spied(line) for line in lines]
        assert len(seen.steps) == len(truth)
        for number, (is_shown, is_true) in enumerate(zip(seen.steps, truth, strict=True)):
            assert is_shown == is_true, f"step {number} of {len(truth)}"
        state = session.state
        assert state.num_anomalies == 0, state.last_anomaly
        assert session.connection.num_missed == session.connection.num_errors == 0
        assert seen.findings == []
        preempted = [request for request in state.requests.values() if request.num_preemptions]
        num_preemptions = sum(request.num_preemptions for request in preempted)
        assert preempted, "the pool was meant to be too small"
        assert any(request.preempted_for not in (None, request.request_id) for request in preempted)
        assert state.stats is not None
        assert state.stats.prefix_cache_hits > 0, "prompts were meant to share prefixes"
        assert state.info is not None
        assert state.info.data_parallel_rank == rank
        print(  # the figures that docs/vllm.md quotes
            f"\n{state.info.engine}, {run}: {len(truth)} steps,"
            f" {len(state.requests)} requests, {num_preemptions} preemptions,"
            f" {state.stats.prefix_cache_hits} of {state.stats.prefix_cache_queries} tokens cached:"
            f" the viewer's state was the scheduler's at every step; {len(seen.findings)} findings"
        )
    assert_ended_as_users_saw(states, ended)
    if run == "drafts":
        drafted = [sequence.num_draft_tokens or 0 for sequence in states[0].sequences.values()]
        accepted = [sequence.num_accepted_tokens or 0 for sequence in states[0].sequences.values()]
        assert 0 < sum(accepted) < sum(drafted)


def assert_ended_as_users_saw(states: list[EngineState], ended: list[dict[str, Any]]) -> None:
    """Nothing is left, and everything ended as its client learned."""
    assert len(ended) == sum(len(state.finished) for state in states) == NUM_REQUESTS
    for state in states:
        assert state.stats is not None
        assert (state.stats.num_running, state.stats.num_waiting) == (0, 0)
        assert state.stats.num_used_blocks == 0
    for end in ended:
        (state,) = [state for state in states if end["id"] in state.requests]
        request = state.requests[end["id"]]
        sequence = state.sequences[request.seq_ids[0]]
        number = int(end["id"].removeprefix("req-"))
        if number in ABORTED_AFTER:
            # A busy engine has made all tokens before it learns that the client has left.
            is_complete = len(sequence.output_token_ids) == num_tokens(number)
            assert request.finish_reason == ("length" if is_complete else "abort")
        else:
            assert request.finish_reason == end["reason"]
            assert sequence.output_token_ids == end["tokens"]
        assert bool(sequence.text) == bool(sequence.output_token_ids)
        assert request.prompt, "the prompt's text was to be known, too"
        assert sequence.block_table == []


def test_fault_in_the_adapter_leaves_vllm_running(directory: Path) -> None:
    endpoint = f"ipc://{directory}/e"
    with vllm(directory, SEQTOP_BIND=endpoint, INJECT_FAULT="20") as process:
        ended = serve(process, directory)
    assert len(ended) == NUM_REQUESTS
    assert all(end["tokens"] for end in ended)
    said = [line for line in (directory / "said").read_text().splitlines() if "seqtop" in line]
    assert len(said) == 1, said
    assert "RuntimeError: injected" in said[0]


def test_unset_not_one_function_is_patched() -> None:
    """In a process of its own, as vLLM loads plugins once in each."""
    program = """
import sys
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.core import EngineCore, EngineCoreProc
from vllm.v1.request import Request
CLASSES = BlockPool, KVCacheManager, AsyncScheduler, Scheduler, EngineCore, EngineCoreProc, Request
before = [dict(vars(owner)) for owner in CLASSES]
from vllm.plugins import load_general_plugins
load_general_plugins()
assert "seqtop.adapters.vllm" in sys.modules, "the plugin was not even loaded"
assert [dict(vars(owner)) for owner in CLASSES] == before
assert "seqtop.adapters.vllm.hook" not in sys.modules
"""
    environ = {name: value for name, value in os.environ.items() if name != "SEQTOP_BIND"}
    environ |= {"VLLM_TARGET_DEVICE": "cpu"}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=START_SECONDS)
