"""The wheels in empty environments: commands, files, and what the pages for beginners say."""

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
from seqtop.demo import RECORDED_RUN
from tests.support import private_network
from tests.support.commands import assert_one_sentence, run
from tests.support.installing import ROOT, Environment
from tests.support.terminal import Terminal

LARGEST_WHEEL = 1_450_000
"""Bytes of the inspector's wheel: its code, and the recorded run of the demo."""

PAGES = ("README.md", "docs/commands.md", "docs/bundled-engine.md")
"""The pages whose commands are run, with what they install."""

PORTS = (5557, 5558, 8000)
"""The ports of their commands."""

NOT_RUN = {"vllm serve": "needs vLLM, which tests/vllm has, and a model from the network"}
"""The reason why a command is not run, by a part of it."""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the checkout can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)


def files_of(package: str) -> set[str]:
    """The files of a package in this checkout."""
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_and_no_weights(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {*archive.namelist()}
    files = files_of("seqtop")
    (manual,) = (file for file in packed if file.endswith("share/man/man1/seqtop.1"))
    assert {file for file in packed if ".dist-info/" not in file} == files | {manual}
    assert wheel.stat().st_size < LARGEST_WHEEL


def test_the_engine_s_wheel_has_every_file(engine_wheel: Path) -> None:
    with zipfile.ZipFile(engine_wheel) as archive:
        packed = {*archive.namelist()}
    files = files_of("engine_stub")
    of_the_project = {f"engine_stub/{name}" for name in ("LICENSE", "README.md", "pyproject.toml")}
    training = {name for name in files if name.startswith("engine_stub/train/")}
    assert training
    assert of_the_project < files
    assert {file for file in packed if ".dist-info/" not in file} == (
        files - training - of_the_project
    )


def test_the_commands_of_an_installation(inspector: Environment, recording: str) -> None:
    assert run(str(inspector.bin / "seqtop"), "--version").stdout == f"seqtop {__version__}\n"
    assert not (inspector.bin / "engine-stub").exists()
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


def test_the_engine_without_torch(inspector: Environment, with_whatif: Environment) -> None:
    command = str(with_whatif.bin / "engine-stub")
    assert run(command, "--version").stdout == f"engine-stub {__version__}\n"
    advice = ("torch is not installed", "pip install 'seqtop-llm[engine]'")
    for options in ([], ["--demo", "--http", "127.0.0.1:8000"], ["--model", "no/such"]):
        assert_one_sentence(run(command, "serve", *options), 1, *advice)
    assert_one_sentence(run(command, "serve", "--pace", "-1"), 2, "--pace")
    assert "complete" in run(command, "completion", "bash").stdout
    assert "--num-gpu-blocks" in run(command, "serve", "--help").stdout
    served = run(str(inspector.bin / "seqtop"), "serve")
    assert_one_sentence(served, 1, "pip install 'seqtop-llm[web]'")


@pytest.mark.parametrize("name", ["inspector", "with_whatif"])
def test_the_demo_without_torch_plays_a_recorded_run(
    name: str, request: pytest.FixtureRequest
) -> None:
    environment: Environment = request.getfixturevalue(name)
    demo = Terminal(str(environment.bin / "seqtop"), "demo")
    try:
        demo.wait_until(lambda: "REPLAY" in demo.text and "typed-" in demo.text)
        demo.wait_until(lambda: "This is a recorded run" in demo.text)
        before = demo.text
        demo.wait_until(lambda: demo.text != before)  # it plays
        demo.press("q")
        demo.wait_until(lambda: demo.process.poll() is not None)
        demo.wait_until(lambda: b"pip install 'seqtop-llm[engine]'" in demo.output.splitlines()[-1])
    finally:
        demo.close()
    assert demo.process.returncode == 0
    other = Terminal(str(environment.bin / "seqtop"), "demo", "--model", "no/such")
    try:
        other.wait_until(lambda: other.process.poll() is not None)
        other.wait_until(lambda: b"is not installed: pip install" in other.output)
    finally:
        other.close()
    assert other.process.returncode == 1


def test_predictions_need_no_torch(inspector: Environment, with_whatif: Environment) -> None:
    arguments = ("whatif", str(RECORDED_RUN), "--set", "num_gpu_blocks=+50%")
    done = run(str(with_whatif.bin / "seqtop"), *arguments)
    assert done.returncode == 0, done.stderr
    assert "num_gpu_blocks" in done.stdout
    refused = run(str(inspector.bin / "seqtop"), *arguments)
    assert_one_sentence(refused, 2, "engine_stub", "pip install 'seqtop-llm[whatif]'")


def blocks() -> Iterator[tuple[list[str], bool]]:
    """The commands of each block of the pages for beginners, as written.

    With each is `True` if it installs the inspector alone.
    """
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            assert block.startswith("$ ")
            commands = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
            others = [each.strip() for each in commands if not each.startswith("pip install")]
            yield others, any(re.match(r"pip install seqtop-llm\s", each) for each in commands)


def in_a_network_of_its_own(play: Callable[[], str]) -> str:
    """Runs `play` where the ports of the commands are free; returns its result."""
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
        if not re.match(r'seqtop (attach|demo|replay|")', others[-1]):
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


def test_the_commands_of_the_pages_for_beginners(
    inspector: Environment,
    with_engine: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = os.environ["PATH"]
    for number, name in enumerate(("seqtop-old.seqtop", "seqtop-new.seqtop")):
        shutil.copy(RECORDED_RUN, tmp_path / name)
        os.utime(tmp_path / name, (number, number))
    num_run = 0
    for commands, is_inspector in blocks():
        environment = inspector if is_inspector else with_engine
        monkeypatch.setenv("PATH", f"{environment.bin}:{path}")
        if any(part in command for part in NOT_RUN for command in commands):
            continue
        written = in_a_network_of_its_own(partial(play_block, commands, tmp_path))
        assert "curl" not in commands[-1] or written.count("data: {") > 5
        num_run += len(commands)
    assert num_run > 8
    assert {path.name for path in tmp_path.glob("*.seqtop.*")} == {
        "seqtop-new.seqtop.pftrace",
        "seqtop-new.seqtop.csv",
        "seqtop-new.seqtop.html",
    }
