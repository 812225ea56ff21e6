"""Repeats a recorded run, and predicts it with other settings."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from seqtop.diff.run import RunDecisions
from seqtop.history.file_format import SIGNATURE
from seqtop.history.file_store import FileStore
from seqtop.history.step_time import Size, StepTime, StepTimeError, fit
from seqtop.history.timed_steps import TimedStep
from seqtop.history.timeline import RecordingError
from seqtop.process import files
from seqtop.text.tokenizer_file import TokenizerError
from seqtop.whatif.changed_requests import ChangedRequest, changed_requests
from seqtop.whatif.driver import (
    DriverError,
    Drivers,
    ReplayRequest,
    ShowProgress,
    TraceInput,
    driver_of,
    no_progress,
)
from seqtop.whatif.figures import PERCENTILES, RunFigures
from seqtop.whatif.proof import Proof, prove
from seqtop.whatif.replay import Arrivals, ReplayOptions, ReplayResult
from seqtop.whatif.settings import (
    POLICY,
    SettingError,
    parse_change,
    policy_change,
    recorded_policy,
    recorded_settings,
)
from seqtop.whatif.trace_engine import engine_of
from seqtop.whatif.trace_options import read_trace
from seqtop.whatif.trace_workload import trace_workload
from seqtop.whatif.traces import TraceError
from seqtop.whatif.workload import WorkloadError, read_steps, read_workload
from seqtop.wire.messages import Setting

WHATIF_ERRORS = (
    RecordingError,
    TraceError,
    WorkloadError,
    SettingError,
    StepTimeError,
    DriverError,
    TokenizerError,
)
"""The errors of a question that has no answer; each is one sentence for the user."""

_LARGE_DISTANCE = 0.1
"""The distance of the model's TTFT from the recorded one, relative to that, which is explained."""


class Question(msgspec.Struct, kw_only=True):
    """The settings of a prediction. Without any change, a recording is only repeated."""

    source: str
    """The path of the recording or of the trace."""
    changes: list[str] = []
    """Settings with new values, such as `max_num_seqs=64`."""
    arrivals: Arrivals = "time"
    scale_arrivals: float = 1.0
    without: list[str] = []
    """Ids of requests that are left out."""
    step_time: dict[str, float] = {}
    """Given coefficients of the model of times, in seconds by name."""
    calibrations: list[str] = []
    """Paths of other recordings whose steps the model of times is fitted to, too."""
    anyway: bool = False
    """Predict even if the recording cannot be repeated."""
    output: str | None = None
    """The path of the prediction; `None` to drop it."""
    overwrite: bool = False
    """True if the file at `output` is to be replaced."""
    policy: str | None = None
    """The Python file of a scheduling policy of the bundled engine; `None` for its own."""
    model: str | None = None
    """The directory of the model, if it is not where the recording says."""
    limit: int | None = None
    """The number of the first requests of a trace that are taken; `None` for all."""
    request_rate: float | None = None
    """Requests per second of a trace without times."""
    scale_lengths: float = 1.0
    """The factor by which prompts and outputs of a trace are longer."""
    tokenizer: str | None = None
    """A `tokenizer.json` or its folder, for a trace with texts."""
    python: str = sys.executable
    """The Python that runs the engine's scheduler."""

    @property
    def has_changes(self) -> bool:
        """True if something is to be predicted."""
        is_other_load = bool(self.without) or self.scale_arrivals != 1.0
        return is_other_load or bool(self.changes or self.policy)


class Calibration(msgspec.Struct):
    """Another recording whose steps the model of times is fitted to."""

    path: str
    num_steps: int
    ratio: float | None
    """The time of its steps divided by what the model of the recording alone gives for them: what
    differs from run to run; `None` if the recording has no model alone."""


class TraceSummary(msgspec.Struct):
    """A trace that is the workload."""

    format: str
    left_out: dict[str, int]
    """Numbers of rows that are not replayed, by the reason."""


class Basis(msgspec.Struct):
    """The knowledge about a recording or a trace on which its predictions are based."""

    source: str
    proof: Proof | None
    """`None` for a trace, of which nothing can be repeated."""
    num_requests: int
    num_free_lengths: int
    """Requests that end by themselves and sample without a seed: with other settings, a real run
    may sample other lengths."""
    unfinished: list[str]
    """Requests that had not ended in the recording: a replay runs on until their recorded tokens
    are used up, and cuts them off."""
    recorded: RunFigures
    step_time: StepTime | None = None
    """`None` if only the proof was made."""
    calibrations: list[Calibration] = []
    arrivals: Arrivals = "time"
    trace: TraceSummary | None = None
    """`None` for a recording."""
    settings: dict[str, Setting] = {}
    """The settings of the engine, as recorded or as given for a trace."""
    times_unknown: str = ""
    """The reason why the times of steps are not known, so that arrivals are those before the same
    steps, and only decisions are predicted; empty if they are known."""

    @property
    def is_proven(self) -> bool:
        """True if nothing says that the scheduler is not the one of the source."""
        return self.proof is None or self.proof.is_proven


