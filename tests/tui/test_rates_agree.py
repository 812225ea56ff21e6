"""The series of steps has the rates that the meter has sampled."""

import pytest

from seqtop.history.step_series import StepSeries
from seqtop.tui.rates import INTERVAL, RateMeter, kv_use
from seqtop.wire.messages import Step
from tests.support.event_script import EventScript
from tests.support.scripted import ScriptedSource


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_random_runs(seed: int, columns: bool) -> None:
    source, meter = ScriptedSource(), RateMeter()
    series = StepSeries(source.history)
    last, num_compared = None, 0
    for event in EventScript(seed, 150, num_blocks=24, columns=columns):
        source.apply(event)
        if not isinstance(event, Step):
            continue
        assert series.update()
        state = source.state
        if last is None:
            meter.sample(state)
            last = state.time
            continue
        before = meter.rates
        meter.sample(state)
        if state.time - last < INTERVAL:
            continue
        figures = series.between(last, state.time)
        assert meter.rates is not before or not any(
            figures.sums[name] for name in ("steps", "prefill", "generated")
        )
        rates = tuple(figures.rate(name) for name in ("steps", "prefill", "generated"))
        assert meter.rates[:3] == pytest.approx(rates)
        row = series._locate(state.time)[0]
        assert state.info is not None
        use = series._gauges["used"][row] / state.info.num_gpu_blocks
        assert kv_use(state) == pytest.approx(use) == meter.rates.kv_history[-1]
        last = state.time
        num_compared += 1
    assert num_compared
    assert series.between(0.0, series.end).sums["generated"] == source.state.num_output_tokens
