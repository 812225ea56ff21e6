"""The app with a recorded run."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.steps_screen import recorded


@pytest.fixture
def app() -> SeqtopApp:
    return SeqtopApp(recorded(), clock=lambda: 0.0)
