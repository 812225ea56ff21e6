"""The messages between an engine and its viewers, and their encoding."""

from seqtop.wire.batch import Member, members
from seqtop.wire.codec import decode, encode
from seqtop.wire.errors import WireError

__all__ = ["Member", "WireError", "decode", "encode", "members"]
