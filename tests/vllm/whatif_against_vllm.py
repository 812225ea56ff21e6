"""`seqtop whatif` with vLLM's own scheduler, against real runs of vLLM's EngineCore.

Run by `make test-vllm`, as `against_vllm.py`, for a few workloads; for more, with a table:

    NUM_WORKLOADS=20 pytest --confcutdir tests/vllm -s tests/vllm/whatif_against_vllm.py
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import token_executor
import vllm as vllm_package
from against_vllm import RUNS, serve, vllm
from stepped_against_vllm import full, version, window
from stepping import make_core
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched import interface
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine import core as engine_core

from seqtop.adapters.translate import Translator, engine_info
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.prefix_cache_observer import why_not_observable
from seqtop.adapters.vllm.probe import probe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.whatif import InProcess, VllmScheduler
from seqtop.adapters.wrapping import Wrapping
from seqtop.diff.comparison import RunComparison, compare
from seqtop.diff.run import RunDecisions
from seqtop.history import FileStore, FileWriter
from seqtop.history.recorder import Recorder
from seqtop.history.step_time import StepTime
from seqtop.live.session import Session
from seqtop.state.slo import Slo
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.whatif.advise import advise, sentence
from seqtop.whatif.predict import Question
from seqtop.whatif.replay import Clock, RecordingSink, ReplayOptions, ReplayResult, WorkloadReplay
from seqtop.whatif.workload import read_workload
from tests.support.waiting import SECONDS

ROOT = Path(__file__).resolve().parents[2]
NUM_WORKLOADS = int(os.environ.get("NUM_WORKLOADS", "2"))
STEP_TIME = StepTime(per_step=1e-3, per_prefill_token=1e-5, per_decode_token=1e-5)
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
    {"async_scheduling": True},  # or False, see `changes_of`
    {"watermark": 0.1},
    {"scheduler_reserve_full_isl": False},
)
ASYNC = next(index for index, change in enumerate(CHANGES) if "async_scheduling" in change)
ONLY_NEW = {"watermark", "scheduler_reserve_full_isl"}
"""Settings that versions before 0.20 do not have."""


engine_core.freeze_gc_heap = lambda: None  # half of the time of a run

COUNTS: defaultdict[str, Counter[str]] = defaultdict(Counter)
"""The figures of all workloads so far, for `docs/what-if.md`."""


class RandomWorkload:
    """Requests and aborts by the iteration of the engine before which they come."""

    def __init__(self, seed: int) -> None:
        random_of = random.Random(seed)
        self.arrivals: dict[int, list[dict[str, Any]]] = {}
        self.aborts: dict[int, list[str]] = {}
        self.late_aborts: dict[int, list[str]] = {}
        """Aborts that come while the model runs."""
        self.controls: dict[int, tuple[str, Any]] = {}
        self.names: list[str] = []
        iteration = 0
        for number in range(random_of.randrange(20, 40)):
            iteration += random_of.choice((0, 0, 1, 2, 4))
            name = f"req-{number}"
            self.names.append(name)
            shared = [300 + position for position in range(16 * random_of.randrange(4))]
            prompt = shared + [900 + number] * random_of.randrange(1, 100)
            stop = random_of.randrange(1, 60)
            params: dict[str, Any] = {
                "max_tokens": random_of.randrange(1, 60),
                "min_tokens": random_of.choice((0, 0, 1)),
            }
            if not number:  # the engine is never idle: each iteration is one call of `schedule`
                params["max_tokens"] = 120
            elif random_of.random() < 0.3:
                token = token_executor.token(f"{name}-00000000", len(prompt) + stop)
                params["stop_token_ids"] = [token]
            eos = token_executor.token(f"{name}-00000000", len(prompt) + 20)
            request = {
                "name": name,
                "prompt": prompt,
                "params": params,
                "eos": eos if number and random_of.random() < 0.2 else None,
                "priority": random_of.randrange(3),
                "cache_salt": random_of.choice((None, None, "one", "other")),
            }
            self.arrivals.setdefault(iteration, []).append(request)
            if number and seed % 2 and random_of.random() < 0.2:
                aborts = random_of.choice((self.aborts, self.late_aborts))
                aborts.setdefault(iteration + random_of.randrange(1, 25), []).append(name)

        if seed % 6 == 5:
            self._control(random_of, iteration)

    def _control(self, random_of: random.Random, last: int) -> None:
        """Adds resets of the prefix cache, and pauses."""
        for iteration in random_of.sample(range(5, last), 4):
            self.controls[iteration] = "reset_prefix_cache", random_of.random() < 0.5
        states = getattr(interface, "PauseState", ())
        for state in states:
            iteration = random_of.randrange(5, last)
            self.controls[iteration] = "set_pause_state", state
            self.controls[iteration + random_of.randrange(1, 9)] = (
                "set_pause_state",
                states.UNPAUSED,
            )

    def drive(self, core: Any, aborted: Collection[str] | None) -> None:
        """Runs the workload on an EngineCore; only the requests in `aborted` are aborted."""
        ids = {
            name: f"{name}-00000000" for name in self.names if aborted is None or name in aborted
        }
        last = max((*self.arrivals, *self.aborts, *self.late_aborts, *self.controls))
        for iteration in count():
            if iteration in self.controls:
                name, argument = self.controls[iteration]
                getattr(core.scheduler, name)(argument)
            for request in self.arrivals.get(iteration, ()):
                core.add_request(*core.preprocess_add_request(engine_request(**request)))
            if names := ids.keys() & self.aborts.get(iteration, ()):
                core.abort_requests([ids[name] for name in names])
            for name in ids.keys() & self.late_aborts.get(iteration, ()):
                core.aborts_queue.put_nowait([ids[name]])
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
        "arrival_time": time.time(),
        "lora_request": None,
        "cache_salt": cache_salt,
        "trace_headers": {"traceparent": f"00-{name.encode().hex():0>32.32}-{'2' * 16}-01"},
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


def changes_of(seed: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Other settings for a workload."""
    if seed % 6 == 5:
        return []  # these workloads have idle times, so that steps are no measure of time
    changes = [dict(change) for change in CHANGES]
    changes[ASYNC]["async_scheduling"] = not settings["async_scheduling"]
    if "kv_cache_specs" in settings:  # two groups share the pool
        for change in changes[:2]:
            change["num_gpu_blocks"] *= 2
    return [
        change
        for change in changes
        if not ("block_size" in change and "kv_cache_specs" in settings)
        and not (version() < (0, 20) and ONLY_NEW.intersection(change))
    ]


