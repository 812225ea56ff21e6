"""A viewer of a real SGLang with all its processes, which found the plugin by itself.

Run by `make test-sglang`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from stepping import page_sizes

from seqtop.live.session import Session
from seqtop.transport import local_engines
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import rank_endpoint
from tests.support.waiting import SECONDS
from tests.support.watch import THRESHOLDS, Watch

HERE = Path(__file__).resolve().parent
STARTS_WITHIN = 120.0


@pytest.fixture(autouse=True)
def directory_of_engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other engines may run on this machine."""
    with TemporaryDirectory(prefix="sq") as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield


@contextmanager
def sglang(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """An engine that serves once a line is written to it."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "serve.py"), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            assert process.stdout is not None
            while (line := process.stdout.readline()) and line != "ready to serve\n":
                pass
            assert line, "it has not started"
            yield process
        finally:
            process.kill()


def serve(process: subprocess.Popen[str]) -> dict[str, dict[str, Any]]:
    """The end of each request, as its client received it."""
    output, _ = process.communicate("go\n")
    ended: dict[str, dict[str, Any]] = json.loads(output.strip().splitlines()[-1])
    return ended


def shown(session: Session) -> dict[str, dict[str, Any]]:
    state = session.state
    return {
        name: {
            "reason": request.finish_reason,
            "text": sequence.text,
            "prompt_tokens": request.num_prompt_tokens,
            "completion_tokens": len(sequence.output_token_ids),
            "num_retractions": request.num_preemptions,
        }
        for name, request in state.requests.items()
        for sequence in [state.sequences[request.seq_ids[0]]]
    }


@pytest.mark.parametrize("arguments", [[], ["--no-overlap", "--page-size", str(page_sizes()[-1])]])
def test_a_viewer_shows_what_clients_were_told(arguments: list[str]) -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        with sglang(*arguments, SEQTOP_BIND=endpoint) as process, Session(endpoint) as session:
            watch = Watch(THRESHOLDS)
            session.add_listener(watch.note)
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            told = serve(process)
        watch.end()
        seen = shown(session)
        assert any(end["num_retractions"] for end in told.values())
        for name, end in told.items():
            if end["reason"] == "abort":  # its client is not told of its last tokens
                assert seen[name]["reason"] == "abort"
            else:
                assert {key: seen[name][key] for key in end} == end
        assert watch.findings == []
        assert session.connection.num_missed == 0


def test_nothing_happens_unless_it_is_asked_for() -> None:
    with sglang() as process:
        assert local_engines.find() == []
        assert len(serve(process)) == 8


def test_a_dormant_engine_is_woken() -> None:
    with sglang(SEQTOP_BIND="dormant") as process:
        (engine,) = local_engines.find()
        assert engine.endpoint == ""
        with Session(local_engines.wake(engine.pid)) as session:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            told = serve(process)
        assert {*shown(session)} == {*told}


def test_redacted_means_no_text_and_no_tokens() -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        environment = {"SEQTOP_BIND": endpoint, "SEQTOP_REDACT": "1"}
        with sglang(**environment) as process, Session(endpoint) as session:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            told = serve(process)
        state = session.state
        assert {*state.requests} == {*told}
        for request in state.requests.values():
            assert not request.prompt
            assert not any(request.prompt_token_ids)
            sequence = state.sequences[request.seq_ids[0]]
            assert not sequence.text
            assert not any(sequence.output_token_ids)


def test_each_data_parallel_rank_has_an_endpoint_of_its_own() -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        # SGLang binds each rank to cores of its own, but does not have to.
        environment = {"SEQTOP_BIND": endpoint, "SGLANG_CPU_OMP_THREADS_BIND": "0|0"}
        with (
            sglang("--dp-size", "2", **environment) as process,
            Session(endpoint) as first,
            Session(rank_endpoint(endpoint, 1)) as second,
        ):
            ranks = (first, second)
            for session in ranks:
                assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            told = serve(process)
        infos = [session.state.info for session in ranks]
        assert [info.data_parallel_rank for info in infos if info is not None] == [0, 1]
        assert len({info.engine_id for info in infos if info is not None}) == 2
        served = [{*session.state.requests} for session in ranks]
        assert all(served), "both ranks have served some"
        assert served[0] | served[1] == {*told}
        assert not served[0] & served[1]
