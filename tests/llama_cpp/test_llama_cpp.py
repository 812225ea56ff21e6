"""Slots of llama.cpp's server as an engine, by answers of a real one and by broken ones."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.cli.main import main
from seqtop.live.session import Session
from seqtop.llama_cpp import poller
from seqtop.llama_cpp.adapter import LlamaAdapter
from seqtop.llama_cpp.client import MAX_ANSWER_BYTES, Client, Props, Slot
from seqtop.llama_cpp.poller import published
from seqtop.publish.comparison import Comparison
from seqtop.publish.publisher import _engine_info
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.transport.connection import ConnectionState, UnreachableError
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from seqtop.wire.redaction import redact
from tests.support.commands import SEQTOP, assert_one_sentence
from tests.support.commands import run as run_command
from tests.support.waiting import SECONDS, wait_until

PROPS, *POLLS = map(
    json.loads, (Path(__file__).parent / "data" / "answers.jsonl").read_text().splitlines()
)
"""Answers of `llama-server` (7e4c0a9) with two slots of 2,048 tokens and batches of 64, which five
requests shared: chunked prompts, a prompt of which 1,984 tokens were found, three that waited."""


def slots_of(answer: Any) -> list[Slot]:
    return msgspec.convert(answer, list[Slot])


class Polled:
    """The state and the findings of a viewer, poll by poll."""

    def __init__(self, slots: Any, time: float) -> None:
        self.adapter = LlamaAdapter(msgspec.convert(PROPS, Props), slots_of(slots), 0, time)
        description = self.adapter.describe_engine()
        self.comparison = Comparison(self.adapter, description)
        self.state, self.checker = EngineState(), Checker()
        self.findings: list[Finding] = []
        settings = PublisherSettings(bind="ipc://x", redact=True)
        info = _engine_info(self.adapter, description, settings, time)
        self.state.apply(info)
        self.findings += self.checker.apply(info)
        self.see(self.comparison.after_step(time, time))

    def see(self, events: Iterable[Event]) -> None:
        for event in events:
            payload = codec.encode(redact(event))
            self.state.apply(parsing.event(payload))
            self.findings += self.checker.apply(parsing.event(payload))

    def poll(self, slots: Any, num_deferred: int, time: float) -> None:
        if self.adapter.is_news(slots_of(slots), num_deferred):
            before = self.adapter.time
            self.see(self.comparison.between_steps(before))
            self.adapter.take(slots_of(slots), num_deferred, time)
            self.see(self.comparison.after_step(before, time))


def test_every_poll_is_shown() -> None:
    (first_time, _, first), *_ = POLLS
    polled = Polled(first, first_time)
    state = polled.state
    ids: set[str] = set()
    for time, num_deferred, answer in POLLS:
        slots = slots_of(answer)
        polled.poll(answer, num_deferred, time)
        shown = {
            f"task-{slot.id_task}": slot for slot in slots if slot.is_processing and slot.id_task
        }
        ids |= shown.keys()
        unfinished = {*state.requests} - {*state.finished}
        assert unfinished == shown.keys()
        for request_id, slot in shown.items():
            (seq_id,) = state.requests[request_id].seq_ids
            assert_shows(state, seq_id, slot)
        assert state.stats is not None
        waiting = [s for s in state.sequences.values() if s.status is SequenceStatus.WAITING]
        assert state.stats.num_waiting == num_deferred + len(waiting)
    assert polled.findings == []
    assert state.num_anomalies == 0, state.last_anomaly
    assert len(ids) == 4
    assert {*state.finished} == ids


def assert_shows(state: EngineState, seq_id: int, slot: Slot) -> None:
    sequence = state.sequences[seq_id]
    processed, cached = slot.n_prompt_tokens_processed, slot.n_prompt_tokens_cache
    assert sequence.num_cached_tokens == (cached if processed + slot.num_decoded else 0)
    assert len(sequence.output_token_ids) == slot.num_decoded
    if not processed + cached + slot.num_decoded:
        assert sequence.status is SequenceStatus.WAITING
        return
    assert sequence.num_prompt_tokens == processed + cached
    assert sequence.num_computed_tokens == processed + cached + max(slot.num_decoded - 1, 0)
    assert sequence.status is SequenceStatus.RUNNING
    assert sequence.block_table == [slot.id]


Answer = tuple[int, bytes]


class Server:
    """An HTTP server with the recorded answers, of which a test may replace some."""

    def __init__(self) -> None:
        self.poll = 0
        self.answers: dict[str, Answer] = {}
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.headers = dict(self.headers)
                status, content = outer.answers.get(self.path) or outer.recorded(self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def recorded(self, path: str) -> Answer:
        _, num_deferred, slots = POLLS[self.poll]
        metrics = f"# TYPE x gauge\nllamacpp:requests_deferred {num_deferred}\n".encode()
        content = {"/props": json.dumps(PROPS).encode(), "/slots": json.dumps(slots).encode()}
        return 200, content.get(path, metrics)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def test_a_server_is_attached_until_it_ends(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(poller, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    with published(server.url) as endpoint, Session(endpoint) as session:
        session.await_engine(SECONDS)
        assert session.state.info.engine_id == server.url
        assert session.state.info.redacted
        assert session.state.info.max_num_batched_tokens is None  # no answer tells it
        assert server.headers["Authorization"] == "Bearer secret"
        server.poll = 10
        wait_until(lambda: session.state.stats and session.state.stats.num_waiting == 3)
        assert sorted(session.state.requests) == ["task-2", "task-4"]
        server.answers["/slots"] = 500, b""
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert "/slots answered with status 500" in session.connection.detail


def test_commands_take_an_address(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.poll = 60
    assert main(["show", server.url]) == 0
    assert re.search(r"task-24 +running +\d+ ", capsys.readouterr().out)
    path = str(tmp_path / "run.seqtop")
    assert main(["record", server.url, "-o", path, "--duration", "0.3"]) == 0
    assert main(["show", path]) == 0
    assert "task-24" in capsys.readouterr().out
    assert_one_sentence(run_command(*SEQTOP, "attach", "--ranks", "2", server.url), 2, "no ranks")


def _slot(number: int, num_tokens: int) -> dict[str, Any]:
    processed = {"n_prompt_tokens_processed": num_tokens}
    return {"id": number, "n_ctx": 64, "is_processing": True, "id_task": number, **processed}


BROKEN: dict[str, tuple[str, Answer, str]] = {
    "no metrics": ("/metrics", (501, b"{}"), "/metrics is not enabled: start llama-server with --"),
    "no slots": ("/slots", (501, b"{}"), "/slots is not enabled: start llama-server with --slots"),
    "a key": ("/metrics", (401, b""), "/metrics wants an API key: set LLAMA_API_KEY"),
    "loading": ("/metrics", (503, b""), "the server is still loading its model"),
    "another server": ("/slots", (200, b"<html>"), "does not answer as llama.cpp's server: JSON"),
    "a wrong field": (
        "/slots",
        (200, b'[{"id": 0, "n_ctx": "many", "is_processing": false}]'),
        "Expected `int`, got `str` - at `$[0].n_ctx`",
    ),
    "a huge number": (
        "/slots",
        (200, b'[{"id": 0, "n_ctx": 1e18, "is_processing": true}]'),
        "/slots does not answer as llama.cpp's server",
    ),
    "many tokens": (
        "/slots",
        (200, json.dumps([_slot(number, 2**21) for number in range(3)]).encode()),
        "/slots has 3 slots with 6,291,456 tokens, of 4,096 and 4,194,304 that are shown",
    ),
    "many slots": (
        "/slots",
        (200, json.dumps([_slot(number, 1) for number in range(5_000)]).encode()),
        "/slots has 5,000 slots",
    ),
    "other metrics": ("/metrics", (200, b"up 1"), "does not have llamacpp:requests_deferred"),
    "no slot": ("/props", (200, b'{"total_slots": 0}'), "total_slots"),
    "too much": ("/slots", (200, b" " * (MAX_ANSWER_BYTES + 1)), "sent more than 16,777,216 bytes"),
    "deep": ("/slots", (200, b"[" * 100_000), "/slots does not answer as llama.cpp's server"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_named(
    server: Server, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, answer, sentence = BROKEN[name]
    server.answers[path] = answer
    assert main(["show", server.url]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", ["http://", "http://[", "http://x:99999", "ftp://x"])
def test_a_malformed_address_is_refused(url: str) -> None:
    with pytest.raises(UnreachableError, match="is not an address"):
        Client(url)


def test_an_older_version_says_less() -> None:
    """Without the numbers of the prompt, a request is shown with its output."""
    slot = {"id": 0, "n_ctx": 64, "is_processing": True, "id_task": 7}
    polled = Polled([slot], 0.0)
    for n_decoded in (0, 3, 9):
        polled.poll([{**slot, "next_token": {"n_decoded": n_decoded}}], 0, n_decoded + 1.0)
    (sequence,) = polled.state.sequences.values()
    assert len(sequence.output_token_ids) == 9
    assert polled.state.num_anomalies == 0


def test_a_prompt_that_was_not_seen_whole_has_no_known_size() -> None:
    slot = {"id": 0, "n_ctx": 2048, "is_processing": True, "id_task": 7}
    polled = Polled([slot], 0.0)
    prompt = FIELDS["prompt"].value

    def size() -> Any:
        (sequence,) = polled.state.sequences.values()
        return prompt(polled.state.requests["task-7"], sequence, 0.0)

    polled.poll([{**slot, "n_prompt_tokens_processed": 66}], 0, 1.0)
    (sequence,) = polled.state.sequences.values()
    assert (sequence.num_computed_tokens, size()) == (66, None)
    polled.poll([{**slot, "is_processing": False}], 0, 2.0)  # its other tokens came unseen
    assert sequence.status is SequenceStatus.FINISHED_STOPPED
    assert size() is None
    polled = Polled([slot], 0.0)
    polled.poll([{**slot, "n_prompt_tokens_processed": 66}], 0, 1.0)
    whole = {"n_prompt_tokens_processed": 240, "next_token": {"n_decoded": 1}}
    polled.poll([{**slot, **whole}], 0, 2.0)
    assert size() == 240
    assert polled.findings == []
