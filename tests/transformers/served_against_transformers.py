"""transformers serves every request, whatever becomes of the adapter, and viewers see the ends.

Run by `make test-transformers`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from stepping import make_manager, make_model
from transformers.generation.continuous_batching import continuous_api
from transformers.generation.continuous_batching.cache import PagedAttentionCache

from seqtop.adapters.transformers import attach
from seqtop.adapters.transformers.processor_observer import ProcessorObserver
from seqtop.live.session import Session
from seqtop.state.listener import StateChange
from seqtop.transport.connection import ConnectionState
from seqtop.wire import parsing
from seqtop.wire.messages import EngineStopped
from tests.support.waiting import SECONDS

NUM_REQUESTS = 8
OBSERVERS = sorted(
    name for name in vars(ProcessorObserver) if name.startswith(("_before_", "_after_"))
)
HERE = Path(__file__).resolve().parent


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with TemporaryDirectory(prefix="sq") as directory:
        monkeypatch.setenv("SEQTOP_BIND", f"ipc://{directory}/e")
        yield f"ipc://{directory}/e"


def prompt(number: int) -> list[int]:
    return [*range(1, 1 + 16 * (number % 4)), *[100 + number] * (5 + 7 * number)]


def ask(manager: Any, prefix: str = "r") -> None:
    for number in range(NUM_REQUESTS):
        manager.add_request(prompt(number), request_id=f"{prefix}-{number}", max_new_tokens=24)


def answers(manager: Any) -> dict[str, list[int]]:
    """The tokens of each request, by id, of which each has ended without an error."""
    outputs: dict[str, list[int]] = {}
    while len(outputs) < NUM_REQUESTS * manager.num_return_sequences:
        output = manager.get_result(timeout=SECONDS)
        assert output is not None, "a request has no answer"
        assert output.error is None
        outputs[output.request_id] = output.generated_tokens
    return outputs


def new_manager(**options: Any) -> Any:
    return make_manager(make_model(), num_blocks=14, **options)


def serve(manager: Any) -> dict[str, list[int]]:
    """The answers to all requests, of a manager that is stopped afterwards."""
    manager.start()
    ask(manager)
    outputs = answers(manager)
    manager.stop(block=True)
    return outputs


def shown(session: Session, prefix: str = "r") -> dict[str, list[int]]:
    state = session.state
    return {
        name: list(state.sequences[request.seq_ids[0]].output_token_ids)
        for name, request in state.requests.items()
        if request.finish_reason == "length" and name.startswith(prefix)
    }


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    return serve(new_manager())


def test_viewer_sees_what_users_get_in_each_run_of_a_manager(endpoint: str) -> None:
    manager = new_manager()
    attach(manager)
    attach(manager)  # has no effect
    for prefix in "r", "again":
        manager.start()
        with Session(endpoint) as session:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            ask(manager, prefix)
            outputs = answers(manager)
            manager.stop(block=True, keep_for_next_session=True)
            assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
            assert shown(session, prefix) == outputs
            assert session.state.stopped == "the manager was stopped"


def test_a_manager_that_runs_already_is_followed_from_its_next_step_on(endpoint: str) -> None:
    manager = new_manager()
    manager.start()
    ask(manager)
    manager.get_result(timeout=SECONDS)
    attach(manager)
    with Session(endpoint) as session:
        ask(manager, "later")
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for _ in range(2 * NUM_REQUESTS - 1):
            assert manager.get_result(timeout=SECONDS).error is None
        manager.stop(block=True)
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert shown(session, "later").keys() == {f"later-{n}" for n in range(NUM_REQUESTS)}


@pytest.mark.parametrize("call", [0, 3])
@pytest.mark.parametrize("name", OBSERVERS)
def test_an_error_in_any_observation_costs_no_request(
    name: str,
    call: int,
    endpoint: str,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    original, calls = getattr(ProcessorObserver, name), iter(range(call))

    def observe(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise RuntimeError("injected")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ProcessorObserver, name, observe)
    manager = new_manager(samples=1)
    attach(manager)
    assert serve(manager) == expected
    lines = [record.getMessage() for record in caplog.records if "seqtop" in record.getMessage()]
    was_called = next(calls, None) is None and bool(lines)
    # No fork, no cancellation and no error happens here, and the safety margin may always be met.
    if name not in ("_after_fork", "_after_error", "_before_examine"):
        assert was_called or call
    assert len(lines) <= 1
    assert all("seqtop is off, and transformers continues" in line for line in lines)


def publisher_of(endpoint: str) -> int:
    """The process id of the publisher at an endpoint."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        arguments = path.read_bytes().decode(errors="replace").split("\0")
        if "seqtop.adapters.publisher_main" in arguments and endpoint in arguments:
            return int(path.parent.name)
    raise AssertionError("it has no process")


