"""The knowledge of a recording on which predictions are based, before anything is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqtop.history import FileWriter
from seqtop.state import EngineState
from seqtop.whatif.predict import Question, Replays
from seqtop.whatif.settings import SettingError
from seqtop.whatif.workload import WorkloadError
from seqtop.wire import codec
from tests.support.events import arrival, engine_info, step

INFO = engine_info(engine="engine_stub 1")


def recorded(path: Path, num_before: int) -> str:
    """Records an engine that has made some steps before the recording begins."""
    state = EngineState()
    state.apply(INFO)
    for number in range(num_before):
        state.apply(step(number))
    with FileWriter(path) as writer:
        writer.restore("one", 9, state)
        events = (arrival(1), step(num_before), step(num_before + 1))
        for number, event in enumerate(events, 10):
            state.apply(event)
            writer.append(number, codec.encode(event), event, state)
    return str(path)


@pytest.mark.parametrize(("num_before", "starts_late"), [(0, False), (1, True), (2, True)])
def test_a_recording_that_begins_after_a_step_starts_late(
    tmp_path: Path, num_before: int, starts_late: bool
) -> None:
    source = recorded(tmp_path / "run.seqtop", num_before)
    replays = Replays(Question(source=source, changes=["max_num_seqs=4"]))
    proof = replays.basis.proof
    assert proof is not None
    assert (proof.starts_late, proof.is_complete) == (starts_late, False)
    assert replays.settings == {"max_num_seqs": 4}
    assert (replays.basis.num_requests, replays.basis.unfinished) == (1, ["req-1"])
    with pytest.raises(WorkloadError, match="the recording has no request 'req-2'"):
        Replays(Question(source=source, without=["req-1", "req-2"]))
    with pytest.raises(SettingError, match="--scale-arrivals is for arrivals by time"):
        Replays(Question(source=source, arrivals="step", scale_arrivals=2.0))
