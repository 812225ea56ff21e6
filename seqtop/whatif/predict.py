"""Repeats a recorded run, and predicts it with other settings."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from seqtop.diff.comparison import Difference, compare
from seqtop.diff.run import Run
from seqtop.history.file_store import FileStore
from seqtop.whatif.driver import DriverError, ReplayRequest, driver_of, run_driver
from seqtop.whatif.prediction import ChangedRequest, Figure, changed_requests, figures
from seqtop.whatif.replay import Arrivals, ReplayOptions, ReplayResult
from seqtop.whatif.settings import parse_change
from seqtop.whatif.step_time import StepTime, fit
from seqtop.whatif.workload import Workload, WorkloadError
from seqtop.wire.messages import Setting

_PROOF, _UNCHANGED, _PREDICTED = "proof", "unchanged", "predicted"


class Question(msgspec.Struct, kw_only=True):
    """What is to be predicted. Without any change, the recording is only repeated."""

    recording: str
    """The path of the recording."""
    changes: list[str] = []
    """Settings with new values, such as `max_num_seqs=64`."""
    arrivals: Arrivals = "time"
    scale_arrivals: float = 1.0
    without: list[str] = []
    """Ids of requests that are left out."""
    anyway: bool = False
    """Whether to predict even if the recording cannot be repeated."""
    output: str | None = None
    """The path of the prediction; `None` to drop it."""
    overwrite: bool = False
    """True if the file at `output` is to be replaced."""
    model: str | None = None
    """The directory of the model, if it is not where the recording says."""

    @property
    def has_changes(self) -> bool:
        """True if something is to be predicted."""
        return bool(self.changes or self.without) or self.scale_arrivals != 1.0


class Prediction(msgspec.Struct):
    """The proof, and the prediction if there is one."""

    question: Question
    settings: dict[str, Setting]
    """The changed settings."""
    recorded_settings: dict[str, Setting]
    """Their recorded values."""
    num_steps: int
    """Steps of the recording."""
    num_equal_steps: int
    """Steps that were repeated with the same decisions, before the first difference."""
    first_difference: Difference | None
    num_requests: int
    num_free_lengths: int
    """Requests that end by themselves and sample without a seed: with other settings, a real run
    may sample other lengths."""
    step_time: StepTime | None = None
    figures: list[Figure] = []
    changed: list[ChangedRequest] = []
    result: ReplayResult | None = None

    @property
    def is_proven(self) -> bool:
        """True if the recording was repeated, decision by decision."""
        return self.first_difference is None


def predict(question: Question) -> Prediction:
    """Answers a question.

    Raises:
        RecordingError: The recording cannot be read.
        WorkloadError: It cannot be replayed.
        SettingError: A setting cannot be changed in this way.
        StepTimeError: It does not determine the times of steps.
        DriverError: The engine's scheduler cannot be run, or refuses the settings.
    """
    with FileStore(question.recording) as recording:
        recording.require()
        workload, recorded = Workload(recording), Run(recording)
    module = driver_of(workload.info)
    before = dict(parse_change(text, workload.info) for text in question.changes)
    if unknown := [name for name in question.without if name not in workload.requests]:
        raise WorkloadError(f"the recording has no request {unknown[0]!r}")
    answer = Prediction(
        question,
        before,
        {name: _value(workload, name) for name in before},
        len(recorded.steps),
        0,
        None,
        len(workload.requests),
        workload.num_free_lengths,
    )
    if question.has_changes:
        answer.step_time = fit(workload.steps)
        answer.step_time.check_prefill()
    with tempfile.TemporaryDirectory(prefix="seqtop-") as directory:
        runs = _runs(question, answer)
        paths = {name: str(Path(directory, f"{name}.seqtop")) for name in runs}
        if question.output is not None:
            paths[_PREDICTED if question.has_changes else _PROOF] = question.output
        requests = (
            ReplayRequest(question.recording, paths[name], options, question.overwrite)
            for name, options in runs.items()
        )
        made: dict[str, Run] = {}
        for name, result in zip(runs, run_driver(module, requests), strict=False):
            if result.error is not None:
                raise DriverError(result.error)
            with FileStore(paths[name]) as replayed:
                made[name] = Run(replayed)
            answer.result = result
            if name == _PROOF:
                comparison = compare(recorded, made[name])
                answer.num_equal_steps = comparison.num_equal_steps
                answer.first_difference = comparison.first
                if not answer.is_proven and not question.anyway:
                    return answer
    if question.has_changes:
        answer.figures = figures(recorded, made[_UNCHANGED], made[_PREDICTED])
        answer.changed = changed_requests(made[_UNCHANGED], made[_PREDICTED])
    return answer


def _runs(question: Question, answer: Prediction) -> dict[str, ReplayOptions]:
    """Returns the replays to make, in order, by name."""
    runs = {_PROOF: ReplayOptions(model=question.model)}
    if question.has_changes:
        runs[_UNCHANGED] = ReplayOptions(
            arrivals=question.arrivals, step_time=answer.step_time, model=question.model
        )
        runs[_PREDICTED] = ReplayOptions(
            settings=answer.settings,
            arrivals=question.arrivals,
            scale_arrivals=question.scale_arrivals,
            without=question.without,
            step_time=answer.step_time,
            model=question.model,
        )
    return runs


def _value(workload: Workload, name: str) -> Setting:
    settings = workload.info.scheduler_settings
    value: Setting = settings[name] if name in settings else getattr(workload.info, name)
    return value
