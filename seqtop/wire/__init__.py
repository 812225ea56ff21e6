"""What travels between an engine and its viewers, and how it is encoded."""

from seqtop.wire.codec import decode, encode
from seqtop.wire.errors import WireError

__all__ = ["WireError", "decode", "encode"]
