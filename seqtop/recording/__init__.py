"""Recordings: what an engine did to its sequences, in a file (`docs/recording.md`)."""

from seqtop.recording.reader import Recording, final_state
from seqtop.recording.writer import RecordingWriter
from seqtop.state.timeline import RecordingError

__all__ = ["Recording", "RecordingError", "RecordingWriter", "final_state"]
