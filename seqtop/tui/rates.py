"""Rates and latencies around a moment, by name."""

from seqtop.state import EngineState
from seqtop.state.compare import Rate
from seqtop.text import format as fmt
from seqtop.tui.ui_state import UiState

RATE_SECONDS = 5.0
"""Seconds before the moment over which rates are averages, as far as they are recorded."""


def rates_at(ui: UiState, state: EngineState) -> dict[str, Rate]:
    """Returns the rates before the moment of `state`, and percentiles of the minute before it.

    Called under the lock of `ui`.
    """
    interval = ui.step_series.before(state.time, RATE_SECONDS)
    rates = {
        name: Rate(interval.rate(key) if interval.seconds > 0 else None, fmt.rate)
        for name, key in (
            ("output tok/s", "generated"), ("prefill tok/s", "prefill"), ("steps/s", "steps")
        )
    }  # fmt: skip
    windows = ui.latencies.at(state.info, state.time).windows
    for key, title in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E")):
        for percent in (50, 99):
            value = windows[key].percentile(percent) if len(windows[key]) else None
            rates[f"{title} p{percent}"] = Rate(value, fmt.seconds)
    return rates
