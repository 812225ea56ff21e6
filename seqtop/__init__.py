"""seqtop: see what an LLM inference engine is doing to every sequence, live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from seqtop.history import RecordingError
    from seqtop.history.recording import Recording
    from seqtop.history.segments import Gap

__version__ = "0.1.0"

__all__ = ["Gap", "Recording", "RecordingError", "__version__", "open"]


def open(path: str | os.PathLike[str]) -> Recording:  # noqa: A001 - as `gzip.open`
    """Opens a recording.

    Raises:
        RecordingError: The file is not a recording of this version, or nothing in it can be read.
    """
    from seqtop.history.recording import Recording

    return Recording(path)


def __getattr__(name: str) -> Any:
    """Imports a class when it is first used, so that `import seqtop` stays fast."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seqtop.history import RecordingError, recording, segments

    globals().update(Gap=segments.Gap, Recording=recording.Recording, RecordingError=RecordingError)
    return globals()[name]
