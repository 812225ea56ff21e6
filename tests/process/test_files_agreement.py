"""The one way to create files, and those that it replaces, do the same to seeded random paths."""

import argparse
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from seqtop.cli.export import _output
from seqtop.history.file_writer import _create
from seqtop.history.timeline import RecordingError
from seqtop.process import files
from seqtop.tui.settings import SavedState

KINDS = ("nothing", "file", "hard link", "link", "dangling", "directory", "pipe", "no directory")


def recording(path: Path, content: bytes, *, overwrite: bool) -> None:
    try:
        handle = _create(path, overwrite=overwrite)
    except RecordingError as error:
        raise OSError(str(error)) from error
    os.write(handle, content)
    os.close(handle)


def new_recording(path: Path, content: bytes, *, overwrite: bool) -> None:
    handle = files.create(path, overwrite=overwrite)
    os.write(handle, content)
    os.close(handle)


def export(path: Path, content: bytes, *, overwrite: bool) -> None:
    with _output(argparse.Namespace(output=str(path), force=overwrite)) as file:
        file.write(content)


def saved_state(path: Path, content: bytes, *, overwrite: bool) -> None:
    SavedState(path)._write(content[:-1])


def new_file(path: Path, content: bytes, *, overwrite: bool) -> None:
    with files.writing(path, overwrite=overwrite) as file:
        file.write(content)


def outcome(
    write: Callable[..., None], root: Path, kind: str, seed: int, *, overwrite: bool
) -> object:
    """Prepares a path, writes to it, and returns all that can be seen afterwards."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    chance = random.Random(seed)
    path, target = root / ("n" * chance.randint(1, 200)), root / "target"
    target.write_bytes(chance.randbytes(20))
    target.chmod(chance.choice([0o600, 0o644, 0o444]))
    match kind:
        case "file":
            path.write_bytes(chance.randbytes(30))
            path.chmod(chance.choice([0o600, 0o644, 0o666]))
        case "hard link":
            path.hardlink_to(target)
        case "link" | "dangling":
            path.symlink_to(target if kind == "link" else root / "gone")
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "no directory":
            path = root / "no" / "path"
    try:
        write(path, chance.randbytes(chance.randrange(50)) + b"\n", overwrite=overwrite)
        failed = False
    except OSError:
        failed = True
    left = {
        file.name: (file.lstat().st_mode, file.read_bytes() if file.is_file() else None)
        for file in root.rglob("*")
    }
    return failed, left


def test_agreement(tmp_path: Path) -> None:
    for seed in range(1000):
        kind, overwrite = random.Random(seed).choice(KINDS), bool(seed % 2)
        pairs = [(recording, new_recording)]
        # On purpose different: the old export writes through links and into pipes.
        if not overwrite or kind not in ("hard link", "link", "dangling", "pipe"):
            pairs.append((export, new_file))
        # The saved state always overwrites, creates its directory, and replaced a pipe.
        if overwrite and kind not in ("no directory", "pipe"):
            pairs.append((saved_state, new_file))
        for old, new in pairs:
            was, now = (
                outcome(write, tmp_path / "root", kind, seed, overwrite=overwrite)
                for write in (old, new)
            )
            assert was == now, (seed, kind, overwrite, old.__name__)
