"""The tag of an encoded message, read without decoding the message."""

from typing import Final

_MAX_TAG_BYTES: Final = 31
"""The longest string whose length is in its first byte."""


def tag(payload: bytes | memoryview) -> str:
    """Returns the tag of a message without decoding the message.

    Empty if the payload does not start with an array and a string of up to 31 bytes.
    """
    start = bytes(payload[: 6 + _MAX_TAG_BYTES])
    if not start:
        return ""
    # The header of an array has one, three or five bytes.
    at = 1 if start[0] >> 4 == 0x9 else {0xDC: 3, 0xDD: 5}.get(start[0], 0)
    if not at or len(start) <= at or start[at] >> 5 != 0b101:
        return ""
    return start[at + 1 : at + 1 + (start[at] & 0x1F)].decode("ascii", "replace")
