"""A source of KV-cache events, and the endpoints of a publisher of them."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.kv_scene import ScriptedKvSource, scene
from tests.support.screen_fixtures import lines as lines
from tests.support.screen_fixtures import plain_environment as plain_environment


@pytest.fixture
def endpoints() -> Iterator[tuple[str, str]]:
    with TemporaryDirectory(prefix="sq") as name:
        yield f"ipc://{Path(name, 'e')}", f"ipc://{Path(name, 'r')}"


@pytest.fixture
def source() -> ScriptedKvSource:
    source = ScriptedKvSource()
    scene(source)
    return source
