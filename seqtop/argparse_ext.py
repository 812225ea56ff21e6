"""Reading a command line, saying what is wrong with it in terms of the command meant, and letting
a shell complete it: for `seqtop` and `engine-stub` alike."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

SHELLS = ("bash", "zsh", "fish")
"""Those that `completion` writes for."""


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose subcommands answer for their own mistakes, in a sentence each.

    argparse hands what a subcommand does not know to the parser above it, which then shows the
    usage of the whole program.
    """

    stray = ""
    """What to say of options that are not its own, where it can be known what is meant."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = [each for action in self._actions for each in action.option_strings]
            hint = perhaps(option, known) + self.stray
            self.error(f"unrecognised argument {unknown[0]!r}{hint}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help tells more\n")


def perhaps(word: str, known: Iterable[str]) -> str:
    """`, perhaps …` with what of `known` may be meant by `word`, if anything may."""
    names = {each.lstrip("-"): each for each in known}  # dashes make everything look alike
    close = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f", perhaps {names[close[0]]}" if close else ""


def positive(text: str) -> float:
    """A number above 0. Raises `argparse.ArgumentTypeError`."""
    number = _number(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return number


def not_negative(text: str) -> float:
    """A number from 0 on. Raises `argparse.ArgumentTypeError`."""
    number = _number(text)
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return number


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script that lets `shell`, one of `SHELLS`, complete commands, options and files."""
    import shtab

    for each in _parsers(parser):
        for action in each._actions:
            if isinstance(action.metavar, str) and "FILE" in action.metavar:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """`parser` and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()
