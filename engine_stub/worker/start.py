"""The start of the worker that runs the model; apart, as it imports torch."""

from __future__ import annotations

import dataclasses

from engine_stub.config import EngineConfig
from engine_stub.model_executor.model_config import ModelConfig
from engine_stub.platforms import resolve_device, resolve_dtype
from engine_stub.worker.pipeline import Pipeline
from engine_stub.worker.worker import Worker


def start_worker(
    config: EngineConfig, model_config: ModelConfig
) -> tuple[EngineConfig, Worker | Pipeline]:
    """Returns `config` with its device and dtype resolved, and the worker for it.

    Raises:
        ValueError: There is no such device or dtype.
        FileNotFoundError, UnsupportedModel, WeightsError: See `load_model`.
        StageError: A pipeline stage's process ended while it was being set up.
    """
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.dtype, device, model_config.torch_dtype)
    config = dataclasses.replace(config, device=device, dtype=dtype)
    is_one_stage = config.pipeline_parallel_size == 1
    return config, (Worker if is_one_stage else Pipeline)(config, model_config)
