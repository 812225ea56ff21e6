"""Signals that end a command."""

import os
import signal
import sys

import pytest

from seqtop.process.signals import until_signalled
from tests.support.commands import run


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event_and_the_handlers_return(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with until_signalled() as ended:
        assert not ended.is_set()
        os.kill(os.getpid(), number)
        assert ended.is_set()
    assert signal.getsignal(number) is before


def test_end_of_standard_input_sets_the_event() -> None:
    program = "from seqtop.process.signals import when_stdin_closes; when_stdin_closes().wait()"
    assert run(sys.executable, "-c", program, input="not the end yet").returncode == 0
