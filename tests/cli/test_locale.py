"""The programs in a locale without UTF-8: an ASCII form of everything, and whole documents."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.support.commands import ENGINE, SEQTOP, run
from tests.support.terminal import Terminal

LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0"}
"""Without the second, Python would use UTF-8 although the locale does not."""


@pytest.fixture(autouse=True)
def _locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONIOENCODING", raising=False)
    for name, value in LOCALE.items():
        monkeypatch.setenv(name, value)


def written(*command: str, status: int = 0) -> str:
    """The output of a command, which is ASCII."""
    done = run(*command, encoding="ascii")
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert "\\u" not in done.stdout + done.stderr
    assert "\\x" not in done.stdout + done.stderr
    return done.stdout


def test_output_for_people_is_in_ascii(recording: str) -> None:
    table = written(*SEQTOP, "show", recording)
    assert "~" in table, "the end of a text that does not fit"
    assert "findings" in written(*SEQTOP, "check", recording, status=1)
    assert "KEY,~" in written(*SEQTOP, "attach", "--help")
    keys = ("--server-secret-key", "é", "--authorized-clients", "é")
    assert written(*ENGINE, "serve", *keys, status=2) == ""
    assert "complete" in written(*SEQTOP, "completion", "bash")


def test_documents_are_whole(recording: str) -> None:
    document = json.loads(run(*SEQTOP, "show", recording, "--json", encoding="utf-8").stdout)
    texts = [seq["text"] for request in document["requests"] for seq in request["sequences"]]
    assert any("狐" in text for text in texts)
    report = json.loads(run(*SEQTOP, "check", recording, "--json", encoding="utf-8").stdout)
    assert report["num_steps"] == 80
    junit = run(*SEQTOP, "check", recording, "--junit", encoding="utf-8").stdout
    assert junit.startswith("<?xml version='1.0' encoding='utf-8'?>")
    assert ET.fromstring(junit.encode()).get("name") == "seqtop check"


def assert_drawn_in_ascii(*options: str) -> None:
    app = Terminal(sys.executable, "-m", "seqtop", "replay", *options)
    try:
        app.wait_until(lambda: "Request" in app.text and "* running" in app.text)
        app.press("2")
        app.wait_until(lambda: ". free" in app.text and "= shared" in app.text)
        app.press("q")
        app.wait_until(lambda: app.process.poll() is not None)
        assert app.process.returncode == 0
        assert app.output.isascii()
        assert b"\\u" not in app.output
    finally:
        app.close()


def test_the_app_is_drawn_in_ascii(recording: str) -> None:
    assert_drawn_in_ascii(recording)


@pytest.mark.parametrize(
    "options",
    [
        ["--ascii"],
        pytest.param(["--config", "config.toml"], marks=pytest.mark.release("another start")),
    ],
)
def test_the_app_is_drawn_in_ascii_on_demand(
    recording: str, options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text("ascii = true\n")
    assert_drawn_in_ascii(*options, recording)
