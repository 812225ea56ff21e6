"""Rates and latencies before a moment, by name."""

from seqtop.state import EngineState
from seqtop.state.compare import Rate
from seqtop.state.latency import minute_percentile
from seqtop.state.sliding_window import WINDOW
from seqtop.text import format as fmt
from seqtop.tui.ui_state import UiState

RATE_SECONDS = 5.0
"""Seconds before the moment over which rates are averages, as far as they are recorded."""


def rates_at(ui: UiState, state: EngineState) -> dict[str, Rate]:
    """Returns the rates before the moment of `state`, and percentiles of the minute before it.

    Their names have the length of the time before it: the header has rates of one second. The TTFT
    of requests that wait for their first token counts with the time that they have waited.

    Called under the lock of `ui`.
    """
    interval = ui.step_series.before(state.time, RATE_SECONDS)
    rates: dict[str, Rate] = {}
    for name, key in (
        ("output tok/s", "generated"),
        ("prefill tok/s", "prefill"),
        ("steps/s", "steps"),
    ):
        value = interval.rate(key) if interval.seconds > 0 else None
        better = 1 if key == "generated" else 0
        rates[f"{name}, {RATE_SECONDS:g} s"] = Rate(value, fmt.rate, better)
    windows = ui.latencies.at(state.info, state.time).windows
    for key, title in (("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E")):
        for percent in (50, 99):
            found = minute_percentile(state, windows, key, percent)
            rates[f"{title} p{percent}, {WINDOW:g} s"] = (
                Rate(None, fmt.seconds, -1)
                if found is None
                else Rate(found.value, fmt.seconds, -1, found.is_least)
            )
    return rates
