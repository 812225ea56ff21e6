"""Predictions of a recorded run for several values of settings, or for several loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import msgspec
from msgspec.structs import replace

from seqtop.state.slo import Slo
from seqtop.whatif.driver import DriverError, ShowProgress, no_progress
from seqtop.whatif.figures import RunFigures
from seqtop.whatif.predict import (
    Basis,
    Question,
    Replays,
    result_of,
    scratch_folder,
)
from seqtop.whatif.replay import ReplayOptions, ReplayResult
from seqtop.whatif.settings import MAX_SWEEP, SettingError, parse_sweep, recorded_settings
from seqtop.whatif.workload import Workload
from seqtop.wire.messages import Setting

LOADS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The loads that are tried first, as multiples of the recorded one."""
NUM_REFINEMENTS = 3
"""Each divides the range of the highest load that keeps the objectives by three."""
SHARE_WITHIN_SLO = 0.99
"""The share of the requests that have to meet all objectives."""


class Point(msgspec.Struct, kw_only=True):
    """The prediction for one combination of values, or for one load."""

    settings: dict[str, Setting] = {}
    """The values of the settings that are swept."""
    load: float = 1.0
    """The load as a multiple of the recorded one."""
    figures: RunFigures
    is_beyond: bool = False
    """True if over a fifth of the time is in steps larger than recorded ones: a guess."""
    num_refused: int = 0
    """Requests that the engine refused or ignored with these settings."""
    error: str | None = None
    """The reason why the engine refuses the values; the figures are then empty."""


class Sweep(msgspec.Struct, kw_only=True):
    """The proof, and the predictions for all combinations of several values of settings."""

    question: Question
    basis: Basis
    slo: dict[str, float]
    """The limits of latencies in seconds."""
    recorded: dict[str, Setting]
    """The settings that are swept, with their recorded values."""
    points: list[Point] = []
    """In the order of the values, those of the last setting first; empty if the recording could not
    be repeated."""


class Capacity(msgspec.Struct, kw_only=True):
    """The proof, and the highest load with which the requests meet their objectives."""

    question: Question
    basis: Basis
    slo: dict[str, float]
    share: float = SHARE_WITHIN_SLO
    """The share of the requests that have to meet all of them."""
    requests_per_second: float | None
    """The recorded load: arrivals divided by the time from the first to the last."""
    points: list[Point] = []
    """By load; empty if the recording could not be repeated."""
    highest: float | None = None
    """The highest load tried with which they are met, as they are with all lower ones; `None` if
    they are met with none."""
    lowest_missed: float | None = None
    """The next higher load tried, with which they are not met; `None` if there is none."""


def sweep(
    question: Question, texts: Sequence[str], slo: Slo, progress: ShowProgress = no_progress
) -> Sweep:
    """Predicts a run for all combinations of several values of settings.

    Args:
        question: The recording, and what else is to be different.
        texts: Each a setting and its values, as `parse_sweep` takes them.
        slo: Objectives whose share of requests is counted.
        progress: Shows the progress.

    Raises:
        Exception: One of `WHATIF_ERRORS`.
    """
    with scratch_folder() as folder, Replays(question, progress) as replays:
        info = replays.workload.info
        grid = _grid(texts, replays)
        known = recorded_settings(info)
        answer = Sweep(
            question=question,
            basis=replays.basis,
            slo={**slo.limits},
            recorded={name: known[name] for name in grid[0]},
        )
        replays.fit()
        proof = str(folder / "proof.seqtop")
        repeated = replays.repeat(proof)
        futures = [
            replays.submit(
                replace(
                    replays.options({**replays.settings, **settings}), objectives={**slo.limits}
                )
            )
            for settings in grid
        ]
        if replays.prove(repeated, proof):
            answer.points = [
                replace(_point(future), settings=settings)
                for settings, future in zip(grid, futures, strict=True)
            ]
            if all(point.error for point in answer.points):
                raise DriverError(answer.points[0].error or "")
    return answer


