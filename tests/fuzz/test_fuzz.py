"""A few hundred mutated inputs of each kind; `python -m tests.fuzz` feeds as many as one likes."""

import pytest

from tests.support import fuzz


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_nothing_but_the_promised_exceptions(kind: str) -> None:
    result = fuzz.run(kind, 2_000 if kind == "wire" else 400, seed=0)
    assert 0.5 <= result.share < 1.0
