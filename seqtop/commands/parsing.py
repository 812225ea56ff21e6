"""Reading the command line, and saying what is wrong with it in terms of the command meant."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """An argument parser whose subcommands answer for their own mistakes.

    argparse hands what a subcommand does not know to the parser above it, which then shows the
    usage of the whole program.
    """

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", self.format_help())
            self.error(f"unrecognised argument {unknown[0]!r}{perhaps(option, known)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help tells more\n")


def perhaps(word: str, known: Iterable[str]) -> str:
    """`, perhaps …` with what of `known` may be meant by `word`, if anything may."""
    close = difflib.get_close_matches(word, dict.fromkeys(known), n=1)
    return f", perhaps {close[0]}" if close else ""
