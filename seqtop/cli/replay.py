"""`seqtop replay`: shows a recording in the app."""

from __future__ import annotations

import argparse

from seqtop.cli.messages import fail
from seqtop.cli.options import Commands, add_view_options
from seqtop.cli.recordings import nearest_step
from seqtop.cli.run_app import run_app
from seqtop.process.argparse_ext import positive


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    replay = commands.add_parser(
        "replay",
        help="show a recording",
        description="Show a recording, paused at its end: all requests are in the table, and the"
        " keys of time travel lead to any moment.",
        epilog="example: seqtop replay run.seqtop --play --speed 4",
    )
    replay.add_argument("file", metavar="FILE", help="a recording made by seqtop record")
    replay.add_argument("--play", action="store_true", help="play it from its beginning")
    replay.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        metavar="X",
        help="multiple of the recorded speed at which it plays (default: 1)",
    )
    replay.add_argument("--loop", action="store_true", help="start again at the end")
    replay.add_argument(
        "--at", type=int, metavar="STEP", help="start at the end of this step, paused unless --play"
    )
    replay.add_argument("--select", metavar="REQUEST", help="select this request, by its id")
    add_view_options(replay)
    replay.set_defaults(run=run, validate=validate)


def validate(options: argparse.Namespace) -> int:
    """Prints why the recording cannot be replayed, if so, and returns the exit status."""
    from seqtop.history import FileStore, RecordingError

    try:
        with FileStore(options.file) as recording:
            recording.require()
    except RecordingError as error:
        return fail(str(error), status=2)
    return 0


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.history import FileStore, RecordingError
    from seqtop.live.playback import Playback

    try:
        with FileStore(options.file) as recording:
            recording.require()
            position = 0 if options.play else recording.last
            # Said once, as a notice that leaves: it does not change while the recording plays.
            notices = [f"{recording.damage}."] if recording.damage else []
            if options.at is not None:
                position = recording.index.at_step(options.at)
                if (nearest := nearest_step(recording, options.at)) is not None:
                    notices += [f"Step {options.at:,} is not recorded; this is {nearest}."]
            if options.select and options.select not in recording.at(position).requests:
                notices += [f"{options.select} is not here yet; it is selected when it arrives."]
            playback = Playback(
                recording,
                options.file,
                speed=options.speed,
                loop=options.loop,
                position=position,
                paused=not options.play,
            )
            return run_app([playback], options, notices)
    except RecordingError as error:
        return fail(str(error), status=2)
