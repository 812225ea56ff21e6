"""The balance of a token bucket, with a clock that the test moves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.transport.token_bucket import TokenBucket


def test_balance_recovers_with_time_and_may_be_overdrawn_once() -> None:
    now = 0.0
    bucket = TokenBucket(rate=10, burst=5, clock=lambda: now)
    bucket.spend(5)
    assert bucket.seconds_until_available() == 0
    bucket.spend(1)
    assert bucket.seconds_until_available() == pytest.approx(0.1)
    now = 0.05
    assert bucket.seconds_until_available() == pytest.approx(0.05)
    now = 1e9
    bucket.spend(5)
    assert bucket.seconds_until_available() == 0
    bucket.spend(20)
    assert bucket.seconds_until_available() == pytest.approx(2)


@given(
    st.floats(0.1, 1_000),
    st.floats(0.01, 2.0),
    st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 3.0)), max_size=50),
)
def test_a_time_of_the_next_message_equals_it(
    rate: float, burst_seconds: float, turns: list[tuple[float, float]]
) -> None:
    now = 1_000.0
    bucket = TokenBucket(rate, burst_seconds * rate, clock=lambda: now)
    next_at = 0.0
    for elapsed, seconds in turns:
        now += elapsed
        bucket.spend(seconds * rate)
        next_at = max(next_at, now - burst_seconds) + seconds
        assert bucket.seconds_until_available() == pytest.approx(max(0.0, next_at - now), abs=1e-6)
