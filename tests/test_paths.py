"""Paths of seqtop's own files."""

from pathlib import Path

import pytest

from seqtop import paths


def test_files_are_where_the_xdg_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/you")
    assert paths.config_file() == Path("/somewhere/seqtop/config.toml")
    assert paths.state_file() == Path("/home/you/.local/state/seqtop/state.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert paths.config_file() == Path("/home/you/.config/seqtop/config.toml")
