"""Formats numbers as short text.

The functions accept any number from the wire without raising. `None` and NaN become `UNKNOWN`. No
result except that of `clock` is wider than `MAX_WIDTH` cells.
"""

import math
import time

UNKNOWN = "\N{EN DASH}"
NOT_AVAILABLE = "n/a"
"""Stands for a column or figure that an engine cannot give."""
MAX_WIDTH = 9

_LARGEST = 10**15


def count(value: float | None) -> str:
    """Formats a count: `12,345`, and from a hundred thousand on `123k` or `4.56M`."""
    number = _finite(value)
    if number is None:
        return _not_finite(value)
    if abs(number) < 100_000:
        return f"{round(number):,}"
    for scale, suffix in ((1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")):
        if abs(number) < 999.5 * scale:
            return _three_digits(number / scale) + suffix
    return _not_finite(math.copysign(math.inf, number))


def size(value: float | None) -> str:
    """Formats a number of bytes with decimal units: `840 B`, `12.3 kB`, `4.56 MB`."""
    number = _finite(value)
    if number is None:
        return _not_finite(value)
    if abs(number) < 1_000:
        return f"{round(number)} B"
    for scale, suffix in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB")):
        if abs(number) < 999.5 * scale:
            return f"{_three_digits(number / scale)} {suffix}"
    return _not_finite(math.copysign(math.inf, number))


def rate(value: float | None) -> str:
    """Formats a rate per second, with one decimal below a hundred."""
    number = _finite(value)
    if number is None:
        return _not_finite(value)
    return f"{number:.1f}" if abs(number) < 99.95 else count(number)


def seconds(value: float | None) -> str:
    """Formats a duration in seconds: `840 µs`, `12.3 ms`, `4.56 s`, `2m 05s`, `3h 12m`."""
    if value is not None and 0.0009995 <= value < 0.9995:  # the fast path for most values
        return f"{_three_digits(value * 1e3)} ms"
    number = _finite(value)
    if number is None:
        return _not_finite(value)
    size = abs(number)
    if size == 0:
        return "0 s"
    if size < 999.5e-6:
        return f"{round(number * 1e6)} µs"
    if size < 0.9995:
        return _three_digits(number * 1e3) + " ms"
    if size < 99.95:
        return _three_digits(number) + " s"
    sign = "-" if number < 0 else ""
    whole = round(size)
    if whole < 3600:
        return f"{sign}{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{sign}{whole // 3600}h {whole % 3600 // 60:02}m"
    if whole < 1_000 * 86400:
        return f"{sign}{whole // 86400}d {whole % 86400 // 3600}h"
    if whole < 10_000 * 86400:
        return f"{sign}{whole // 86400}d"
    return _not_finite(math.copysign(math.inf, number))


def rough_time(value: float) -> str:
    """Formats a positive time as a person says it: `45 s`, `8 min`, `3 h`."""
    for size, unit in ((3_600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:,.0f} {unit}"
    return f"{value:.0f} s"


def growing(value: float | None) -> str:
    """Formats a growing duration in whole seconds, so that it changes once a second: `6 s`."""
    return f"{int(value)} s" if value is not None and 1 <= value < 100 else seconds(value)


def clock(value: float | None, decimals: int = 3) -> str:
    """Formats epoch seconds as the local time of day: `14:03:22.450`."""
    number = _finite(value)
    if number is None:
        return UNKNOWN
    scale = 10**decimals
    try:
        whole, part = divmod(round(number * scale), scale)
        moment = time.strftime("%H:%M:%S", time.localtime(whole))
    except (OverflowError, ValueError, OSError):  # beyond the range of the calendar
        return UNKNOWN
    return f"{moment}.{part:0{decimals}}" if decimals else moment


def percent(part: float | None, whole: float | None = 1.0) -> str:
    """Formats `part` of `whole` in percent; unknown if `whole` is 0."""
    top, bottom = _finite(part), _finite(whole)
    if top is None or bottom is None or bottom == 0:
        return UNKNOWN
    share = _finite(100 * top / bottom)
    if share is None or abs(share) >= 99_999:
        return "∞"
    return f"{share:.1f}%" if 0 < abs(share) < 9.95 else f"{round(share)}%"


def plural(number: int, noun: str) -> str:
    """Formats a count with a noun: `1 block`, `2 blocks`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def shortened(text: str, max_length: int) -> str:
    """Cuts a text off at a number of characters, and says how long it was."""
    if len(text) <= max_length:
        return text
    return f"{text[:max_length]}… ({len(text):,} characters)"


def _three_digits(number: float) -> str:
    size = abs(number)
    decimals = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{number:.{decimals}f}"


def _finite(value: float | None) -> float | None:
    """Returns `value` as a finite float, or `None`."""
    if value is None:
        return None
    if isinstance(value, int) and abs(value) > _LARGEST:
        return 1e16 if value > 0 else -1e16
    number = float(value)
    return number if math.isfinite(number) else None


def _not_finite(value: float | None) -> str:
    if value is None or value != value:
        return UNKNOWN
    return "∞" if value > 0 else "-∞"
