"""A source of KV-cache events, and the endpoints of a publisher of them."""

import pytest

from tests.support.kv_scene import ScriptedKvSource, scene
from tests.support.screen_fixtures import lines as lines
from tests.support.screen_fixtures import plain_environment as plain_environment


@pytest.fixture
def source() -> ScriptedKvSource:
    source = ScriptedKvSource()
    scene(source)
    return source
