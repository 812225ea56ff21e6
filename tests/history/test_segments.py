"""Segments: odd numbers from the network, states that cannot be encoded, gaps."""

import pytest

from seqtop.history import keyframe, segments
from seqtop.history.memory_store import MemoryStore
from seqtop.history.segments import Gap
from seqtop.state import EngineState
from seqtop.wire import codec
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Heartbeat
from tests.support.recordings import MAX_FINISHED, append, assert_same, encoded, fed

SHORT = encoded(2, 120)


def test_state_that_cannot_be_encoded_makes_no_keyframe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 5_000)

    def refuse(*_: object) -> None:
        raise WireError("not encodable")

    history = MemoryStore()
    history.restore("one", -1, EngineState(max_finished=MAX_FINISHED))
    monkeypatch.setattr(keyframe.KeyframeEncoder, "encode", refuse)
    append(history, SHORT, EngineState(max_finished=MAX_FINISHED))
    assert history.keyframe_before(history.last) == 0
    assert_same(history.at(history.last), fed(SHORT))


def test_figures_beyond_8_bytes_and_broken_clocks_are_survived() -> None:
    history, state = MemoryStore(), EngineState()
    for number, time in ((2**64 - 1, float("inf")), (5, 10.0), (6, float("nan")), (7, 11.0)):
        event = Heartbeat(time=time, step=0)
        state.step = 2**64 - 1
        history.append(number, codec.encode(event), event, state)
        state.time = time
    assert len(history.index) == 5
    times = [history.index[position].time for position in range(5)]
    assert times == [0.0, 0.0, 0.0, 10.0, 10.0]
    assert history.index.at_time(0.0) == 2


def test_text_of_gaps() -> None:
    assert str(Gap(1, restarted=False, num_missed=1)) == "1 message missing"
    assert str(Gap(1, restarted=False, num_missed=2_000)) == "2,000 messages missing"
    assert str(Gap(1, restarted=True, num_missed=0)) == "the engine was restarted"
