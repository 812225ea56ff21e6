"""Recordings: what an engine did to its sequences, in a file (`docs/recording.md`)."""

from seqtop.history.file_store import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError

__all__ = ["FileStore", "FileWriter", "RecordingError"]
