"""`seqtop report`: writes a report of one or two recordings as an HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands, parse_slo
from seqtop.cli.progress import shown_progress
from seqtop.process.distribution import install_command
from seqtop.text import format as fmt


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    report = commands.add_parser(
        "report",
        help="write a report of a recording as an HTML page",
        description="Write a report of a recording as one HTML page that needs no network and no"
        " script: figures, charts over time, distributions, what limited the batches, the slowest"
        " requests and the preemptions in sentences, and what the checks find. Two recordings are"
        " shown side by side, those of a folder in a line each, the worst first. The page has no"
        " text of prompts and outputs unless --with-text is given.",
        epilog="example: seqtop report run.seqtop -o report.html",
    )
    report.add_argument(
        "source", metavar="FILE", help="the recording, or a folder of recordings or of their tables"
    )
    report.add_argument("other", nargs="?", metavar="FILE", help="a recording to show beside it")
    report.add_argument("-o", "--output", metavar="FILE", required=True, help="the file to write")
    report.add_argument("--force", action="store_true", help="replace the file if it exists")
    report.add_argument(
        "--slo",
        type=parse_slo,
        metavar="FIGURE=TIME,…",
        help="objectives, such as ttft=0.5,itl=50ms, for the goodput: the requests per second that"
        " met all of them",
    )
    report.add_argument(
        "--by",
        default="prefix",
        metavar="KEY",
        help="what requests are grouped by: prefix (the id up to its first separator, such as -),"
        " prio, lora, or what an expression finds in the id (re:/user-(\\d+)/) (default: prefix)",
    )
    report.add_argument(
        "--with-text",
        action="store_true",
        help="show the prompts and outputs of the slowest requests",
    )
    report.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.cli.recordings import FolderError
    from seqtop.history import RecordingError
    from seqtop.process import files
    from seqtop.state.groups import KEYS, LASTING_KEYS, GroupKeyError

    is_folder = Path(options.source).is_dir()
    if is_folder and (options.other is not None or options.with_text):
        return fail("a folder is reported alone, and without texts", status=2)
    if options.by in set(KEYS) - set(LASTING_KEYS):
        lasting = ", ".join(LASTING_KEYS)
        return fail(
            f"--by {options.by} changes while a request runs; a report has {lasting} and re:/…/",
            status=2,
        )
    try:
        with files.writing(options.output, overwrite=options.force) as file:
            texts = _folder_page(options) if is_folder else _page(options)
            file.writelines(text.encode(errors="replace") for text in texts)
    except (RecordingError, GroupKeyError, FolderError) as error:
        return fail(str(error), status=2)
    except FileExistsError:
        return fail(f"{options.output} exists already; --force replaces it")
    except OSError as error:
        return fail(f"{options.output} cannot be written: {error.strerror}")
    warn(f"wrote {options.output}")
    return 0


def _page(options: argparse.Namespace) -> Iterator[str]:
    """Reads one or two recordings, and returns the texts of their page."""
    from seqtop.cli.recordings import open_recording
    from seqtop.diff.comparison import compare
    from seqtop.diff.run import RunDecisions
    from seqtop.export.report import contents, page
    from seqtop.state.slo import Slo

    recordings, decisions = [], []
    for path in filter(None, (options.source, options.other)):
        with open_recording(path) as recording, shown_progress(f"reading {path}") as progress:
            slo = options.slo or Slo()
            recordings.append(contents.read(recording, slo, options.by, progress))
            if options.other is not None:
                decisions.append(RunDecisions(recording, progress))
    comparison = compare(decisions[0], decisions[1]) if decisions else None
    return page.write(recordings, with_text=options.with_text, comparison=comparison)


def _folder_page(options: argparse.Namespace) -> Iterator[str]:
    """Reads the recordings of a folder, and returns the texts of their page."""
    from seqtop.cli.recordings import FolderError, recordings_in
    from seqtop.export.report import folder
    from seqtop.state.slo import Slo

    slo, summaries, summarize = options.slo or Slo(), [], folder.summarize
    paths = [*Path(options.source).glob("requests/date=*/engine=*/*.parquet")]
    if paths:
        if find_spec("pyarrow") is None:
            raise FolderError(f"tables need pyarrow: {install_command('export')}")
        from seqtop.export.report import tables

        summarize = tables.summarize
    else:
        paths = recordings_in(options.source)
    with shown_progress(f"reading {fmt.plural(len(paths), 'recording')}") as progress:
        for number, path in enumerate(sorted(paths)):
            summaries.append(summarize(path, slo))
            progress((number + 1) / len(paths))
    if unread := sum(bool(summary.problem) for summary in summaries):
        warn(f"{fmt.plural(unread, 'recording')} could not be read as a whole")
    return folder.write(summaries, slo)
