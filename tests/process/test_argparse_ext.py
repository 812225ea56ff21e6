"""Extensions of argparse."""

import argparse

import pytest

from seqtop.process.argparse_ext import CommandParser, not_negative, positive, suggestion


@pytest.mark.parametrize(
    ("word", "expected"),
    [("--jsn", ", perhaps --json"), ("txet", ", perhaps --text"), ("--other", ""), ("", "")],
)
def test_a_similar_option_is_suggested(word: str, expected: str) -> None:
    assert suggestion(word, ["--json", "--text"]) == expected


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "x", ""])
def test_numbers_outside_the_range_are_refused(text: str) -> None:
    for parse in (positive, not_negative):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a"):
            parse(text)


def test_zero_is_not_negative_and_not_positive() -> None:
    assert not_negative("0") == 0
    with pytest.raises(argparse.ArgumentTypeError):
        positive("0")


def test_an_unknown_option_is_an_error_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    whole = CommandParser(prog="top")
    commands = whole.add_subparsers()
    command = commands.add_parser("show")
    command.add_argument("--json", action="store_true")
    command.unknown_option_hint = "; options go first"
    with pytest.raises(SystemExit) as exit_:
        whole.parse_args(["show", "--jsno"])
    assert exit_.value.code == 2
    assert capsys.readouterr().err == (
        "top show: unrecognised argument '--jsno', perhaps --json; options go first;"
        " see top show --help\n"
    )
