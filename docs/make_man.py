"""Writes the manual page `docs/seqtop.1` from the command's parser (`make man`)."""

import argparse
import os
from pathlib import Path

from argparse_manpage.manpage import Manpage

from seqtop import __version__
from seqtop.cli.parser import EXAMPLES, EXIT_STATUS, build_parser

PATH = Path(__file__).with_name("seqtop.1")


def page() -> str:
    """Returns the manual page, which depends on nothing but the parser."""
    os.environ["COLUMNS"] = "80"
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    for command in commands.choices.values():
        command.description = f"{command.description}\n\nE{command.epilog[1:]}"
        command.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = None
    manual = Manpage(
        parser,
        {
            "prog": "seqtop",
            "project_name": "seqtop",
            "description": "htop for sequences",
            "version": __version__,
            "manual_title": "User Commands",
            "date": f"version {__version__}",
        },
        format="single-commands-section",
    )
    for heading, text in (("examples", EXAMPLES), ("exit status", EXIT_STATUS)):
        body = "\n".join(line.strip() for line in text.splitlines()[1:])
        manual.add_section(heading, ">", f".nf\n{body.replace(chr(92), chr(92) * 2)}\n.fi")
    return str(manual)


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