def _grid(texts: Sequence[str], replays: Replays) -> list[dict[str, Setting]]:
    """Returns all combinations of the values of some settings. Raises `SettingError`."""
    grid: list[dict[str, Setting]] = [{}]
    for text in texts:
        name, values = parse_sweep(text, replays.workload.info)
        if name in replays.settings:
            raise SettingError(f"{name} is given twice, by --set and by --sweep")
        if name in grid[0]:
            raise SettingError(f"{name} is given twice, by --sweep")
        grid = [{**settings, name: value} for settings in grid for value in values]
        if len(grid) > MAX_SWEEP:
            raise SettingError(f"a sweep has {MAX_SWEEP} combinations of values at most")
    return grid


def find_capacity(question: Question, slo: Slo, progress: ShowProgress = no_progress) -> Capacity:
    """Searches the highest load with which the requests of a run meet their objectives.

    Args:
        question: The recording, and what else is to be different.
        slo: The objectives.
        progress: Shows the progress.

    Raises:
        Exception: One of `WHATIF_ERRORS`.
    """
    if question.arrivals != "time":
        raise SettingError("--capacity is for arrivals by time")
    with scratch_folder() as folder, Replays(question, progress) as replays:
        answer = Capacity(
            question=question,
            basis=replays.basis,
            slo={**slo.limits},
            requests_per_second=load_of(replays.workload),
        )
        if answer.requests_per_second is None:
            raise SettingError("all requests arrived at once, so that there is no load to change")
        replays.fit()
        proof = str(folder / "proof.seqtop")
        repeated = replays.repeat(proof)
        options = replace(replays.options(), objectives={**slo.limits})
        points = _Loads(replays, options)
        points.submit(LOADS)
        if not replays.prove(repeated, proof):
            return answer
        for _ in range(NUM_REFINEMENTS):
            answer.points = points.results()
            answer.highest, answer.lowest_missed = bracket(_shares(answer.points))
            if answer.highest is None or answer.lowest_missed is None:
                break
            ratio = (answer.lowest_missed / answer.highest) ** (1 / 3)
            points.submit((answer.highest * ratio, answer.highest * ratio**2))
        answer.points = points.results()
        answer.highest, answer.lowest_missed = bracket(_shares(answer.points))
    return answer


class _Loads:
    """Replays with several loads."""

    def __init__(self, replays: Replays, options: ReplayOptions) -> None:
        self._replays = replays
        self._options = options
        self._futures: dict[float, Future[ReplayResult]] = {}

    def submit(self, loads: Sequence[float]) -> None:
        for load in loads:
            options = replace(self._options, scale_arrivals=self._options.scale_arrivals * load)
            self._futures[load] = self._replays.submit(options)

    def results(self) -> list[Point]:
        """Returns the points so far, by load. Raises `DriverError`."""
        points = [
            replace(_point(future), load=load) for load, future in sorted(self._futures.items())
        ]
        for point in points:
            if point.error is not None:
                raise DriverError(point.error)
        return points


def load_of(workload: Workload) -> float | None:
    """Returns the arrivals per second, from the first to the last; `None` if all came at once.

    Requests that arrive after the end of another one are not counted.
    """
    times = [
        request.arrival.arrival_time
        for request in workload.requests.values()
        if request.follows is None
    ]
    seconds = max(times) - min(times)
    return (len(times) - 1) / seconds if seconds > 0 else None


def bracket(shares: Mapping[float, float]) -> tuple[float | None, float | None]:
    """Returns the highest load below the first that misses the objectives, and that one.

    Args:
        shares: The share of the requests that meet the objectives, by load.
    """
    highest: float | None = None
    for load, share in sorted(shares.items()):
        if share < SHARE_WITHIN_SLO:
            return highest, load
        highest = load
    return highest, None


def _shares(points: Sequence[Point]) -> dict[float, float]:
    return {point.load: point.figures.share_within_slo or 0.0 for point in points}


def _point(replay: Future[ReplayResult]) -> Point:
    try:
        result = result_of(replay)
    except DriverError as error:
        return Point(figures=RunFigures(), error=str(error))
    return Point(
        figures=result.figures,
        is_beyond=result.is_beyond,
        num_refused=result.num_refused,
    )
