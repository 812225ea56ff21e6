"""Extensions of argparse for `seqtop` and `engine-stub`: errors, number types, shell completion."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

SHELLS = ("bash", "zsh", "fish")
"""The shells that `completion_script` supports."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line, with the name of the subcommand.

    argparse passes unknown arguments of a subcommand to the parent parser, which then prints the
    usage of the whole program.
    """

    unknown_option_hint = ""
    """Text added to the error message about an unknown option."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parses the arguments; exits if any is unknown."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [flag for action in self._actions for flag in action.option_strings]
            hint = suggestion(option, known) + self.unknown_option_hint
            self.error(f"unrecognised argument {unknown[0]!r}{hint}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        """Prints one line and exits with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns `, perhaps …` with the most similar element of `known`, or an empty text."""
    names = {name.lstrip("-"): name for name in known}  # common dashes would count as similarity
    similar = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f", perhaps {names[similar[0]]}" if similar else ""


def positive(text: str) -> float:
    """Parses a number greater than 0. Raises `argparse.ArgumentTypeError`."""
    number = _number(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def not_negative(text: str) -> float:
    """Parses a number that is 0 or greater. Raises `argparse.ArgumentTypeError`."""
    number = _number(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return number


def positive_integer(text: str) -> int:
    """Parses a whole number that is at least 1, for `type=` of an argument."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Returns a script that lets `shell`, one of `SHELLS`, complete commands, options and files."""
    import shtab

    for part in _parsers(parser):
        for action in part._actions:
            if isinstance(action.metavar, str) and "FILE" in action.metavar:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields `parser` and the parsers of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()