def record(
    path: Path, seed: int, settings: dict[str, Any], aborted: Collection[str] | None = None
) -> None:
    """Records a run of a real EngineCore."""
    names = {"num_gpu_blocks": "num_gpu_blocks_override", "policy": "scheduling_policy"}
    options = {names.get(name, name): value for name, value in settings.items()}
    if version() < (0, 20):
        options = {name: value for name, value in options.items() if name not in ONLY_NEW}
    observe(path, make_core(**options), lambda core: RandomWorkload(seed).drive(core, aborted))


def observe(path: Path, core: Any, drive: Callable[[Any], None], **clocks: Clock) -> None:
    """Records what an EngineCore does while it is driven.

    Args:
        path: The recording to write.
        core: The EngineCore; it is shut down.
        drive: Gives it requests, and steps it until they have ended.
        clocks: The clocks of the observer; by default those of the system.
    """
    failures: list[Exception] = []
    wrapping = Wrapping(failures.append)
    not_available = probe(core.scheduler)
    started, layout = describe(core.scheduler, PublisherSettings(bind="", tokenizer=""))
    if reason := why_not_observable(core.scheduler, layout):
        not_available.setdefault("prefix_misses", reason)
    started.not_available = not_available
    with FileWriter(path, overwrite=True) as writer:
        sink = RecordingSink(writer)
        sink.publish(engine_info(started))
        publisher = InProcess(Translator(started), sink.publish)
        SchedulerObserver(core.scheduler, wrapping.wrap, publisher, layout, not_available, **clocks)
        drive(core)
    wrapping.undo()
    assert not failures, failures
    core.scheduler.shutdown()


def predict(source: Path, target: Path, options: ReplayOptions) -> ReplayResult:
    with FileStore(source) as recording:
        workload = read_workload(recording)
    clock = Clock()
    with FileWriter(target, overwrite=True) as writer:
        replay = WorkloadReplay(workload, options, clock, RecordingSink(writer))
        return replay.run(VllmScheduler(workload, options, replay, clock, replay, source.name))


def compared(a: Path, b: Path) -> RunComparison:
    with FileStore(a) as first, FileStore(b) as second:
        return compare(RunDecisions(first), RunDecisions(second))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """True for async scheduling."""
    return bool(request.param)


@pytest.mark.parametrize("seed", range(NUM_WORKLOADS))
def test_a_recorded_run_comes_out_again_and_predictions_are_what_runs_do(
    tmp_path: Path, is_async: bool, seed: int
) -> None:
    base, again, real, predicted = (tmp_path / name for name in ("base", "again", "real", "pred"))
    settings = settings_of(seed, is_async=is_async)
    record(base, seed, settings)
    predict(base, again, ReplayOptions())
    comparison = compared(base, again)
    assert comparison.first is None
    assert not comparison.settings
    counts = Counter({"workloads": 1, "steps": comparison.num_equal_steps})
    wrong: list[str] = []
    with FileStore(base) as recording:  # an abort that came too late is in no recording
        aborted = {
            name for name, request in read_workload(recording).requests.items() if request.is_cut
        }
    for change in changes_of(seed, settings):
        record(real, seed, settings | change, aborted)
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
            wrong.append(f"{change}: {comparison.first} {comparison.settings}")
    way = "async" if is_async else "sync"
    COUNTS[way] += counts
    print(f"\nvLLM {vllm_package.__version__}, {way}: {dict(COUNTS[way])}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", range(0, 2 * NUM_WORKLOADS, 2))  # those without aborts
