"""`seqtop completion`: what lets a shell complete the command line."""

from __future__ import annotations

import argparse

from seqtop import argparse_ext
from seqtop.cli.common import Commands


def add(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="print what lets a shell complete commands and options",
        description="Print a script that lets a shell complete commands, options and files. For"
        ' bash, eval it in ~/.bashrc: eval "$(seqtop completion bash)". For zsh, save it as _seqtop'
        " in a folder of $fpath. For fish, save it as ~/.config/fish/completions/seqtop.fish.",
        epilog='example: eval "$(seqtop completion bash)"',
    )
    completion.add_argument("shell", choices=argparse_ext.SHELLS)
    completion.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from seqtop.cli.usage import parser

    print(argparse_ext.completion(parser(), options.shell))
    return 0
