"""Recorded time: the timeline of a session in memory or in a file, and its playback."""

from seqtop.history.file_store import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError

__all__ = ["FileStore", "FileWriter", "RecordingError"]
