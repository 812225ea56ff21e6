"""`seqtop replay`: look at a recording."""

from __future__ import annotations

import argparse

from seqtop.argparse_ext import positive
from seqtop.cli.common import Commands, add_look, fail, nearest, run_app


def add(commands: Commands) -> None:
    replay = commands.add_parser(
        "replay",
        help="look at a recording",
        description="Play a recording as if it happened now.",
        epilog="example: seqtop replay run.seqtop --speed 4 --at 1200",
    )
    replay.add_argument("file", metavar="FILE", help="what seqtop record has written")
    replay.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        metavar="X",
        help="so many times as fast as it was (default: 1)",
    )
    replay.add_argument("--loop", action="store_true", help="begin again at the end")
    replay.add_argument("--at", type=int, metavar="STEP", help="begin at the end of this step")
    add_look(replay)
    replay.set_defaults(run=run, refuse=refuse)


def refuse(options: argparse.Namespace) -> int:
    """The exit status if there is nothing to replay, having said why; else 0."""
    from seqtop.history import FileStore, RecordingError

    try:
        with FileStore(options.file) as recording:
            recording.require()
    except RecordingError as error:
        return fail(str(error))
    return 0


def run(options: argparse.Namespace) -> int:
    from seqtop.history import FileStore, RecordingError
    from seqtop.history.playback import Playback

    try:
        with FileStore(options.file) as recording:
            recording.require()
            position, remarks = 0, []
            if options.at is not None:
                position = recording.index.at_step(options.at)
                if nearest(recording, options.at) is not None:
                    remarks = [f"Step {options.at:,} is not on record; this is the nearest."]
            with Playback(
                recording,
                options.file,
                speed=options.speed,
                loop=options.loop,
                position=position,
                detail=recording.damage or "",
            ) as source:
                return run_app([source], options, remarks)
    except RecordingError as error:
        return fail(str(error))
