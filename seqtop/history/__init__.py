"""Recordings: what an engine did to its sequences, in a file (`docs/recording.md`)."""

from seqtop.history.file_store import Recording, final_state
from seqtop.history.file_writer import RecordingWriter
from seqtop.history.timeline import RecordingError

__all__ = ["Recording", "RecordingError", "RecordingWriter", "final_state"]
