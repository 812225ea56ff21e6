"""Thresholds of warnings that are given by name."""

import math

import pytest

from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, ThresholdError, from_values


def test_a_threshold_may_be_any_positive_number() -> None:
    changed = from_values({"empty_share": 0.5})
    assert changed.empty_share == 0.5
    assert changed.no_progress_steps == DEFAULT_THRESHOLDS.no_progress_steps


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_threshold_that_is_no_positive_number_is_refused(value: float) -> None:
    with pytest.raises(ThresholdError, match=r"empty_share is .*, not a positive number"):
        from_values({"empty_share": value})


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    with pytest.raises(ThresholdError, match=r"did you mean empty_share\?"):
        from_values({"empty_shares": 1.0})
