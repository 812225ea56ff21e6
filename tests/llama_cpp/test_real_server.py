"""A real `llama-server` with a model of random weights, attached while it serves."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtop.checks.live_checker import LiveChecker
from seqtop.live.session import Session
from seqtop.llama_cpp import poller
from seqtop.llama_cpp.client import Client
from seqtop.llama_cpp.poller import published
from seqtop.transport.connection import UnreachableError
from tests.support.waiting import SECONDS, wait_until

gguf = pytest.importorskip("gguf", reason="gguf is not installed; see docs/llama-cpp.md")

pytestmark = [
    pytest.mark.release(
        "needs llama-server, which no package of Python's index installs by itself"
    ),
    pytest.mark.skipif(shutil.which("llama-server") is None, reason="llama-server is not on PATH"),
]
ASCII = [[token, False] for token in (0, 1, 2, *range(3, 35), *range(130, 259))]
"""A bias that leaves the tokens of printable ASCII: others make no valid text."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.llama_cpp.make_model import write_model

    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(model)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = f"llama-server --port {port} -np 2 -c 4096 -b 64 -ub 64 -t 1 --metrics -m".split()
    process = subprocess.Popen([*command, str(model)], stderr=subprocess.DEVNULL)
    client = Client(f"http://127.0.0.1:{port}")

    def answers() -> bool:
        assert process.poll() is None
        try:
            return bool(client.slots())
        except UnreachableError:
            return False

    try:
        wait_until(answers)
        yield client.url
    finally:
        process.terminate()
        process.wait(SECONDS)


def complete(url: str, prompt: str, num_tokens: int, results: list[tuple[int, int]]) -> None:
    body = {"prompt": prompt, "n_predict": num_tokens, "ignore_eos": True, "logit_bias": ASCII}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        answer = json.load(response)
        results.append((answer["tokens_evaluated"], answer["tokens_predicted"]))


def test_requests_are_seen_to_wait_run_and_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "POLL_SECONDS", 0.002)
    results: list[tuple[int, int]] = []
    most_waiting = 0
    with published(url) as endpoint:
        session = Session(endpoint)
        checker = LiveChecker(session)
        with checker.running(), session:
            session.await_engine(SECONDS)
            threads = [
                threading.Thread(target=complete, args=(url, "abc " * 200, 400, results))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()

            def is_done() -> bool:
                nonlocal most_waiting
                with session.lock:
                    stats = session.state.stats
                most_waiting = max(most_waiting, stats.num_waiting if stats else 0)
                return len(session.state.finished) == len(threads)

            wait_until(is_done)
            for thread in threads:
                thread.join()
            state = session.state
        checker.end()
    (num_prompt_tokens, num_output_tokens), *_ = results
    assert results == [(num_prompt_tokens, 400)] * 4
    assert checker.findings() == []
    assert state.num_anomalies == 0
    assert most_waiting >= 2  # and those in slots that had not begun
    for request_id in state.finished:
        (seq_id,) = state.requests[request_id].seq_ids
        sequence = state.sequences[seq_id]
        assert sequence.num_prompt_tokens == num_prompt_tokens
        assert 0 < len(sequence.output_token_ids) <= num_output_tokens
    assert any(state.sequences[seq_id].num_cached_tokens for seq_id in state.sequences)


def test_it_is_what_the_recorded_answers_are_of(url: str) -> None:
    recorded = Path(__file__).parent / "data" / "answers.jsonl"
    _, _, (slot, _) = json.loads(recorded.read_text().splitlines()[2])
    with urllib.request.urlopen(f"{url}/slots", timeout=SECONDS) as response:
        present = json.load(response)[0]
    assert {*slot} <= {*present}
