"""The tag of a message is read without decoding the message."""

import pytest

from seqtop.wire import codec
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import Abort, EngineStopped, SnapshotRequest


@pytest.mark.parametrize(
    "message", [Abort(request_id="x" * 70_000), EngineStopped(time=1.0), SnapshotRequest()]
)
def test_every_message_names_its_type(message: Abort | EngineStopped | SnapshotRequest) -> None:
    data = codec.encode(message)
    assert tag(data) == tag(memoryview(data)) == tag(data[:20]) == type(message).__name__


@pytest.mark.parametrize("data", [b"", b"\x93", b"\xc1\xa1x", b"\x81\xa1x\x01", b"\x91\xc4\x01x"])
def test_other_data_have_none(data: bytes) -> None:
    assert tag(data) == ""
