"""A decoder over several processes, one for each of its stages.

The engine's process sends every stage the same `ExecuteModelRequest`, in its wire form. Each stage
runs its own layers over its own part of the KV cache, at the same block numbers as all others, and
hands `IntermediateTensors` on to the next by torch.distributed (gloo on a CPU, NCCL on CUDA); the
last one samples. One step is in flight at a time: a stage rests while the others work, and
`virtual_engine` is always 0.

A stage ends when its connection to the engine does, so that none outlives an engine that has been
killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from engine_stub.config import EngineConfig
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.model_executor.stages import Stage
from engine_stub.worker.model_runner import ModelOutput
from engine_stub.worker.worker import Worker
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    IntermediateTensors,
    PoolerOutput,
)
from seqtop.wire import decode, encode

_GRACE_SECONDS = 5.0
# In which the end of a process is known after its neighbours have noticed.
_MOMENT_SECONDS = 0.5


class StageError(RuntimeError):
    """A stage's process has ended or failed; the engine cannot go on."""


class Pipeline:
    """What a `Worker` is to an engine, made of one worker per stage.

    Args:
        config: The engine's, with nothing left open but the size of the pool.
        model_config: Of the model that `config` names.

    Raises:
        ValueError: There are more stages than layers, or than CUDA devices.
        FileNotFoundError, UnsupportedModel, WeightsError: see `load_model`.
        StageError: A stage has ended while it loaded its part of the model.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        size = config.pipeline_parallel_size
        if size > model_config.num_hidden_layers:
            raise ValueError(
                f"pipeline_parallel_size={size} is more than the model's "
                f"{model_config.num_hidden_layers} layers"
            )
        if config.device.startswith("cuda") and size > torch.cuda.device_count():
            raise ValueError(
                f"pipeline_parallel_size={size} needs as many CUDA devices, and torch sees "
                f"{torch.cuda.device_count()}"
            )
        self._meeting_place = tempfile.TemporaryDirectory(prefix="engine-stub-")
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_run_stage,
                args=(
                    theirs,
                    config,
                    model_config,
                    Stage(rank, size),
                    Path(self._meeting_place.name, "stages"),
                    torch.get_num_threads(),
                ),
                name=f"stage-{rank}",
                daemon=True,  # ended with the interpreter, if nobody has closed the engine
            )
            process.start()
            theirs.close()  # so that a stage's end is seen, and its own copy the only one
            self._connections.append(ours)
            self._processes.append(process)
        self._replies()

    def determine_num_available_blocks(self) -> int:
        """How many blocks the memory of each stage's device affords, at least 1."""
        blocks: list[int] = self._ask("determine_num_available_blocks")
        return min(blocks)

    def initialize_cache(self, *sizes: int) -> None:
        """Allocate every stage's part of the KV pool; see `Worker.initialize_cache`."""
        self._ask("initialize_cache", *sizes)

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Run a step through all stages.

        Raises:
            StageError: A stage has ended or failed; all are closed.
        """
        replies: list[tuple[float, bytes, bytes, list[int] | None]] = self._ask(
            "execute_model", encode(execute_model_req)
        )
        _, outputs, pooler_output, num_draft_tokens = replies[-1]
        return ModelOutput(
            decode(outputs, list[CompletionSequenceGroupOutput]),
            sum(forward_time for forward_time, *_ in replies),
            decode(pooler_output, PoolerOutput | None),  # type: ignore[arg-type] # it is a type
            num_draft_tokens,
        )

    def close(self, *, grace: float = _GRACE_SECONDS) -> None:
        """End the stages, by force those that have not gone after `grace` seconds."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(grace)
            if process.is_alive():
                process.kill()
                process.join()
        self._meeting_place.cleanup()

    def _ask(self, method: str, *arguments: Any) -> list[Any]:
        """Have every stage do something; returns what each of them says, in their order."""
        for connection in self._connections:
            # A stage that is gone is found when its reply is waited for.
            with contextlib.suppress(BrokenPipeError):
                connection.send((method, arguments))
        return self._replies()

    def _replies(self) -> list[Any]:
        """Wait for every stage.

        Raises:
            StageError: One has failed, or ended.
            OSError, ValueError: It could not load its part of the model.
        """
        replies: dict[Connection, Any] = {}
        while missing := [each for each in self._connections if each not in replies]:
            for connection in wait(missing):
                assert isinstance(connection, Connection)
                try:
                    reply = connection.recv()
                except (EOFError, OSError):
                    reply = self._ended(self._connections.index(connection))
                if isinstance(reply, Exception):
                    cause = self._cause(reply)
                    self.close(grace=0)
                    raise cause
                replies[connection] = reply
        return [replies[each] for each in self._connections]

    def _cause(self, error: Exception) -> Exception:
        """`error`, or that another stage's end has brought it about."""
        if isinstance(error, StageError):
            ranks = {process.sentinel: rank for rank, process in enumerate(self._processes)}
            for sentinel in wait(ranks, timeout=_MOMENT_SECONDS):
                if isinstance(sentinel, int) and self._processes[ranks[sentinel]].exitcode:
                    return self._ended(ranks[sentinel])
        return error

    def _ended(self, rank: int) -> StageError:
        """What to say of a stage that has closed its connection."""
        process = self._processes[rank]
        process.join(_GRACE_SECONDS)
        return StageError(
            f"pipeline stage {rank + 1} of {len(self._processes)} has ended with status "
            f"{process.exitcode}; start the engine again"
        )


