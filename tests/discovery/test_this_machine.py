"""Engines of this machine."""

from pathlib import Path

import pytest

from seqtop.discovery import Found
from seqtop.discovery.this_machine import ThisMachine
from seqtop.transport import local_engines
from tests.support.waiting import wait_until


def test_engines_start_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    local_engines.wake_socket_path(1).touch()  # a dormant one
    monkeypatch.setattr(ThisMachine, "_SECONDS", 0.05)
    discovery = ThisMachine()
    discovery.start()
    try:
        assert not discovery.found
        assert discovery.explain_none() == "no engine of yours publishes on this machine"
        with local_engines.announced("ipc:///run/engine", "mine"):
            wait_until(lambda: discovery.found == (Found("", "ipc:///run/engine"),))
        wait_until(lambda: not discovery.found)
    finally:
        discovery.close()
