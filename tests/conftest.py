from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

# The same examples each time, and no clock: a failure is a change's, not the day's. To search
# further: pytest --hypothesis-profile explore
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An IPC endpoint of the test's own; short, since socket paths are limited to 107 bytes."""
    with TemporaryDirectory(prefix="sq") as directory:
        yield f"ipc://{Path(directory, 'e')}"
