"""Workloads in the Mooncake format, exported from a recording and run by the bundled engine."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine_stub.entrypoints.load import LoadSource
from seqtop.whatif.traces import Trace, TraceRequest

ENGINE = [sys.executable, "-m", "engine_stub", "serve", "--device", "cpu", "--threads", "1"]


class Server:
    """Keeps what the load adds."""

    def __init__(self) -> None:
        self.added: list[tuple[str, int, float]] = []

    def add(self, name: str, prompt: list[int], *_: object, arrival_time: float) -> None:
        self.added.append((name, len(prompt), arrival_time))


def test_a_request_follows_the_end_of_the_one_before_of_its_session() -> None:
    now = 100.0
    turn: dict[str, Any] = {"session_id": "a", "output_length": 2, "request_id": "a"}
    trace = Trace(
        format="",
        requests=[
            TraceRequest(arrival=0.0, input_length=4, **turn),
            TraceRequest(arrival=1.0, input_length=7, output_length=1),
            TraceRequest(delay=3.0, input_length=9, **turn),
        ],
    )
    source = LoadSource(trace, vocab_size=9, block_size=16, clock=lambda: now)
    server: Any = Server()
    source.serve(server)
    assert server.added == [("a", 4, 100.0)]
    now = 101.5
    source.serve(server)
    assert server.added[1:] == [("request-2", 7, 101.0)]
    now = 110.0
    ended = SimpleNamespace(request_id="a")
    record: Any = SimpleNamespace(finished=[], ignored=[], aborted=[ended])
    source.stepped(record)
    source.serve(server)
    assert len(server.added) == 2
    now = 113.0
    source.serve(server)
    assert server.added[2:] == [("a-3", 9, 113.0)]


def test_a_wrong_file_is_an_error_of_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ENGINE, "--load", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == f"engine-stub: --load {tmp_path}/none cannot be read: No such file or directory\n"
    )
