"""Loading of snapshots: the objects that states share, the garbage collector."""

import gc

import pytest

from seqtop.state import snapshot
from seqtop.wire import codec
from seqtop.wire.errors import WireError
from tests.support.recording import encoded, fed

SCRIPT = encoded(2, 120)


def test_only_equal_finished_requests_are_shared() -> None:
    old, new = fed(SCRIPT), fed(SCRIPT)
    same, other = new.finished[0], new.finished[1]
    new.sequences[new.requests[other].seq_ids[0]].text += "!"
    snapshot.share_finished(new, old)
    assert new.requests[same] is old.requests[same]
    assert new.requests[other] is not old.requests[other]
    waiting = next(name for name in new.requests if name not in new.finished)
    assert new.requests[waiting] is not old.requests[waiting]


def test_the_garbage_collector_is_on_again_after_loading() -> None:
    assert gc.isenabled()
    snapshot.load(codec.encode(fed(SCRIPT)), max_finished=1)
    assert gc.isenabled()
    with pytest.raises(WireError):
        snapshot.load(b"\x81", max_finished=1)
    assert gc.isenabled()
