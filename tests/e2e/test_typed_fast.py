"""The keys of the README's tour, all sent to a real pseudo-terminal at once."""

import sys
from pathlib import Path

import pytest

from tests.support.terminal import Terminal


def test_keys_typed_ahead_reach_what_they_are_meant_for(
    recording: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    app = Terminal(sys.executable, "-m", "seqtop", "replay", recording)
    try:
        app.wait_until(lambda: "REPLAY" in app.text)
        app.press("sw\rb17\r")
        app.wait_until(lambda: "Block 17 " in app.text)
        app.press("1:40\rb")
        app.wait_until(lambda: "Go to block" in app.text and "▼Waited" in app.text)
        app.wait_until(lambda: " step 40 " in app.screen.display[1])
    finally:
        app.close()
