"""`seqtop completion`: what lets a shell complete the command line."""

from __future__ import annotations

import argparse

from seqtop.commands.common import Commands


def add(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print what lets a shell complete commands and options",
        description="Print a script that lets a shell complete commands, options and files. For"
        ' bash, eval it in ~/.bashrc: eval "$(seqtop completion bash)". For zsh, save it as _seqtop'
        " in a folder of $fpath. For fish, save it as ~/.config/fish/completions/seqtop.fish.",
        epilog='example: eval "$(seqtop completion bash)"',
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    import shtab

    from seqtop.commands.usage import parser

    whole = parser()
    for each in _parsers(whole):
        for action in each._actions:
            if isinstance(action.metavar, str) and "FILE" in action.metavar:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(whole, options.shell))
    return 0


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """`parser` and those of its commands."""
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += action.choices.values()
    return found
