"""The settings with which a run would have met its objectives best, and the load they hold.

Settings are tried on the first part of the requests, by the engine's own scheduler. Those that do
best are tried on more of them, and the last ones on all (successive halving; Jamieson and
Talwalkar, 2016). A combination of settings is tried if each of them alone was no worse than the
recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from seqtop.state.slo import Slo
from seqtop.state.wait_causes import CAUSES
from seqtop.text import format as fmt
from seqtop.whatif.driver import DriverError, ShowProgress, TimeUpError, no_progress
from seqtop.whatif.figures import Distribution, RunFigures
from seqtop.whatif.predict import Basis, Question, Replays, keep, result_of, scratch_folder
from seqtop.whatif.replay import ReplayOptions, ReplayResult
from seqtop.whatif.settings import POLICY, SettingError, policy_change, recorded_settings
from seqtop.whatif.sweep import bracket, load_of
from seqtop.wire.messages import EngineInfo, Setting

Settings = dict[str, Setting]
"""Settings that differ from the recorded ones, by name."""

LEAST_REQUESTS: Final = 100
"""The fewest requests of the first part: fewer say little about the whole."""
MOST_REQUESTS: Final = 300
"""The most requests of the first part: a table of it is shown soon."""
NUM_KEPT: Final = (8, 3)
"""The numbers of settings that are tried on the second part, and on the whole."""
_FACTORS: Final = (0.5, 1, 2, 4)
_SCALED: Final = ("max_num_seqs", "max_num_batched_tokens")
"""The settings that are multiplied by the factors."""
_CHOICES: Final[Mapping[str, tuple[Setting, ...]]] = {
    "enable_prefix_caching": (True, False),
    "enable_chunked_prefill": (True, False),
    "preemption_mode": ("recompute", "swap"),
    "preemption_victim": ("last", "largest"),
    "policy": ("fcfs", "priority"),
}
"""Settings with their values."""
_BLOCK_SIZES: Final = (8, 16, 32, 64)
_LOADS: Final = (0.5, 8.0)
"""The lowest and the highest load that are tried, as multiples of the recorded one."""
_CLOSE_LOADS: Final = 1.2
"""The ratio of two loads between which none is tried."""
_INDIFFERENT: Final = 0.005
"""A share of the requests that is no reason to change a setting."""


class Trial(msgspec.Struct, kw_only=True):
    """The prediction for some settings."""

    settings: Settings
    """Those that differ from the recorded ones; none for the recorded ones."""
    figures: RunFigures
    is_beyond: bool = False
    """True if over a fifth of the time is in steps larger than recorded ones: a guess."""
    num_refused: int = 0
    """Requests that the engine refused or ignored with these settings."""
    highest_load: float | None = None
    """The highest load tried that keeps the objectives for 99 % of the requests, as a multiple of
    the recorded one: 0 if none does, `None` if it was not searched."""

    @property
    def goodput(self) -> float:
        """The share of the requests that met all objectives."""
        return self.figures.share_within_slo or 0.0


class Advice(msgspec.Struct, kw_only=True):
    """The settings that were tried, the best first."""

    question: Question
    basis: Basis
    slo: dict[str, float]
    """The limits of latencies in seconds."""
    recorded: Trial | None = None
    """The recorded settings, with the times of the model; `None` if nothing was predicted."""
    trials: list[Trial] = []
    """Those that were tried with all requests, the best first."""
    num_tried: int = 0
    """All settings that were tried, most of them on a part of the requests."""
    refused: dict[str, str] = {}
    """Settings that the engine refused, with the reasons."""
    not_searched: dict[str, str] = {}
    """Settings that were not tried, with the reasons."""
    requests_per_second: float | None = None
    """The recorded load."""
    limit: str = ""
    """The resource for which requests wait with the best settings; empty if they do not wait."""
    is_partial: bool = False
    """True if the search was ended before its end."""

    @property
    def best(self) -> Trial | None:
        """The best settings; `None` if nothing was predicted."""
        return self.trials[0] if self.trials else None

    @property
    def binding(self) -> str:
        """The objective that the fewest requests met with the best settings."""
        best = self.best
        if best is None:
            return ""
        return min(self.slo, key=lambda key: best.figures.share_within(key) or 0.0, default="")


def advise(
    question: Question,
    slo: Slo,
    progress: ShowProgress = no_progress,
    found: Callable[[Advice], object] = lambda _: None,
    *,
    policies: str | None = None,
) -> Advice:
    """Searches the settings with which the requests of a run meet their objectives best.

    Args:
        question: The recording or the trace, and what else is to be different.
        slo: The objectives.
        progress: Shows the progress; `TimeUpError` of it ends the search with the best so far.
        found: Called with the advice so far: after each part of the search.
        policies: A folder of policies of the bundled scheduler, which are tried, too.

    Raises:
        Exception: One of `WHATIF_ERRORS`.
    """
    with scratch_folder() as folder, Replays(question, progress) as replays:
        advice = Advice(
            question=question,
            basis=replays.basis,
            slo={**slo.limits},
            not_searched=_not_searched(replays.workload.info),
            requests_per_second=load_of(replays.workload),
        )
        replays.fit()
        search = _Search(replays, advice)
        candidates = single_changes(replays.workload.info)
        if policies is not None:
            candidates += _policies(policies, replays.workload.info)
        first = search.submit(candidates, part=0)
        # The proof takes longer than the first part, of which a table is shown before it ends.
        proof = str(folder / "proof.seqtop")
        repeated = replays.repeat(proof)
        try:
            search.run_first(first, found)
            search.start_second()
            if not replays.prove(repeated, proof):
                advice.trials, advice.recorded = [], None
                return advice
            search.run(found)
        except (KeyboardInterrupt, TimeUpError):
            advice.is_partial = True
        if question.output is not None and (best := advice.best) is not None:
            path = str(folder / "best.seqtop")
            result_of(replays.submit(search.options(best.settings), path))
            keep(path, question)
    return advice


def single_changes(info: EngineInfo) -> list[Settings]:
    """Returns the recorded settings, and those with one change, or with two of numbers."""
    recorded = recorded_settings(info)
    scaled: list[Settings] = [{}]
    for name in _SCALED:
        value = recorded.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            values = [max(round(value * factor), 1) for factor in _FACTORS]
            scaled = [
                {**settings, name: own} if own != value else settings
                for settings in scaled
                for own in values
            ]
    single: list[Settings] = [
        {name: value}
        for name, values in _CHOICES.items()
        for value in values
        if name in recorded and recorded[name] in values and value != recorded[name]
    ]
    # As many tokens in the pool, in blocks of another size.
    single += [
        {"block_size": size, "num_gpu_blocks": info.num_gpu_blocks * info.block_size // size}
        for size in _BLOCK_SIZES
        if size != info.block_size and len(info.kv_cache_groups) < 2
    ]
    return [*scaled, *single]


def _policies(folder: str, info: EngineInfo) -> list[Settings]:
    """Returns a change to each policy of a folder. Raises `SettingError` if there is none."""
    paths = sorted(Path(folder).glob("*.py"))
    if not paths:
        raise SettingError(f"there is no policy in {folder}")
    return [policy_change(str(path), info) for path in paths]


def _not_searched(info: EngineInfo) -> dict[str, str]:
    """Returns the settings that are not tried, with the reasons."""
    reasons = {
        "num_gpu_blocks": "the memory of the pool is taken as given",
        "num_cpu_blocks": "the memory of the host is taken as given",
        "max_model_len": "it says which requests are served, not how",
    }
    searched = {*_SCALED, *_CHOICES, "block_size"}
    return {
        name: reasons.get(name, "its effect on the times of steps is not known")
        for name in recorded_settings(info)
        if name not in searched
    }


class _Search:
    """Tries settings on growing parts of the requests."""

    def __init__(self, replays: Replays, advice: Advice) -> None:
        self._replays = replays
        self._advice = advice
        self._requests = [*replays.workload.requests]
        total = len(self._requests)
        first = min(max(total // 8, LEAST_REQUESTS), MOST_REQUESTS, total)
        second = min(max(total // 3, first), total)
        self._parts = [first, second, total]
        self._seen: set[str] = set()
        self._second: list[tuple[Settings, Future[ReplayResult]]] = []
        """The replays of the second part that have been started."""
        self._trials: list[Trial] = []
        """Those of the part that was tried last, the best first."""
        self._replayed: dict[tuple[str, int], Future[ReplayResult]] = {}
        """Replays by settings and number of requests: parts of a short run may be the same."""

    def options(self, settings: Settings, part: int = -1, load: float = 1.0) -> ReplayOptions:
        """Returns the options of a replay of a part."""
        base = self._replays.options({**self._replays.settings, **settings})
        left_out = self._requests[self._parts[part] :]
        return replace(
            base,
            objectives=self._advice.slo,
            without=[*base.without, *left_out],
            scale_arrivals=base.scale_arrivals * load,
        )

    def submit(
        self, candidates: Iterable[Settings], part: int
    ) -> list[tuple[Settings, Future[ReplayResult]]]:
        """Starts replays of a part of the requests."""
        submitted = []
        for settings in candidates:
            key = _key(settings), self._parts[part]
            self._seen.add(key[0])
            if key not in self._replayed:
                self._replayed[key] = self._replays.submit(self.options(settings, part))
            submitted.append((settings, self._replayed[key]))
        return submitted

    def run_first(
        self,
        first: list[tuple[Settings, Future[ReplayResult]]],
        found: Callable[[Advice], object],
    ) -> None:
        """Ranks the settings that were tried on the first part, and fills the advice."""
        self._trials = self._results(first)
        self._show(self._trials, found)

    def start_second(self) -> None:
        """Starts the replays with which `run` begins, while the proof is made."""
        if self._seems_enough():
            self.submit([{}], part=2)
        else:
            self._second = self._submit_second()

    def run(self, found: Callable[[Advice], object]) -> None:
        """Searches on, and fills the advice."""
        if not self._is_enough():
            trials = self._results(self._second or self._submit_second())
            between = self._results(self.submit(self._between(trials[0].settings), part=1))
            self._trials = ranked([*trials, *between], self._advice.slo)
            self._show(self._trials, found)
        last = [] if self._is_enough() else self._trials[: NUM_KEPT[1]]
        candidates = _with_recorded(trial.settings for trial in last)
        trials = self._results(self.submit(candidates, part=2))
        self._show(trials, found)
        recorded = [own for own in trials[1:] if own is self._advice.recorded]
        self._find_loads([trials[0], *recorded])
        self._show(trials, found)

    def _submit_second(self) -> list[tuple[Settings, Future[ReplayResult]]]:
        """Starts replays of the second part, with the best settings of the first one."""
        second = [trial.settings for trial in self._trials[: NUM_KEPT[0]]]
        second += self._combinations(self._trials)
        return self.submit(_with_recorded(second), part=1)

    def _seems_enough(self) -> bool:
        """Returns whether the recorded settings meet the objectives in the last part."""
        recorded = self._advice.recorded
        return recorded is not None and recorded.goodput >= 1.0 - _INDIFFERENT

    def _is_enough(self) -> bool:
        """Returns whether the recorded settings meet the objectives for all requests.

        They are only tried with all of them if they do for the part that was tried last.
        """
        if not self._seems_enough():
            return False
        ((_, whole),) = self.submit([{}], part=2)
        return _trial({}, result_of(whole)).goodput >= 1.0 - _INDIFFERENT

    def _results(self, submitted: list[tuple[Settings, Future[ReplayResult]]]) -> list[Trial]:
        """Returns trials, the best first. Raises `DriverError` if all settings are refused."""
        trials: list[Trial] = []
        for settings, future in submitted:
            try:
                result = result_of(future)
            except DriverError as error:
                if not settings:
                    raise
                self._advice.refused[settings_text(settings)] = str(error)
                continue
            trials.append(_trial(settings, result))
        return ranked(trials, self._advice.slo)

    def _show(self, trials: list[Trial], found: Callable[[Advice], object]) -> None:
        advice = self._advice
        advice.trials = trials
        advice.recorded = next((trial for trial in trials if not trial.settings), None)
        advice.num_tried = len(self._seen)
        causes = trials[0].figures.blocked
        cause = max(causes, key=lambda key: causes[key], default=None)
        advice.limit = "" if cause is None else CAUSES[cause].label
        found(advice)

    def _combinations(self, trials: list[Trial]) -> list[Settings]:
        """Returns the best numbers with each other change that alone was better than none."""
        slo = self._advice.slo
        plain = next(rank(trial, slo) for trial in trials if not trial.settings)
        numbers = [trial for trial in trials if {*trial.settings} <= {*_SCALED}]
        others = [
            trial.settings
            for trial in trials
            if not {*trial.settings} & {*_SCALED} and rank(trial, slo) < plain
        ]
        best = [trial.settings for trial in numbers[:2]]
        found = [{**own, **other} for own in best for other in others]
        if len(others) > 1:
            merged: Settings = {}
            for other in others:
                merged = {**other, **merged}
            found.append({**best[0], **merged})
        return [own for own in found if _key(own) not in self._seen]

    def _between(self, settings: Settings) -> list[Settings]:
        """Returns settings whose numbers are between the best ones and their neighbours."""
        recorded = recorded_settings(self._replays.workload.info)
        found: list[Settings] = []
        for name in _SCALED:
            value = settings.get(name, recorded.get(name))
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            for factor in (math.sqrt(0.5), math.sqrt(2), 2):
                own = max(round(value * factor), 1)
                changed = {**settings, name: own}
                if own == recorded.get(name):
                    del changed[name]
                if own != value and _key(changed) not in self._seen:
                    found.append(changed)
        return found

    def _find_loads(self, trials: Sequence[Trial]) -> None:
        """Searches the highest load that keeps the objectives, for each of some settings."""
        if self._advice.requests_per_second is None or self._replays.question.arrivals != "time":
            return
        tried: list[tuple[Trial, dict[float, float]]] = [(trial, {}) for trial in trials]
        while due := [
            (trial, shares, load)
            for trial, shares in tried
            if (load := _next_load(shares)) is not None
        ]:
            replays = [self._replay(trial.settings, load) for trial, _, load in due]
            for (_, shares, load), replay in zip(due, replays, strict=True):
                shares[load] = result_of(replay).figures.share_within_slo or 0.0
        for trial, shares in tried:
            trial.highest_load = bracket(shares)[0] or 0.0

    def _replay(self, settings: Settings, load: float) -> Future[ReplayResult]:
        """Starts a replay of the second part with a load."""
        if load == 1.0:  # it has been replayed
            ((_, replay),) = self.submit([settings], part=1)
            return replay
        return self._replays.submit(self.options(settings, part=1, load=load))


def _next_load(shares: Mapping[float, float]) -> float | None:
    """Returns the load to try next; `None` if the highest that keeps the objectives is found.

    Args:
        shares: The share of the requests that meet the objectives, by load.
    """
    if not shares:
        return 1.0
    low, high = bracket(shares)
    if high is None:
        return max(shares) * 2 if max(shares) < _LOADS[1] else None
    if low is None:
        return high / 2 if high > _LOADS[0] else None
    return math.sqrt(low * high) if high / low > _CLOSE_LOADS else None


def ranked(trials: Iterable[Trial], slo: Mapping[str, float]) -> list[Trial]:
    """Returns trials, the best first.

    Of those that are as good as the best one, up to half a percent of the requests, the one with
    the fewest changes comes first.
    """
    ordered = sorted(trials, key=lambda trial: rank(trial, slo))
    if not ordered:
        return []
    best = rank(ordered[0], slo)
    close = [
        trial
        for trial in ordered
        if all(
            own <= other + _INDIFFERENT
            for own, other in zip(rank(trial, slo)[:3], best[:3], strict=True)
        )
    ]
    first = min(close, key=lambda trial: len(trial.settings))
    return [first, *(trial for trial in ordered if trial is not first)]


def rank(trial: Trial, slo: Mapping[str, float]) -> tuple[float, ...]:
    """Returns the sort key of a trial: the better, the smaller.

    The number of requests that were served comes first, and then the share of them that met all
    objectives. Where it is the same, as when one
    objective is missed with all settings, the shares of each objective follow, and then how far
    their 99th percentiles are above the limits.
    """
    run = trial.figures
    shares = [run.share_within(key) or 0.0 for key in slo]
    excess = sum(
        math.log(max((_tail(run, key) or 0.0) / limit, 1e-3)) for key, limit in slo.items()
    )
    return (
        trial.num_refused,
        -round(trial.goodput, 3),
        -round(math.fsum(shares), 3),
        excess,
        len(trial.settings),
    )


def _tail(run: RunFigures, key: str) -> float | None:
    found = getattr(run, key, None)
    return found.p99 if isinstance(found, Distribution) else None


def settings_text(settings: Settings) -> str:
    """Returns changed settings as text, such as `max_num_seqs=24, policy=fcfs`."""
    parts = (f"{name}={_value_text(name, value)}" for name, value in settings.items())
    return ", ".join(parts) or "as recorded"


def _value_text(name: str, value: Setting) -> str:
    return Path(str(value)).stem if name == POLICY else str(value)


def sentence(advice: Advice) -> str:
    """Returns the advice in one sentence."""
    best, recorded = advice.best, advice.recorded
    if best is None or recorded is None:
        return "no advice: nothing was predicted"
    goodput = f"{fmt.percent(recorded.goodput)}"
    if not best.settings or rank(best, advice.slo)[1:4] >= rank(recorded, advice.slo)[1:4]:
        text = f"no setting that was tried does better than the recorded ones, goodput {goodput}"
    else:
        known = advice.basis.settings
        changes = ", ".join(
            f"{name} {known.get(name)} → {_value_text(name, value)}"
            for name, value in best.settings.items()
        )
        text = f"{changes} lifts goodput from {goodput} to {fmt.percent(best.goodput)}"
        if round(best.goodput, 3) <= round(recorded.goodput, 3):
            text = f"{changes} leaves goodput at {goodput}, and lowers the latencies"
    if best.goodput < 1.0 and advice.binding:
        text += f"; {advice.binding.upper()} is the objective that is missed most"
    if advice.limit:
        text += f"; requests still wait for: {advice.limit}"
    return text


def _trial(settings: Settings, result: ReplayResult) -> Trial:
    return Trial(
        settings=settings,
        figures=result.figures,
        is_beyond=result.is_beyond,
        num_refused=result.num_refused,
    )


def _with_recorded(candidates: Iterable[Settings]) -> list[Settings]:
    """Returns the candidates, each once, and the recorded settings."""
    return list({_key(own): own for own in ({}, *candidates)}.values())


def _key(settings: Settings) -> str:
    return repr(sorted(settings.items()))