class _Neighbours:
    """The stages before and after, by torch.distributed.

    Args:
        stage: The one in the middle.
        hidden_size: Of the states that are handed on.
    """

    def __init__(
        self, stage: Stage, hidden_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._stage = stage
        self._hidden_size = hidden_size
        self._device = device
        self._dtype = dtype

    def receive(self, num_tokens: int) -> IntermediateTensors:
        # Both sides lay out the same step, so that its shape need not be told.
        hidden = torch.empty(num_tokens, self._hidden_size, device=self._device, dtype=self._dtype)
        dist.recv(hidden, src=self._stage.rank - 1)
        return IntermediateTensors({"hidden_states": hidden})

    def send(self, tensors: IntermediateTensors) -> None:
        dist.send(tensors["hidden_states"], dst=self._stage.rank + 1)

    def agree(self, numbers: list[int]) -> list[int]:
        told = torch.tensor(numbers, device=self._device, dtype=torch.int64)
        dist.broadcast(told, src=self._stage.size - 1)
        agreed: list[int] = told.tolist()
        return agreed


def _run_stage(
    connection: Connection,
    config: EngineConfig,
    model_config: ModelConfig,
    stage: Stage,
    meeting_place: Path,
    num_threads: int,
) -> None:
    """A stage's process: answer the engine until it closes the connection."""
    # Ctrl-C reaches all processes of a terminal; what it means is the engine's to decide.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    try:
        worker = _set_up(config, model_config, stage, meeting_place)
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine has to know
        told = isinstance(error, (OSError, ValueError))
        connection.send(error if told else _failure(error, stage))
        os._exit(0)
    connection.send(None)
    try:
        while True:
            method, arguments = connection.recv()
            if method == "execute_model":
                output = worker.execute_model(decode(arguments[0], ExecuteModelRequest))
                connection.send(
                    (
                        output.model_forward_time,
                        encode(output.outputs),
                        encode(output.pooler_output),
                        output.num_draft_tokens,
                    )
                )
            else:
                connection.send(getattr(worker, method)(*arguments))
    except EOFError:
        pass  # the engine has closed, or is gone
    except Exception as error:  # noqa: BLE001 - as above
        with contextlib.suppress(OSError):
            connection.send(_failure(error, stage))
    # Taking leave of the neighbours might wait for one that is gone.
    os._exit(0)


def _set_up(
    config: EngineConfig, model_config: ModelConfig, stage: Stage, meeting_place: Path
) -> Worker:
    device = torch.device(config.device)
    if device.type == "cuda":
        device = torch.device("cuda", stage.rank)
        torch.cuda.set_device(device)
    # Stages are on one machine: what they exchange need not be heard outside it.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=meeting_place.as_uri(),
        rank=stage.rank,
        world_size=stage.size,
    )
    dtype = getattr(torch, config.dtype)
    neighbours = _Neighbours(stage, model_config.hidden_size, device, dtype)
    return Worker(replace(config, device=str(device)), model_config, stage, neighbours)


def _failure(error: Exception, stage: Stage) -> StageError:
    return StageError(
        f"pipeline stage {stage.rank + 1} of {stage.size} has failed: "
        f"{type(error).__name__}: {error}"
    )
