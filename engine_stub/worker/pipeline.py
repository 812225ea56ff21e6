"""A decoder over several processes, one for each of its stages.

The engine's process sends every stage the same `ExecuteModelRequest`, in its wire form. Each stage
runs its own layers on its own part of the KV cache, with the same block numbers as all others, and
sends `IntermediateTensors` to the next stage by torch.distributed (gloo on a CPU, NCCL on CUDA).
The last stage samples. One step is in flight at a time: a stage is idle while the others compute,
and `virtual_engine` is always 0.

A stage exits when its connection to the engine closes, so that no stage outlives an engine that was
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
from engine_stub.platforms import platform_of
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.worker import Worker
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    IntermediateTensors,
    PoolerOutput,
)
from seqtop.wire import decode, encode

_GRACE_SECONDS = 5.0
# A stage notices the end of another one's process up to this long before the engine can see it.
_EXIT_SECONDS = 0.5


class StageError(RuntimeError):
    """A stage's process ended or failed, so that the engine cannot continue."""


class Pipeline:
    """A pipeline of workers, one per stage, with the interface of a single `Worker`.

    Args:
        config: The engine's settings, all resolved but the sizes of the pools.
        model_config: The shape of the model that `config` names.

    Raises:
        ValueError: There are more stages than layers, or than devices.
        FileNotFoundError, UnsupportedModel, WeightsError: See `load_model`.
        StageError: A stage's process ended while it loaded its part of the model.
    """

    def __init__(self, config: EngineConfig, model_config: ModelConfig) -> None:
        size = config.pipeline_parallel_size
        if size > model_config.num_hidden_layers:
            raise ValueError(
                f"pipeline_parallel_size={size} is more than the model's "
                f"{model_config.num_hidden_layers} layers"
            )
        platform_of(config.device).stage_device(size - 1)  # there is one for each stage
        self._rendezvous = tempfile.TemporaryDirectory(prefix="engine-stub-")
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
                    Path(self._rendezvous.name, "stages"),
                    torch.get_num_threads(),
                ),
                name=f"stage-{rank}",
                daemon=True,  # ends with the interpreter if the engine was not closed
            )
            process.start()
            theirs.close()  # the stage's own copy must be the only one, or its end goes unnoticed
            self._connections.append(ours)
            self._processes.append(process)
        self._wait_for_replies()

    def determine_num_available_blocks(self) -> int:
        """Returns the number of blocks that every stage has room for; see `Worker`."""
        blocks: list[int] = self._call("determine_num_available_blocks")
        return min(blocks)

    def initialize_cache(self, *sizes: int) -> None:
        """Allocates every stage's part of the KV pool; see `Worker.initialize_cache`."""
        self._call("initialize_cache", *sizes)

    def execute_model(self, execute_model_req: ExecuteModelRequest) -> ModelOutput:
        """Runs a step through all stages.

        Raises:
            StageError: A stage ended or failed; all stages are closed.
        """
        replies: list[tuple[float, bytes, bytes, list[int] | None, dict[int, str]]] = self._call(
            "execute_model", encode(execute_model_req)
        )
        _, outputs, pooler_output, num_draft_tokens, errors = replies[-1]
        return ModelOutput(
            decode(outputs, list[CompletionSequenceGroupOutput]),
            sum(forward_time for forward_time, *_ in replies),
            decode(pooler_output, PoolerOutput | None),  # type: ignore[arg-type] # it is a type
            num_draft_tokens,
            errors,
        )

    def close(self, *, grace: float = _GRACE_SECONDS) -> None:
        """Ends the stages; kills those that are still alive after `grace` seconds."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(grace)
            if process.is_alive():
                process.kill()
                process.join()
        self._rendezvous.cleanup()

    def _call(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of every stage's worker; returns the results in the stages' order."""
        for connection in self._connections:
            # The end of a stage is detected while waiting for its reply.
            with contextlib.suppress(BrokenPipeError):
                connection.send((method, arguments))
        return self._wait_for_replies()

    def _wait_for_replies(self) -> list[Any]:
        """Waits for the reply of every stage.

        Raises:
            StageError: A stage failed or ended.
            OSError, ValueError: A stage could not load its part of the model.
        """
        replies: dict[Connection, Any] = {}
        while missing := [
            connection for connection in self._connections if connection not in replies
        ]:
            for connection in wait(missing):
                assert isinstance(connection, Connection)
                try:
                    reply = connection.recv()
                except (EOFError, OSError):
                    reply = self._exit_error(self._connections.index(connection))
                if isinstance(reply, Exception):
                    cause = self._cause(reply)
                    self.close(grace=0)
                    raise cause
                replies[connection] = reply
        return [replies[connection] for connection in self._connections]

    def _cause(self, error: Exception) -> Exception:
        """Returns `error`, or the end of another stage if that caused it."""
        if isinstance(error, StageError):
            ranks = {process.sentinel: rank for rank, process in enumerate(self._processes)}
            for sentinel in wait(ranks, timeout=_EXIT_SECONDS):
                if isinstance(sentinel, int) and self._processes[ranks[sentinel]].exitcode:
                    return self._exit_error(ranks[sentinel])
        return error

    def _exit_error(self, rank: int) -> StageError:
        """Returns the error for a stage that has closed its connection."""
        process = self._processes[rank]
        process.join(_GRACE_SECONDS)
        return StageError(
            f"pipeline stage {rank + 1} of {len(self._processes)} has ended with status "
            f"{process.exitcode}; start the engine again"
        )


