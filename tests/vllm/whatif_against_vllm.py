"""`seqtop whatif` with vLLM's own scheduler, against real runs of vLLM's EngineCore.

Run by `make test-vllm`, as `against_vllm.py`, for a few workloads; for more, with a table:

    NUM_WORKLOADS=20 pytest --confcutdir tests/vllm -s tests/vllm/whatif_against_vllm.py
"""

from __future__ import annotations

import os
import random
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import token_executor
import vllm
from stepped_against_vllm import full, version, window
from stepping import make_core
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest

from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.probe import probe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.settings import AdapterSettings
from seqtop.adapters.vllm.translate import Translator, engine_info
from seqtop.adapters.vllm.whatif import InProcess, VllmScheduler
from seqtop.adapters.vllm.wrapping import Wrapping
from seqtop.diff.comparison import Comparison, compare
from seqtop.diff.run import Run
from seqtop.history import FileStore, FileWriter
from seqtop.whatif.replay import Clock, RecordingSink, Replay, ReplayOptions, ReplayResult
from seqtop.whatif.step_time import StepTime
from seqtop.whatif.workload import Workload

NUM_WORKLOADS = int(os.environ.get("NUM_WORKLOADS", "2"))
STEP_TIME = StepTime(1e-3, 1e-5, 1e-5, 0.0, 0.0, None, None)
BASE: dict[str, Any] = {
    "num_gpu_blocks": 26,
    "block_size": 16,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 96,
    "max_model_len": 256,
}
CHANGES: tuple[dict[str, Any], ...] = (
    {"num_gpu_blocks": 31},
    {"num_gpu_blocks": 20},
    {"max_num_seqs": 3},
    {"max_num_batched_tokens": 48},
    {"enable_prefix_caching": False},
    {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
    {"long_prefill_token_threshold": 24},
    {"policy": "priority"},
    {"block_size": 32},
    {"async_scheduling": True},  # or False, if it was True
    {"watermark": 0.1},
    {"scheduler_reserve_full_isl": False},
)
ONLY_NEW = {"watermark", "scheduler_reserve_full_isl"}
"""Settings that versions before 0.20 do not have."""


class RandomWorkload:
    """Requests and aborts by the iteration of the engine before which they come."""

    def __init__(self, seed: int) -> None:
        random_of = random.Random(seed)
        self.arrivals: dict[int, list[dict[str, Any]]] = {}
        self.aborts: dict[int, list[str]] = {}
        self.late_aborts: dict[int, list[str]] = {}
        """Aborts that come while the model runs."""
        iteration = 0
        for number in range(random_of.randrange(20, 40)):
            iteration += random_of.choice((0, 0, 1, 2, 4))
            name = f"req-{number}"
            shared = [300 + position for position in range(16 * random_of.randrange(4))]
            prompt = shared + [900 + number] * random_of.randrange(1, 100)
            stop = random_of.randrange(1, 60)
            params = {
                "max_tokens": random_of.randrange(1, 60),
                "min_tokens": random_of.choice((0, 0, 1)),
            }
            if random_of.random() < 0.3:
                token = token_executor.token(f"{name}-00000000", len(prompt) + stop)
                params["stop_token_ids"] = [token]
            eos = token_executor.token(f"{name}-00000000", len(prompt) + 20)
            request = {
                "name": name,
                "prompt": prompt,
                "params": params,
                "eos": eos if random_of.random() < 0.2 else None,
                "priority": random_of.randrange(3),
                "cache_salt": random_of.choice((None, None, "one", "other")),
            }
            self.arrivals.setdefault(iteration, []).append(request)
            if seed % 2 and random_of.random() < 0.2:
                aborts = random_of.choice((self.aborts, self.late_aborts))
                aborts.setdefault(iteration + random_of.randrange(1, 25), []).append(name)

    def drive(self, core: Any) -> None:
        """Runs the workload on an EngineCore."""
        last = max((*self.arrivals, *self.aborts, *self.late_aborts))
        for iteration in count():
            for request in self.arrivals.get(iteration, ()):
                core.add_request(*core.preprocess_add_request(engine_request(**request)))
            if names := self.aborts.get(iteration):
                core.abort_requests([f"{name}-00000000" for name in names])
            for name in self.late_aborts.get(iteration, ()):
                core.aborts_queue.put_nowait([f"{name}-00000000"])
            if core.scheduler.has_requests() or core.batch_queue:
                core.step_fn()
            elif iteration > last:
                return


def engine_request(
    name: str,
    prompt: list[int],
    params: dict[str, Any],
    eos: int | None,
    priority: int,
    cache_salt: str | None,
) -> EngineCoreRequest:
    """A request as vLLM's front end sends it."""
    sampling = SamplingParams(temperature=0, ignore_eos=eos is None, detokenize=False, **params)
    if hasattr(sampling, "_eos_token_id"):
        sampling._eos_token_id = eos
    fields: dict[str, Any] = {
        "request_id": f"{name}-00000000",
        "external_req_id": name,
        "prompt_token_ids": prompt,
        "mm_features": None,
        "sampling_params": sampling,
        "pooling_params": None,
        "arrival_time": 1.0,
        "lora_request": None,
        "cache_salt": cache_salt,
        "data_parallel_rank": None,
        "priority": priority,
        "eos_token_id": eos,
    }
    known = EngineCoreRequest.__struct_fields__
    return EngineCoreRequest(**{key: value for key, value in fields.items() if key in known})


def settings_of(seed: int, *, is_async: bool) -> dict[str, Any]:
    """The settings of a workload."""
    random_of = random.Random(seed)
    settings = BASE | {"async_scheduling": is_async}
    settings["num_gpu_blocks"] = random_of.randrange(22, 34)
    if seed % 4 == 3:
        settings["policy"] = "priority"
    if seed % 5 == 4:
        settings["kv_cache_specs"] = {"a": window(), "b": full()}
        settings["num_gpu_blocks"] *= 2
    return settings


def record(path: Path, seed: int, settings: dict[str, Any]) -> None:
    """Records a run of a real EngineCore."""
    names = {"num_gpu_blocks": "num_gpu_blocks_override", "policy": "scheduling_policy"}
    options = {names.get(name, name): value for name, value in settings.items()}
    if version() < (0, 20):
        options = {name: value for name, value in options.items() if name not in ONLY_NEW}
    core = make_core(**options)
    failures: list[Exception] = []
    wrapping = Wrapping(failures.append)
    not_available = probe(core.scheduler)
    started, layout = describe(core.scheduler, AdapterSettings(bind="", tokenizer=""))
    if reason := why_not_observable(core.scheduler, layout):
        not_available.setdefault("prefix_misses", reason)
    started.not_available = not_available
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(started))
        publisher = InProcess(Translator(started), sink.publish)
        SchedulerObserver(core.scheduler, wrapping.wrap, publisher, layout, not_available)
        RandomWorkload(seed).drive(core)
    wrapping.undo()
    assert not failures
    core.shutdown()


