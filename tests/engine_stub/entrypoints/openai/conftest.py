"""An engine with its HTTP server, shared by the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.http_engine import Served, serve


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    with serve("--control", "--pace", "100") as running:
        yield running
