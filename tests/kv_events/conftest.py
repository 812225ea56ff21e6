"""The endpoints of a publisher of KV-cache events."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def endpoints() -> Iterator[tuple[str, str]]:
    with TemporaryDirectory(prefix="sq") as name:
        yield f"ipc://{Path(name, 'e')}", f"ipc://{Path(name, 'r')}"
