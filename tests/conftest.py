from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An IPC endpoint of the test's own; short, since socket paths are limited to 107 bytes."""
    with TemporaryDirectory(prefix="sq") as directory:
        yield f"ipc://{Path(directory, 'e')}"
