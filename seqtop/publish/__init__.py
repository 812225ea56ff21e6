"""The public API for engines in Python that publish. See `docs/writing-an-adapter.md`.

An author implements `Adapter`, whose methods say what is. `Publisher` compares that with what was
at the step before, and publishes the difference.
"""

from seqtop.publish.adapter import Adapter, EngineDescription, RequestDescription
from seqtop.publish.publisher import Publisher
from seqtop.sequence import SequenceStatus

__all__ = ["Adapter", "EngineDescription", "Publisher", "RequestDescription", "SequenceStatus"]
