"""`seqtop completion`: prints a completion script for a shell."""

from __future__ import annotations

import argparse

from seqtop.cli.options import Commands
from seqtop.process import argparse_ext


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a script that lets a shell complete commands, options and files. For"
        ' bash, eval it in ~/.bashrc: eval "$(seqtop completion bash)". For zsh, save it as _seqtop'
        " in a folder of $fpath. For fish, save it as ~/.config/fish/completions/seqtop.fish.",
        epilog='example: eval "$(seqtop completion bash)"',
    )
    completion.add_argument("shell", choices=argparse_ext.SHELLS)
    completion.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.cli.parser import build_parser

    print(argparse_ext.completion_script(build_parser(), options.shell))
    return 0
