"""Thresholds of the rules that depend on an amount, and the parser of their values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping

import msgspec


class ThresholdError(ValueError):
    """An invalid threshold; `str()` is one sentence that names the valid ones."""


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts from which on rules with a threshold find something."""

    no_progress_steps: float = 100
    """Steps in a row that compute nothing while requests are unfinished."""
    empty_seconds: float = 5.0
    """Seconds of these steps, at least: an engine that polls makes thousands a second."""
    no_progress_seconds: float = 60.0
    """Seconds without a computed token while requests are unfinished, if no step ends."""
    stalled_steps: float = 100
    """Steps that compute something while a running sequence does not advance."""
    stalled_seconds: float = 60.0
    """Seconds in which this sequence does not advance."""
    overtaken_requests: float = 10
    """Later requests that are admitted while a request waits."""
    overtaken_seconds: float = 5.0
    """Seconds that this request has waited."""
    thrash_preemptions: float = 4
    """Preemptions of a request between which it gains almost nothing."""
    thrash_recomputed: float = 20
    """Tokens that it computes again for each token that it gains between them."""
    contradicted_steps: float = 10
    """Steps in which the engine's figures contradict the reason for which a request waits."""
    load_seconds: float = 30.0
    """Seconds in which a KV connector loads a request's KV cache."""
    grammar_seconds: float = 10.0
    """Seconds in which the grammar of a request is compiled."""
    adapter_seconds: float = 30.0
    """Seconds in which a request waits for a slot of its LoRA adapter."""
    encoder_seconds: float = 30.0
    """Seconds in which a request waits for the output of an encoder."""
    input_seconds: float = 300.0
    """Seconds in which a streaming session waits for more input."""
    transfer_seconds: float = 20.0
    """Seconds in which a request that has ended keeps its blocks."""
    other_seconds: float = 60.0
    """Seconds in which a request waits for anything else that an engine names itself."""
    priority_seconds: float = 10.0
    """Seconds in which a request waits for what requests of lower priority hold."""
    repeated_tokens: float = 1000
    """Tokens of an output in a row that are the same."""
    recomputed_share: float = 0.25
    """The part of all computed tokens that are computed again after preemptions."""
    empty_share: float = 0.3
    """The part of the time that steps without a token take while requests wait."""
    window_seconds: float = 10.0
    """Seconds over which these two parts are measured."""


DEFAULT_THRESHOLDS = Thresholds()
NAMES = Thresholds.__struct_fields__
"""The names of all thresholds."""


def parse(text: str) -> dict[str, float]:
    """Parses thresholds as typed, such as `no_progress_steps=50,overtaken_requests=3`.

    Raises:
        ThresholdError: A name is unknown, or a value is not a positive number.
    """
    values: dict[str, float] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        name, is_given, value = word.partition("=")
        if not is_given:
            raise ThresholdError(f"{word!r} has no value, as in {NAMES[0]}=50")
        try:
            values[name.strip()] = float(value)
        except ValueError:
            raise ThresholdError(f"{value.strip()!r} is not a number") from None
    from_values(values)
    return values


def from_values(values: Mapping[str, float]) -> Thresholds:
    """Returns the default thresholds with `values` in place of some.

    Raises:
        ThresholdError: A name is unknown, or a value is not a positive number.
    """
    for name, value in values.items():
        if name not in NAMES:
            close = difflib.get_close_matches(name, NAMES, 1)
            hint = f", did you mean {close[0]}?" if close else f": there are {', '.join(NAMES)}"
            raise ThresholdError(f"no threshold {name!r}{hint}")
        if not 0 < value < math.inf:
            raise ThresholdError(f"the threshold {name} is {value:g}, not a positive number")
    return msgspec.structs.replace(DEFAULT_THRESHOLDS, **values)