def test_the_advised_settings_decide_in_a_real_run_as_predicted(
    tmp_path: Path, is_async: bool, seed: int
) -> None:
    base, again, real, best = (tmp_path / name for name in ("base", "again", "real", "best"))
    settings = settings_of(seed, is_async=is_async)
    record(base, seed, settings)
    usual = predict(base, again, ReplayOptions(step_time=STEP_TIME)).figures
    assert usual.ttft.p50
    assert usual.tpot.p50
    question = Question(
        source=str(base),
        arrivals="step",
        step_time={"step": 1e-3, "prefill": 1e-5, "decode": 1e-5},
        python=sys.executable,
        output=str(best),
    )
    advice = advise(question, Slo(ttft=0.8 * usual.ttft.p50, tpot=1.5 * usual.tpot.p50))
    assert advice.best is not None, advice.basis.proof
    record(real, seed, settings | advice.best.settings)
    comparison = compared(real, best)
    way = "async" if is_async else "sync"
    print(
        f"\nvLLM {vllm_package.__version__}, {way}, workload {seed}: {sentence(advice)};"
        f" {comparison.num_equal_steps} steps equal to the real run"
    )
    assert comparison.first is None
    assert not comparison.settings
    assert compared(base, real).first is not None, "no advice had an effect"


@pytest.mark.parametrize("run", ["fcfs", "async", "async, model runner V2", "priority"])
def test_a_served_workload_comes_out_again(run: str, tmp_path: Path) -> None:
    """Arrivals and aborts come from clients, at any time, and pass through all of the adapter."""
    arguments, environ = RUNS[run]
    endpoint, source, target = f"ipc://{tmp_path}/e", tmp_path / "run", tmp_path / "again"
    with vllm(tmp_path, *arguments, SEQTOP_BIND=endpoint, **environ) as process:
        recorder = Recorder(FileWriter(source))
        session = Session(endpoint)
        session.add_listener(recorder.record)
        with session:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            serve(process, tmp_path)
            assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        recorder.close()
    result = predict(source, target, ReplayOptions())
    comparison = compared(source, target)
    print(f"\nvLLM {vllm_package.__version__}, {run}: {comparison.num_equal_steps} steps equal")
    assert comparison.first is None
    assert not comparison.settings
    assert not result.cut
    assert not result.refused


def test_recordings_are_tests_of_the_scheduler_that_is_installed(
    tmp_path: Path, is_async: bool
) -> None:
    for seed in range(2):
        record(tmp_path / f"{seed}.seqtop", seed, settings_of(seed, is_async=is_async))
    command = [sys.executable, "-m", "seqtop", "test", str(tmp_path), "--json"]
    done = subprocess.run(
        [*command, "--python", sys.executable], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert [own["outcome"] for own in document["recordings"]] == ["equal", "equal"]
    counts = {own["name"]: own["count"] for own in document["decisions"]}
    print(f"\nvLLM {vllm_package.__version__}: {counts}")
    assert counts["admitted"] > 30
    assert "swapped_in" not in counts


def test_another_version_differs_at_a_step_that_is_named(tmp_path: Path) -> None:
    """A recording, replayed by each version of vLLM that is installed beside this one."""
    own = Path(vllm_package.__file__).parents[1]
    others = [path.name for path in own.parent.iterdir() if path != own]
    if not others:
        pytest.skip("no other version of vLLM is installed")
    source = tmp_path / "run.seqtop"
    seed = 7  # with priorities, by which 0.24.0 and 0.33.0 decide otherwise
    record(source, seed, settings_of(seed, is_async=False))
    for name in (own.name, *others):
        python = tmp_path / name
        search = os.pathsep.join((str(own.parent / name), str(ROOT)))
        python.write_text(f'#!/bin/sh\nPYTHONPATH={search} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-m", "seqtop", "whatif", str(source), "--python", str(python)],
            capture_output=True,
            text=True,
            check=False,
        )
        print(f"\nrecorded by {own.name}, replayed by {name}: {done.stdout}")
        is_equal = "steps equal" in done.stdout and not done.returncode
        assert is_equal or (name in others and done.returncode == 1), done.stderr
