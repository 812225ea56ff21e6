"""The ledger of vLLM's real scheduler: an injected culprit is named first, and the rows add up.

Run by `make test-vllm`, as `against_vllm.py`, for a few runs; for more, as `NUM_RUNS` says:

    NUM_RUNS=20 pytest --confcutdir tests/vllm -s tests/vllm/ledger_against_vllm.py
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import vllm
from stepping import make_core
from token_executor import TokenExecutor
from whatif_against_vllm import engine_request, observe

from seqtop.history import FileStore
from seqtop.ledger.ledger import charge_all, harm_totals
from seqtop.ledger.report import rows
from seqtop.whatif.replay import Clock

NUM_RUNS = int(os.environ.get("NUM_RUNS", "1"))
VICTIM, CULPRIT = "victim", "culprit"
MILLISECOND = 1e-3


class Arrival(NamedTuple):
    time: float
    name: str
    num_prompt: int
    num_output: int


class Culprits:
    """A run in which the model takes 10 ms a step and 1 ms a token, by a simulated clock.

    Args:
        kind: `long_prompt`, whose chunks are in the batches of a victim that decodes, or `burst`,
            which takes all sequence slots before the victim arrives.
        seed: The seed of all amounts.
    """

    def __init__(self, kind: str, seed: int) -> None:
        self.rng = rng = random.Random(f"{kind} {seed}")
        self.clock = Clock()
        self.clock.now = self._start = float(int(time.time()) + 60)
        self.latencies: dict[str, float] = {}
        """The seconds from the arrival of each request to the step that returned its end."""
        self.options: dict[str, Any] = {"max_num_seqs": 16}
        arrivals = [
            Arrival(rng.uniform(0.0, 2.0), f"other-{n}", rng.randint(8, 40), rng.randint(10, 30))
            for n in range(16)
        ]
        if kind == "long_prompt":
            arrivals.append(Arrival(0.55, CULPRIT, rng.randint(700, 900), 2))
        else:
            self.options["max_num_seqs"] = 8
            arrivals += [
                Arrival(0.45, f"{CULPRIT}-{n}", 24, rng.randint(30, 50)) for n in range(30)
            ]
        arrivals.append(Arrival(0.5, VICTIM, rng.randint(16, 32), rng.randint(40, 60)))
        self._arrivals = sorted(arrivals)

    def ran(self, num_tokens: int) -> None:
        """Advances the clock by the time of a step."""
        seconds = 0.01 + 0.001 * num_tokens
        self.clock.now += seconds * max(self.rng.gauss(1.0, 0.05), 0.1)

    def drive(self, core: Any) -> None:
        waiting = [*self._arrivals]
        arrived = {arrival.name: self._start + arrival.time for arrival in waiting}
        while len(self.latencies) < len(arrived):
            if not core.scheduler.has_requests() and not core.batch_queue:
                self.clock.now = max(self.clock.now, arrived[waiting[0].name])
            while waiting and arrived[waiting[0].name] <= self.clock.now:
                arrival = waiting.pop(0)
                request = engine_request(
                    arrival.name,
                    [self.rng.randrange(300, 900) for _ in range(arrival.num_prompt)],
                    {"max_tokens": arrival.num_output},
                    eos=None,
                    priority=0,
                    cache_salt=None,
                )
                request.arrival_time = arrived[arrival.name]
                core.add_request(*core.preprocess_add_request(request))
            outputs, _ = core.step_fn()
            for of_client in (outputs or {}).values():
                for output in of_client.outputs:
                    if output.finish_reason is not None:
                        name = output.request_id[:-9]
                        self.latencies[name] = self.clock.now - arrived[name]
            self.clock.now += 0.0005


@pytest.mark.parametrize("seed", range(NUM_RUNS))
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["long_prompt", "burst"])
def test_the_culprit_is_named_first_and_the_rows_add_up(
    kind: str, is_async: bool, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, path = Culprits(kind, seed), tmp_path / "run.seqtop"
    original = TokenExecutor._run

    def execute(executor: TokenExecutor, output: Any) -> Any:
        run.ran(output.total_num_scheduled_tokens)
        return original(executor, output)

    monkeypatch.setattr(TokenExecutor, "_run", execute)
    core = make_core(
        max_model_len=1_024, num_gpu_blocks_override=256, async_scheduling=is_async, **run.options
    )
    observe(path, core, run.drive, clock=run.clock, timer=run.clock)
    with FileStore(path) as recording:
        tables = {account.request_id: rows(account.charges()) for account in charge_all(recording)}
        totals = {total.request_id: total.seconds for total in harm_totals(recording).totals()}
    assert tables.keys() == run.latencies.keys()
    sums = {name: sum(row.seconds() for row in table) for name, table in tables.items()}
    assert sums == pytest.approx(run.latencies, abs=MILLISECOND)
    others = {row.title: row.seconds() for row in tables[VICTIM] if row.title != "itself"}
    for seconds in (others, totals):
        merged = by_kind(seconds)
        first, second = sorted(merged, key=lambda name: -merged[name])[:2]
        print(
            f"\nvLLM {vllm.__version__}, {kind}, async={is_async}, seed {seed}:"
            f" {first} {merged[first]:.2f} s, {second} {merged[second]:.2f} s"
        )
        assert first == CULPRIT


def by_kind(seconds: dict[str, float]) -> dict[str, float]:
    """Returns seconds by what they are charged to, with the requests of a burst as one."""
    merged: defaultdict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        merged[CULPRIT if name.startswith(CULPRIT) else name] += value
    return merged
