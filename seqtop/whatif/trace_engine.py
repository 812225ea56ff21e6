"""The engine that a trace is replayed by: one of a recording, or the bundled one."""

from __future__ import annotations

import msgspec

from seqtop.history.file_store import FileStore
from seqtop.whatif.settings import SettingError, parse_change
from seqtop.whatif.traces import Trace
from seqtop.wire.messages import EngineInfo, Setting

_DEFAULTS = EngineInfo(
    engine_id="trace",
    incarnation="trace",
    engine="engine_stub",
    model="bundled stories",
    dtype="",
    device="",
    start_time=0.0,
    block_size=16,
    num_gpu_blocks=0,
    num_cpu_blocks=0,
    max_num_seqs=64,
    max_num_batched_tokens=512,
    max_model_len=0,
    enable_chunked_prefill=True,
    enable_prefix_caching=True,
    preemption_mode="recompute",
    scheduler_settings={
        "num_scheduler_steps": 1,
        "num_speculative_tokens": 4,
        "pipeline_parallel_size": 1,
        "preemption_victim": "last",
        "seed": 0,
        "speculative": None,
    },
)
"""The bundled engine with its own defaults, without a size of its pool and of a sequence."""


def engine_of(trace: Trace, changes: list[str], calibrations: list[str]) -> EngineInfo:
    """Returns the engine that replays a trace.

    Args:
        trace: The trace.
        changes: Settings with their values, such as `num_gpu_blocks=4000`.
        calibrations: Recordings of the engine; the first one has its settings.

    Raises:
        RecordingError: A recording cannot be read.
        SettingError: A setting is unknown, or the size of the pool is not known.
    """
    info = _DEFAULTS
    if calibrations:
        with FileStore(calibrations[0]) as recording:
            recording.require()
            known = recording.at(recording.last).info
        if known is None:
            raise SettingError(f"{calibrations[0]} does not describe its engine")
        info = known
    info = msgspec.structs.replace(info, start_time=0.0, predicted_from="")
    info = _with(info, dict(parse_change(text, info) for text in changes))
    if info.num_gpu_blocks < 1:
        raise SettingError(
            "the size of the engine's pool is not known: --set num_gpu_blocks=… gives it, or"
            " --calibrate a recording of the engine"
        )
    if info.max_model_len < 1:
        longest = max(own.input_length + own.output_length for own in trace.requests)
        most = info.num_gpu_blocks * info.block_size
        info = msgspec.structs.replace(info, max_model_len=min(longest, most))
    return info


def _with(info: EngineInfo, settings: dict[str, Setting]) -> EngineInfo:
    """Returns a description with other settings."""
    fields = {name: value for name, value in settings.items() if hasattr(info, name)}
    others = {name: value for name, value in settings.items() if not hasattr(info, name)}
    scheduler_settings = {**info.scheduler_settings, **others}
    return msgspec.structs.replace(info, **fields, scheduler_settings=scheduler_settings)