class ModelDistance(msgspec.Struct):
    """The distance of a figure of the model from the recorded one, with unchanged settings.

    All are seconds.
    """

    percent: int
    """The percentile of the TTFT."""
    recorded: float
    by_step: float
    """With the times of the model, and arrivals before the same steps."""
    by_time: float
    """With the times of the model, and arrivals at their times."""


class Prediction(msgspec.Struct):
    """The proof, and the prediction if there is one."""

    question: Question
    basis: Basis
    settings: dict[str, Setting]
    """The changed settings."""
    recorded_settings: dict[str, Setting]
    """Their recorded values."""
    unchanged: ReplayResult | None = None
    """The recorded settings with the times of the model; `None` without a prediction."""
    predicted: ReplayResult | None = None
    changed: list[ChangedRequest] = []
    distance: ModelDistance | None = None
    """The TTFT with the largest distance, if that is more than a tenth of the recorded one."""


class Replays:
    """Replays of the recording or trace of one question, by processes of the driver of its engine.

    A context manager starts and ends the processes.

    Args:
        question: The question.
        progress: Shows the progress.

    Attributes:
        settings: The changed settings.
        step_time: The model of times, once `fit` was called.

    Raises:
        RecordingError: The recording cannot be read.
        WorkloadError: It cannot be replayed.
        SettingError: A setting cannot be changed in this way.
        DriverError: The engine has no driver.
    """

    def __init__(self, question: Question, progress: ShowProgress = no_progress) -> None:
        _check(question)
        self.question = question
        self.settings: dict[str, Setting] = {}
        self._trace: TraceInput | None = None
        proof, trace = None, None
        if _is_recording(question.source):
            proof = self._read_recording()
        else:
            trace = self._read_trace()
        unknown = [name for name in question.without if name not in self.workload.requests]
        if unknown:
            source = "recording" if trace is None else "trace"
            raise WorkloadError(f"the {source} has no request {unknown[0]!r}")
        self.basis = Basis(
            question.source,
            proof,
            len(self.workload.requests),
            self.workload.num_free_lengths,
            self.workload.unfinished,
            self.workload.figures,
            arrivals=question.arrivals,
            trace=trace,
            settings=recorded_settings(self.workload.info),
        )
        module = driver_of(self.workload.info)
        if question.policy is not None:
            self.settings |= policy_change(question.policy, self.workload.info)
        self._drivers = Drivers(module, python=question.python, progress=progress)

    def _read_recording(self) -> Proof:
        question = self.question
        with FileStore(question.source) as recording:
            recording.require()
            if recording.damage:
                raise WorkloadError(f"{recording.damage}; only a whole run can be replayed")
            self.workload = read_workload(recording)
            self.settings = dict(
                parse_change(text, self.workload.info) for text in question.changes
            )
            starts_late = recording.at(recording.first).step >= 0
        return Proof(len(self.workload.steps), 0, None, "", starts_late, is_complete=False)

    def _read_trace(self) -> TraceSummary:
        question = self.question
        if question.arrivals != "time":
            raise SettingError("a trace has no steps or ends: its requests arrive by time")
        try:
            trace = read_trace(
                question.source,
                tokenizer=question.tokenizer,
                request_rate=question.request_rate,
                limit=question.limit,
                scale_lengths=question.scale_lengths,
            )
        except TraceError as error:
            raise TraceError(
                f"{question.source} is neither a seqtop recording nor a trace: {error}"
            ) from error
        info = engine_of(trace, question.changes, question.calibrations)
        trace = trace.fitting(info.max_model_len)
        if not trace.requests:
            raise TraceError(f"no request of it fits {info.max_model_len:,} tokens")
        self.workload = trace_workload(trace, info)
        self._trace = TraceInput(
            info,
            tokenizer=question.tokenizer,
            request_rate=question.request_rate,
            limit=question.limit,
            scale_lengths=question.scale_lengths,
        )
        return TraceSummary(trace.format, trace.left_out)

    def __enter__(self) -> Replays:
        return self

    def __exit__(self, *_: object) -> None:
        self._drivers.__exit__()

    def fit(self) -> None:
        """Fits the model of times.

        Raises:
            StepTimeError: The recordings do not determine the times of steps.
            RecordingError: A recording for the calibration cannot be read.
            WorkloadError: It is of another model or device.
        """
        own, question = self.workload.steps, self.question
        steps = [*own]
        alone = _fit_or_none(own) if question.calibrations else None
        for path in question.calibrations:
            try:
                with FileStore(path) as other:
                    other.require()
                    read = read_steps(other, self.workload.info)
            except WorkloadError as error:
                raise WorkloadError(f"{path}: {error}") from error
            steps += read
            self.basis.calibrations.append(Calibration(path, len(read), _ratio(read, alone)))
        self.basis.step_time = fit(steps, question.step_time)

    def fit_or_guess(self) -> None:
        """Fits the model of times. Without one, each step takes the mean time of all.

        Arrivals are then those before the same steps, so that decisions depend on no time.

        Raises:
            StepTimeError: A trace has no steps, so that its times have to be given; or no clock
                measured those of a recording.
            RecordingError: A recording for the calibration cannot be read.
            WorkloadError: It is of another model or device.
        """
        try:
            self.fit()
        except StepTimeError as error:
            if self.basis.proof is None:
                raise
            steps = self.workload.steps
            mean = sum(step.seconds for step in steps) / len(steps)
            if not math.isfinite(mean):
                raise
            self.basis.step_time = StepTime(
                per_step=mean, per_prefill_token=0.0, per_decode_token=0.0
            )
            self.basis.times_unknown = str(error)
            self.basis.arrivals = "step"

    def options(self, settings: dict[str, Setting] | None = None) -> ReplayOptions:
        """Returns the options of a replay with the times of the model."""
        question = self.question
        return ReplayOptions(
            settings=self.settings if settings is None else settings,
            arrivals=self.basis.arrivals,
            scale_arrivals=question.scale_arrivals,
            without=question.without,
            step_time=self.basis.step_time,
            model=question.model,
        )

    def submit(self, options: ReplayOptions, output: str | None = None) -> Future[ReplayResult]:
        """Starts a replay in one of the processes."""
        request = ReplayRequest(self.question.source, output, options, self._trace)
        return self._drivers.submit(request)

    def repeat(self, output: str) -> Future[ReplayResult] | None:
        """Starts the replay with unchanged settings; returns `None` for a trace.

        Args:
            output: The path of its recording.
        """
        if self._trace:
            return None
        return self.submit(self.unchanged(), output)

    def unchanged(self) -> ReplayOptions:
        """Returns the options of a replay with the recorded settings and times.

        If the recorded engine had a policy, it is the one of the same name that the question gives.
        """
        settings = recorded_policy(self.workload.info, self.question.policy)
        return ReplayOptions(settings=settings, model=self.question.model)

    def prove(self, repeated: Future[ReplayResult] | None, output: str) -> bool:
        """Compares the repeated run with the recorded one.

        Args:
            repeated: The replay that `repeat` started.
            output: The path of its recording.

        Returns:
            True if predictions may be made: they are equal, or the question wants them anyway.

        Raises:
            DriverError: It could not be replayed.
        """
        proof = self.basis.proof
        if repeated is None or proof is None:
            return True
        with FileStore(self.question.source) as recording:
            recorded = RunDecisions(recording, reads_waits=False)
        result_of(repeated)
        again = _decisions(output, reads_waits=False)
        self.basis.proof = prove(recorded, again, starts_late=proof.starts_late)
        return self.basis.is_proven or self.question.anyway


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for recordings that are not wanted afterwards."""
    with tempfile.TemporaryDirectory(prefix="seqtop-") as directory:
        yield Path(directory)


def result_of(replay: Future[ReplayResult]) -> ReplayResult:
    """Waits for the result of a replay.

    Raises:
        DriverError: The driver has failed, or refuses the settings.
    """
    result = replay.result()
    if result.error is not None:
        raise DriverError(result.error)
    return result


def predict(question: Question, progress: ShowProgress = no_progress) -> Prediction:
    """Answers a question, by up to three replays.

    Raises:
        RecordingError: A recording cannot be read.
        WorkloadError: It cannot be replayed.
        SettingError: A setting cannot be changed in this way.
        StepTimeError: The times of steps are not known.
        DriverError: The engine's scheduler cannot be run, or refuses the settings.
    """
    with scratch_folder() as folder, Replays(question, progress) as replays:
        info = replays.workload.info
        recorded = {**recorded_settings(info), POLICY: info.scheduler_settings.get(POLICY)}
        answer = Prediction(
            question,
            replays.basis,
            replays.settings,
            {name: recorded.get(name) for name in replays.settings},
        )
        if question.has_changes or replays.basis.proof is None:
            replays.fit_or_guess()
        if replays.basis.proof is None:
            path = str(folder / "predicted.seqtop")
            answer.predicted = result_of(replays.submit(replays.options(), path))
            keep(path, question)
            return answer
        proof, *paths = (
            str(folder / f"{name}.seqtop") for name in ("proof", "unchanged", "predicted")
        )
        repeated = replays.repeat(proof)
        if not question.has_changes:
            replays.prove(repeated, proof)
            keep(proof, question)
            return answer
        options = replays.options()
        base = replace(replays.unchanged(), arrivals=options.arrivals, step_time=options.step_time)
        unchanged = replays.submit(base, paths[0])
        predicted = replays.submit(options, paths[1])
        if not replays.prove(repeated, proof):
            return answer
        # What is known of one replay is read while a process is busy with another.
        answer.unchanged = result_of(unchanged)
        distance = _replay_distance(replays, answer.unchanged)
        runs = [_decisions(paths[0])]
        answer.predicted = result_of(predicted)
        runs.append(_decisions(paths[1]))
        answer.distance = distance()
        answer.changed = changed_requests(*runs)
        keep(paths[1], question)
    return answer


def keep(path: str, question: Question) -> None:
    """Copies a recording to where the question wants it, if it does."""
    if question.output is None:
        return
    try:
        with (
            Path(path).open("rb") as file,
            files.writing(question.output, overwrite=question.overwrite) as output,
        ):
            shutil.copyfileobj(file, output)
    except FileExistsError as error:
        raise RecordingError(f"{question.output} exists already") from error
    except OSError as error:
        raise RecordingError(f"{question.output} cannot be written: {error.strerror}") from error


def _decisions(path: str, *, reads_waits: bool = True) -> RunDecisions:
    """Returns the decisions of a recording that a replay wrote."""
    with FileStore(path) as recording:
        return RunDecisions(recording, reads_waits=reads_waits)


def _replay_distance(
    replays: Replays, unchanged: ReplayResult
) -> Callable[[], ModelDistance | None]:
    """Starts the replay that the largest distance of the model's TTFT is explained by, if any.

    Returns:
        A function that waits for it, and returns the distance.
    """
    if replays.basis.arrivals != "time":
        return lambda: None
    recorded, model = replays.basis.recorded.ttft, unchanged.figures.ttft
    found: list[tuple[float, int, float, float]] = []
    for percent in PERCENTILES:
        own, other = (getattr(run, f"p{percent}") for run in (recorded, model))
        if own and other is not None:
            found.append((abs(other / own - 1), percent, own, other))
    ratio, percent, own, other = max(found, default=(0.0, 0, 0.0, 0.0))
    if ratio <= _LARGE_DISTANCE:
        return lambda: None
    options = replace(replays.unchanged(), arrivals="step", step_time=replays.basis.step_time)
    replay = replays.submit(options)

    def distance() -> ModelDistance | None:
        middle = getattr(result_of(replay).figures.ttft, f"p{percent}")
        return None if middle is None else ModelDistance(percent, own, middle, other)

    return distance


def _is_recording(path: str) -> bool:
    """Returns True if a file begins as a recording does, or cannot be read."""
    try:
        start = files.read(path, len(SIGNATURE))
    except OSError:
        return True
    return not start or start == SIGNATURE


def _check(question: Question) -> None:
    """Checks that the parts of a question fit together.

    Raises:
        SettingError: They do not.
    """
    if question.arrivals != "time" and question.scale_arrivals != 1.0:
        raise SettingError(
            "--scale-arrivals is for arrivals by time: those of a closed loop, or before the same"
            " steps, follow from the run"
        )


def _fit_or_none(steps: list[TimedStep]) -> StepTime | None:
    try:
        return fit(steps)
    except StepTimeError:
        return None


def _ratio(steps: list[TimedStep], model: StepTime | None) -> float | None:
    """Returns the time of steps divided by what a model gives for them."""
    if model is None:
        return None
    sizes = (Size(step.num_prefill_tokens, step.num_decode_tokens) for step in steps)
    guess = sum(map(model.step_seconds, sizes))
    return sum(step.seconds for step in steps) / guess if guess > 0 else None