def test_a_killed_publisher_costs_no_request(endpoint: str, expected: dict[str, list[int]]) -> None:
    manager = new_manager()
    attach(manager)
    manager.start()
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        os.kill(publisher_of(endpoint), signal.SIGKILL)
        ask(manager)
        assert answers(manager) == expected
    manager.stop(block=True)


def test_an_engine_that_fails_says_why(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = new_manager()
    attach(manager)
    manager.start()
    ends: list[bool] = []

    def note(change: StateChange) -> None:
        event = parsing.event(change.payload) if change.event is not None else None
        if isinstance(event, EngineStopped):
            ends.append(event.failed)

    session = Session(endpoint)
    session.add_listener(note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)

        def fail(*_: Any) -> None:
            raise ValueError("the device is gone")

        monkeypatch.setattr(continuous_api.ContinuousBatchProcessor, "_generation_step", fail)
        ask(manager)
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        state = session.state
        assert state.stopped == "the generation loop failed: the device is gone"
        assert ends == [True]
        assert {request.finish_reason for request in state.requests.values()} == {"abort"}
    manager.stop(block=True)


def test_a_processor_that_differs_too_much_is_named_in_one_line(
    endpoint: str,
    expected: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from seqtop.adapters.transformers import probe

    monkeypatch.setattr(probe, "_REQUIRED", (*probe._REQUIRED, "scheduler.newer_name"))
    manager = new_manager()
    attach(manager)
    assert serve(manager) == expected
    (line,) = [record.getMessage() for record in caplog.records if "seqtop" in record.getMessage()]
    assert line.endswith("as its ContinuousBatchProcessor has no scheduler.newer_name")


def test_without_an_endpoint_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEQTOP_BIND", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    manager = new_manager()
    attach(manager)
    assert "_create_batch_processor" not in vars(manager)


def test_requests_end_as_clients_see_it_if_a_step_fails_halfway(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, calls = PagedAttentionCache.mark_complete_blocks, iter(range(40))

    def fail(*args: Any) -> None:
        if next(calls, None) is None:
            raise KeyError("its table is gone")
        mark(*args)

    monkeypatch.setattr(PagedAttentionCache, "mark_complete_blocks", fail)
    manager = new_manager()
    attach(manager)
    manager.start()
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        ask(manager)
        told: dict[str, tuple[bool, list[int]]] = {}
        while len(told) < NUM_REQUESTS:
            output = manager.get_result(timeout=SECONDS)
            assert output is not None, told
            told[output.request_id] = output.error is not None, output.generated_tokens
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        state = session.state
        seen = {
            name: (
                request.finish_reason == "abort",
                list(state.sequences[request.seq_ids[0]].output_token_ids),
            )
            for name, request in state.requests.items()
        }
        assert seen == told
        assert any(has_failed for has_failed, _ in told.values())
        assert state.num_anomalies == 0, state.last_anomaly
    manager.stop(block=True)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from served_against_transformers import answers, ask, new_manager
manager = new_manager()
manager.start()
sys.stdin.readline()
ask(manager)
print(len(answers(manager)), flush=True)
manager.stop(block=True)
"""


def test_a_program_runs_with_all_its_managers_followed(endpoint: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "seqtop.adapters.transformers", str(program), str(HERE)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with Session(endpoint) as session, subprocess.Popen(command, text=True, **pipes) as process:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        output, log = process.communicate("\n")
        assert process.returncode == 0, log
        assert output == f"{NUM_REQUESTS}\n"
        assert "to view this engine, run: seqtop attach" in log
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
