"""The help and the errors of the whole command line."""

import pytest

from seqtop.cli import COMMANDS
from seqtop.cli.main import main


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_has_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([*command, "--help"])
    assert exit_.value.code == 0
    assert "example" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "command", "words"),
    [
        (["show", "--jsn"], "seqtop show", ("'--jsn', perhaps --json",)),
        (["show", "--bogus"], "seqtop show", ("unrecognised argument '--bogus';",)),
        (["record", "-o", "x", "--durations=3"], "seqtop record", ("perhaps --duration",)),
        (["replay", "a", "b"], "seqtop replay", ("unrecognised argument 'b'",)),
        (["--verison", "show"], "seqtop", ("perhaps --version",)),
        (["replay"], "seqtop replay", ("FILE",)),
        (["serve", "replay", "x", "--loop"], "seqtop serve", ("'--loop': options", "go after --")),
        (
            ["show", "--timeout", "-1"],
            "seqtop show",
            ("--timeout: '-1' is not a number from 0 on",),
        ),
        (["check", "--timeout", "nan"], "seqtop check", ("'nan' is not a number from 0 on",)),
        (["demo", "--pace", "-3"], "seqtop demo", ("--pace: '-3' is not a number from 0 on",)),
        (["show", "--filter", "foo>3"], "seqtop show", ("no field 'foo': there are request, seq",)),
        (["attach", "--filter", "foo>3"], "seqtop attach", ("no field 'foo': there are request",)),
        (["show", "--filter", "promt>3"], "seqtop show", ("no field 'promt': perhaps prompt;",)),
    ],
)
def test_wrong_usage_is_one_sentence_of_the_command_meant(
    arguments: list[str], command: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"{command}: ")
    assert said.endswith(f"; see {command} --help")
    for word in words:
        assert word in said


def test_help_has_the_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit status:" in said
    for status in ("0", "1", "2", "3", "130", "141"):
        assert f"\n  {status} " in said
