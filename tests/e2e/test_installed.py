"""The wheel in an empty environment: its commands and files, and the commands of the README."""

import json
import os
import re
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from seqtop import __version__
from tests.support import private_network
from tests.support.commands import assert_one_sentence, run
from tests.support.installing import ROOT, Environment
from tests.support.terminal import Terminal

PORTS = (5557, 5558, 8000)
"""The ports of the README's commands."""

NOT_RUN = {"vllm serve": "needs vLLM, which tests/vllm has, and a model from the network"}
"""The reason why a command of the README is not run, by a part of it."""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the checkout can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_the_wheel_has_every_file(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    files = {
        str(path.relative_to(ROOT))
        for package in ("seqtop", "engine_stub")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    training = {name for name in files if name.startswith("engine_stub/train/")}
    assert training
    assert files - training <= packed
    assert not training & packed
    assert {"engine_stub/weights/model.safetensors", "engine_stub/weights/prompts.jsonl"} <= packed
    assert any(file.endswith("share/man/man1/seqtop.1") for file in packed)
    assert not {file for file in packed if file.startswith(("tests/", "benchmarks/"))}


def test_the_commands_of_an_installation(inspector: Environment, recording: str) -> None:
    for name in ("seqtop", "engine-stub"):
        assert run(str(inspector.bin / name), "--version").stdout == f"{name} {__version__}\n"
    app = Terminal(str(inspector.bin / "seqtop"), "replay", recording)
    try:
        app.wait_until(lambda: "REPLAY" in app.text and "Request" in app.text)
        app.press("q")
        app.wait_until(lambda: app.process.poll() is not None)
        assert app.process.returncode == 0
    finally:
        app.close()


def test_the_plugin_of_vllm(inspector: Environment) -> None:
    program = """
import json
from importlib.metadata import entry_points
(plugin,) = entry_points(group="vllm.general_plugins")
register = plugin.load()
register()
print(json.dumps([plugin.name, register.__module__]))
"""
    done = run(str(inspector.bin / "python"), "-c", program)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["seqtop", "seqtop.adapters.vllm"]


def test_the_engine_without_torch(inspector: Environment) -> None:
    command = str(inspector.bin / "engine-stub")
    advice = ("torch is not installed", "pip install 'seqtop-llm[engine]'")
    for options in ([], ["--demo", "--http", "127.0.0.1:8000"], ["--model", "no/such"]):
        assert_one_sentence(run(command, "serve", *options), 1, *advice)
    assert_one_sentence(run(command, "serve", "--pace", "-1"), 2, "--pace")
    assert "complete" in run(command, "completion", "bash").stdout
    assert "--num-gpu-blocks" in run(command, "serve", "--help").stdout
    demo = Terminal(str(inspector.bin / "seqtop"), "demo")
    try:
        demo.wait_until(
            lambda: (
                demo.process.poll() is not None
                and all(word.encode() in demo.output for word in advice)
            )
        )
    finally:
        demo.close()
    assert demo.process.returncode == 1
    assert b"Traceback" not in demo.output
    served = run(str(inspector.bin / "seqtop"), "serve")
    assert_one_sentence(served, 1, "pip install 'seqtop-llm[web]'")


def blocks() -> Iterator[list[str]]:
    """The commands of each block of the README, as written."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        assert block.startswith("$ ")
        yield [command.strip() for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]


def in_a_network_of_its_own(play: Callable[[], str]) -> str:
    """Runs `play` where the ports of the README are free; returns its result."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(private_network.enter).result()
        except OSError as error:
            for port in PORTS:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        pytest.skip(f"port {port} is taken, and no network of its own: {error}")
        return thread.submit(play).result()


def play_block(commands: list[str], folder: Path) -> str:
    """Runs commands in shells on terminals: an engine in one, the others in another.

    Returns the output of the others. An app, which can only be the last, is left with `q`.
    """
    engines = [command for command in commands if command.startswith("engine-stub serve")]
    others = [command for command in commands if command not in engines]
    terminals: list[Terminal] = []
    try:
        for command in engines:
            engine = Terminal("sh", "-c", command, cwd=folder)
            terminals.append(engine)
            engine.wait_until(lambda engine=engine: "published at" in engine.text)  # type: ignore[misc]
            engine.wait_until(lambda engine=engine: "to watch it" in engine.text)  # type: ignore[misc]
        script = ("sh", "-e", "-c", "\n".join(others))
        if not re.match(r'seqtop (attach|replay|")', others[-1]):
            done = run(*script, cwd=folder)
            assert done.returncode == 0, done.stderr
            return done.stdout
        shell = Terminal(*script, cwd=folder)
        terminals.append(shell)
        shell.wait_until(lambda: "LIVE" in shell.text or "REPLAY" in shell.text)
        shell.press("q")
        shell.wait_until(lambda: shell.process.poll() is not None)
        assert shell.process.returncode == 0, shell.text
        return ""
    finally:
        for terminal in reversed(terminals):
            terminal.close()


def test_the_commands_of_the_readme(
    with_engine: Environment, recording: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{with_engine.bin}:{os.environ['PATH']}")
    (tmp_path / ".venv").symlink_to(with_engine.folder)
    for number, name in enumerate(("seqtop-old.seqtop", "seqtop-new.seqtop")):
        shutil.copy(recording, tmp_path / name)
        os.utime(tmp_path / name, (number, number))
    num_run = 0
    for commands in blocks():
        if any(part in command for part in NOT_RUN for command in commands):
            continue
        if all(command.startswith("make ") for command in commands):
            for command in commands:  # what they install is installed here already
                done = run("sh", "-c", command.replace("make", "make --dry-run"), cwd=ROOT)
                assert done.returncode == 0, done.stderr
        else:
            written = in_a_network_of_its_own(partial(play_block, commands, tmp_path))
            assert "curl" not in commands[-1] or written.count("data: {") > 5
        num_run += len(commands)
    assert num_run > 8
    assert {path.name for path in tmp_path.glob("*.seqtop.*")} == {
        "seqtop-new.seqtop.pftrace",
        "seqtop-new.seqtop.csv",
        "seqtop-new.seqtop.html",
    }
