"""A source of KV-cache events."""

import pytest

from tests.support.kv_scene import ScriptedKvSource, scene


@pytest.fixture
def source() -> ScriptedKvSource:
    source = ScriptedKvSource()
    scene(source)
    return source
