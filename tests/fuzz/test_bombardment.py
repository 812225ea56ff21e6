"""A few thousand spoilt inputs; `benchmarks/fuzz.py` throws as many as one likes."""

import pytest

from tests.support.bombardment import Bombardment


@pytest.mark.parametrize("seed", range(4))
def test_nothing_but_wire_errors(seed: int) -> None:
    bombardment = Bombardment(seed)
    bombardment.run(4_000)
    for reader in ("event", "snapshot", "reply", "command"):
        assert bombardment.outcomes[reader, "refused"] > 10, reader
        assert bombardment.outcomes[reader, "taken"] > 10, reader
    assert bombardment.outcomes["frames", "refused"] > 10
