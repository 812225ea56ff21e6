"""Paths of seqtop's own files."""

from pathlib import Path

import pytest

from seqtop.process import paths
from seqtop.tui import settings


def test_files_are_where_the_xdg_variables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/you")
    assert paths.config_file() == Path("/somewhere/seqtop/config.toml")
    assert paths.state_file() == Path("/home/you/.local/state/seqtop/state.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert paths.config_file() == Path("/home/you/.config/seqtop/config.toml")


def test_a_user_without_a_home_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 2)
    assert not paths.config_file().exists()
    assert not paths.state_file().exists()


@pytest.mark.parametrize("value", ["/" + "x" * 100_000, "/\x1b[2J", "/dev/null", ""])
def test_hostile_variables(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    read, problems = settings.read(paths.config_file())
    assert read == settings.Settings()
    assert len(problems) <= 1
    assert "\x1b" not in settings.format_problems(problems)
