"""An engine with its HTTP server, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.http_engine import Served, serve


@pytest.fixture(scope="package")  # an engine that waits is not free either
def served() -> Iterator[Served]:
    with serve("--control", "--pace", "100") as running:
        yield running
