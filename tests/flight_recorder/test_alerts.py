"""`seqtop record --flight-recorder --on`: a web server is told what a record is about."""

import subprocess
from pathlib import Path

from seqtop.history import FileStore
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineStopped
from tests.support.commands import SEQTOP
from tests.support.events import arrival, engine_info, stats, step
from tests.support.waiting import SECONDS, wait_until
from tests.support.web_server import serving


def test_a_condition_that_begins_and_ends_and_an_engine_that_fails(
    endpoint: str, tmp_path: Path
) -> None:
    with serving() as server, MessagePublisher(endpoint, engine_info(), EngineState()) as publisher:
        options = ["--flight-recorder", str(tmp_path), "--timeout", f"{SECONDS:g}"]
        conditions = ["--on", "waiting>1", "--on", "kv>99%", "--webhook", server.url]
        recorder = subprocess.Popen(
            [*SEQTOP, "record", endpoint, *options, *conditions], stderr=subprocess.PIPE, text=True
        )
        assert recorder.stderr is not None
        assert "writes to" in recorder.stderr.readline()
        publisher.publish(arrival(1))
        publisher.publish(step(0, stats=stats(num_waiting=2)))
        wait_until(lambda: len(server.received) == 1)
        publisher.publish(step(1, stats=stats(num_waiting=1)))
        wait_until(lambda: len(server.received) == 2)
        publisher.publish(EngineStopped(time=200.0, reason="a fault", failed=True))
        wait_until(lambda: len(server.received) == 3)
        recorder.terminate()
        assert recorder.wait(SECONDS) == 0
        recorder.stderr.close()
    began, ended, failed = (alert for _, alert in server.received)
    told = [(alert["cause"], alert["state"]) for alert in (began, ended, failed)]
    assert told == [("condition", "began"), ("condition", "ended"), ("failed", "began")]
    assert (began["condition"], began["step"]) == ("waiting>1", 0)
    assert began["message"] == "waiting>1 holds since step 0"
    assert (began["engine_id"], began["endpoint"]) == ("test", endpoint)
    assert began["verdict"]
    assert ended["held_seconds"] == ended["time"] - began["time"]
    assert failed["message"].startswith("a fault")
    with FileStore(failed["recording"]) as recording:
        assert recording.at(recording.last).step == 1
