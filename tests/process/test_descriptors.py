"""The limit on the process's file descriptors."""

import math
import resource

import pytest

from seqtop.live.session import most_sessions
from seqtop.process import descriptors


@pytest.mark.parametrize(
    ("soft", "hard", "limit", "sessions"),
    [
        (256, 256, 256, 8),
        (256, 1_024, 1_024, 56),
        (1_024, 1_000_000, 1_728, 100),
        (1_024, resource.RLIM_INFINITY, 1_728, 100),
        (50_000, 50_000, 50_000, 100),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, math.inf, 100),
        (10, 10, 10, 0),
    ],
)
def test_a_limit_is_raised_if_that_is_needed_and_possible(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, limit: float, sessions: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert most_sessions(100) == sessions
    assert descriptors.raise_limit(0) == limit
