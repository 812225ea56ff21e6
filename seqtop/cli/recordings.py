"""Recordings as the commands open them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.cli.messages import warn

if TYPE_CHECKING:
    from seqtop.history import FileStore


@contextmanager
def open_recording(path: str) -> Iterator[FileStore]:
    """Opens the recording at `path`; prints a warning if it is damaged or only a prediction.

    Raises:
        RecordingError: The recording is empty or cannot be read.
    """
    from seqtop.history import FileStore

    with FileStore(path) as recording:
        recording.require()
        if recording.damage:
            warn(recording.damage)
        warn_of_prediction(path, recording.predicted_from)
        yield recording


class FolderError(Exception):
    """A folder without a recording; `str()` is one sentence for the user."""


def recordings_in(folder: str) -> list[Path]:
    """Returns the paths of the recordings in a folder, by name.

    Raises:
        FolderError: There is none, or the folder cannot be read.
    """
    try:
        found = sorted(own for own in Path(folder).iterdir() if own.suffix == ".seqtop")
    except OSError as error:
        raise FolderError(f"{folder} cannot be read: {error.strerror}") from error
    if not found:
        raise FolderError(f"there is no recording (*.seqtop) in {folder}")
    return found


def warn_of_prediction(path: str, predicted_from: str) -> None:
    """Prints a warning if a recording was predicted by `seqtop whatif` from another one."""
    if predicted_from:
        warn(f"{path} is a PREDICTION from {predicted_from}, no run of an engine")


def nearest_step(recording: FileStore, step: int) -> str | None:
    """Describes the recorded step nearest to `step`, or returns `None` if `step` is recorded.

    Steps are those of the engine's last start.
    """
    nearest = recording.index[recording.index.at_step(step)].step
    if nearest == step:
        return None
    return f"step {nearest:,}" if nearest >= 0 else "the state before the first step"
