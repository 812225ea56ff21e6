"""Signals that end a command."""

import os
import signal

import pytest

from seqtop.signals import until_signalled


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_event_and_the_handlers_return(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with until_signalled() as ended:
        assert not ended.is_set()
        os.kill(os.getpid(), number)
        assert ended.is_set()
    assert signal.getsignal(number) is before
