"""Completion in real shells, and the manual page."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_stub.entrypoints.cli import main as engine_main
from seqtop.cli import COMMANDS
from seqtop.cli.main import main
from tests.support.waiting import SECONDS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def script(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    """The script for the shell that the test names; skips where there is no such shell."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def said_by(*command: str, **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["sh"], ["show"]),
        (["show", "--fo"], ["--follow"]),
        (["completion", "z"], ["zsh"]),
        (["replay", "here.seq"], ["here.seqtop"]),
    ],
)
def test_bash_completes(script: str, words: list[str], expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "here.seqtop").touch()
    quoted = " ".join(f"'{word}'" for word in ["seqtop", *words])
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _shtab_seqtop; echo ${{COMPREPLY[@]}}"
    assert said_by("bash", "-c", f"{script}\n{asked}", cwd=tmp_path).split() == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_the_engine_s_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine_main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    asked = "COMP_WORDS=(engine-stub serve --preemption-m); COMP_CWORD=2; _shtab_engine_stub"
    assert said_by("bash", "-c", f"{script}\n{asked}; echo ${{COMPREPLY[@]}}").split() == [
        "--preemption-mode"
    ]


@pytest.mark.release("needs fish")
@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script: str) -> None:
    output = said_by("fish", "--no-config", "-c", f"{script}\ncomplete -C 'seqtop sh'")
    assert [line.split("\t")[0] for line in output.splitlines()] == ["show"]


@pytest.mark.release("needs zsh")
@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_can_read_it(script: str) -> None:
    assert script.startswith("#compdef seqtop")
    said_by("zsh", "-n", "-c", script)
    for name in COMMANDS:
        assert f"{name}:" in script


def test_a_shell_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["completion", "cmd"])
    assert exit_.value.code == 2
    assert "bash" in capsys.readouterr().err


@pytest.fixture(scope="module")
def page() -> str:
    """In a process of its own: making it changes the parser."""
    code = f"import sys; sys.path.insert(0, {str(DOCS)!r}); import make_man; print(make_man.page())"
    return said_by(sys.executable, "-c", code)


@pytest.mark.skipif(
    importlib.util.find_spec("argparse_manpage") is None, reason="argparse-manpage is missing"
)
def test_the_manual_page_is_current(page: str) -> None:
    kept = (DOCS / "seqtop.1").read_text(encoding="utf-8")
    assert kept.split() == page.split(), "the options have changed: make man"


def test_the_manual_page_has_every_command_and_section() -> None:
    kept = (DOCS / "seqtop.1").read_text(encoding="utf-8")
    for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXAMPLES", "EXIT STATUS"):
        assert re.search(rf'^\.SH\s+"?{section}"?$', kept, re.MULTILINE), section
    for name in COMMANDS:
        assert f"seqtop {name}" in kept


@pytest.mark.release("needs mandoc")
@pytest.mark.skipif(shutil.which("mandoc") is None, reason="mandoc is not installed")
def test_the_manual_page_has_no_errors() -> None:
    said_by("mandoc", "-Tlint", "-Werror", str(DOCS / "seqtop.1"))