def predict(source: Path, target: Path, options: ReplayOptions) -> ReplayResult:
    with FileStore(source) as recording:
        workload = Workload(recording)
    clock = Clock()
    replay = Replay(workload, options, clock)
    with FileWriter(target, overwrite=True) as writer:
        sink = RecordingSink(writer)
        scheduler = VllmScheduler(workload, options, replay, clock, sink, source.name)
        return replay.run(scheduler)


def compared(a: Path, b: Path) -> Comparison:
    with FileStore(a) as first, FileStore(b) as second:
        return compare(Run(first), Run(second))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """True for async scheduling."""
    return bool(request.param)


def test_recorded_runs_come_out_again_and_predictions_are_what_runs_do(
    tmp_path: Path, is_async: bool
) -> None:
    base, again, real, predicted = (tmp_path / name for name in ("base", "again", "real", "pred"))
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for seed in range(NUM_WORKLOADS):
        settings = settings_of(seed, is_async=is_async)
        record(base, seed, settings)
        predict(base, again, ReplayOptions())
        comparison = compared(base, again)
        counts["steps"] += comparison.num_equal_steps
        if comparison.first is not None or comparison.settings:
            wrong.append(f"{seed}: {comparison.first} {comparison.settings}")
        for change in CHANGES:
            change = dict(change)
            if "async_scheduling" in change:
                change["async_scheduling"] = not is_async
            if "block_size" in change and "kv_cache_specs" in settings:
                continue
            if version() < (0, 20) and not ONLY_NEW.isdisjoint(change):
                continue
            record(real, seed, settings | change)
            options = ReplayOptions(settings=change, step_time=STEP_TIME)
            result = predict(base, predicted, options)
            comparison = compared(real, predicted)
            counts["predictions"] += 1
            counts["without effect"] += compared(base, real).first is None
            if comparison.first is None and not comparison.settings:
                counts["equal"] += 1
                counts["equal steps"] += comparison.num_equal_steps
            elif result.cut:
                counts["tokens missing"] += 1  # an aborted request would have got further
            else:
                wrong.append(f"{seed} {change}: {comparison.first} {comparison.settings}")
    way = "async" if is_async else "sync"
    print(f"\nvLLM {vllm.__version__}, {way}, {NUM_WORKLOADS} workloads: {dict(counts)}")
    assert not wrong, "\n".join(wrong)