class _DistributedComm:
    """A `PipelineComm` over torch.distributed.

    Args:
        stage: This process's stage.
        hidden_size: The size of the hidden states passed between stages.
    """

    def __init__(
        self, stage: Stage, hidden_size: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._stage = stage
        self._hidden_size = hidden_size
        self._device = device
        self._dtype = dtype

    def receive(self, num_tokens: int) -> IntermediateTensors:
        # Both sides lay out the same step, so that its shape need not be sent.
        hidden = torch.empty(num_tokens, self._hidden_size, device=self._device, dtype=self._dtype)
        dist.recv(hidden, src=self._stage.rank - 1)
        return IntermediateTensors({"hidden_states": hidden})

    def send(self, tensors: IntermediateTensors) -> None:
        dist.send(tensors["hidden_states"], dst=self._stage.rank + 1)

    def broadcast_from_last(self, numbers: list[int]) -> list[int]:
        tensor = torch.tensor(numbers, device=self._device, dtype=torch.int64)
        dist.broadcast(tensor, src=self._stage.size - 1)
        received: list[int] = tensor.tolist()
        return received


def _run_stage(
    connection: Connection,
    config: EngineConfig,
    model_config: ModelConfig,
    stage: Stage,
    rendezvous: Path,
    num_threads: int,
) -> None:
    """The main function of a stage's process: serves the engine until it disconnects."""
    # Ctrl-C reaches all processes of a terminal; only the engine should react to it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(num_threads)
    try:
        worker = _make_worker(config, model_config, stage, rendezvous)
    except Exception as error:  # noqa: BLE001 - the engine reports any failure
        is_expected = isinstance(error, (OSError, ValueError))
        connection.send(error if is_expected else _failure(error, stage))
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
                        output.errors,
                    )
                )
            else:
                connection.send(getattr(worker, method)(*arguments))
    except EOFError:
        pass  # the engine closed the connection, or ended
    except Exception as error:  # noqa: BLE001 - as above
        with contextlib.suppress(OSError):
            connection.send(_failure(error, stage))
    # An orderly shutdown of torch.distributed may wait for a stage that has ended.
    os._exit(0)


def _make_worker(
    config: EngineConfig, model_config: ModelConfig, stage: Stage, rendezvous: Path
) -> Worker:
    platform = platform_of(config.device)
    device = platform.stage_device(stage.rank)
    platform.activate(device)
    # All stages are on one machine: they use its loopback interface only.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    dist.init_process_group(
        platform.distributed_backend,
        init_method=rendezvous.as_uri(),
        rank=stage.rank,
        world_size=stage.size,
    )
    dtype = getattr(torch, config.dtype)
    comm = _DistributedComm(stage, model_config.hidden_size, device, dtype)
    return Worker(replace(config, device=str(device)), model_config, stage, comm)


def _failure(error: Exception, stage: Stage) -> StageError:
    return StageError(
        f"pipeline stage {stage.rank + 1} of {stage.size} has failed: "
        f"{type(error).__name__}: {error}"
    )
