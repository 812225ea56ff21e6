"""The balance of a token bucket, with a clock that the test moves."""

import pytest

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
