"""The progress of commands that take long."""

import io
import sys

import pytest

from seqtop.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch, silent_seconds: float) -> Terminal:
    """Standard error as a terminal, from now on."""
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_SILENT_SECONDS", silent_seconds)
    return shown


def test_progress_is_shown_on_a_terminal_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch, 0.0)
    with progress.shown_progress("reading run.seqtop") as show:
        show(0.5)
        show(1.0)
    assert "reading run.seqtop" in shown.getvalue()
    assert "100%" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K"), "the line is erased"


def test_work_that_is_soon_done_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch, 1_000.0)
    with progress.shown_progress("reading") as show:
        show(1.0)
    assert shown.getvalue() == ""


def test_without_a_terminal_none_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.0)
    with progress.shown_progress("reading") as show:
        show(1.0)
    assert capsys.readouterr().err == ""
