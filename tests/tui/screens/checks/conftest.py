"""The app with a run in which checks fail."""

import pytest

from seqtop.tui.app import SeqtopApp
from tests.support.checks_screen import recorded


@pytest.fixture
def app() -> SeqtopApp:
    return SeqtopApp(recorded(), clock=lambda: 0.0)
