"""Nothing of prompts and outputs leaves a redacted engine, byte by byte."""

import re
import struct
from pathlib import Path

import msgspec
import pytest
import zmq

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.checks.checker import Checker
from seqtop.history import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.recorder import Recorder
from seqtop.live.session import Session
from seqtop.sequence import (
    SamplingParams,
)
from seqtop.state import EngineState
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.messages import (
    SnapshotRequest,
)
from tests.support.recordings import traces, unpacked
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until

PROMPTS = ("The quixotic xylophone", "Zanzibar hums a hymn of zinc")


@pytest.fixture
def engine() -> LLMEngine:
    return LLMEngine(EngineConfig(device="cpu", num_gpu_blocks=24, max_num_seqs=4))


@pytest.mark.parametrize("redacts_itself", [True, False], ids=["engine", "recorder"])
def test_neither_stream_nor_snapshot_nor_recording_says_a_word(
    endpoint: str, engine: LLMEngine, tmp_path: Path, redacts_itself: bool
) -> None:
    """Of a real run: no longer word of any prompt or output, no run of token ids."""
    info = engine_info(engine, engine_id="test", control=False, redacted=redacts_itself)
    file = tmp_path / "run.seqtop"
    stream = bytearray()
    checker = Checker()
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as live,
        context.socket(zmq.DEALER) as questions,
        MessagePublisher(endpoint, info, EngineState(), repairs=True) as publisher,
        Session(endpoint, redact=not redacts_itself) as session,
    ):
        live.subscribe(b"")
        live.connect(endpoint)
        assert live.poll(MILLISECONDS)  # greeted
        session.await_engine(SECONDS)
        recorder = Recorder(FileWriter(file))
        session.add_listener(recorder.record)
        steps = StepPublisher(publisher)
        groups = []
        for number, prompt in enumerate(PROMPTS):
            asked = SamplingParams(
                max_tokens=40, temperature=0.0, ignore_eos=True, logprobs=2, stop=["zyx"]
            )
            for group in engine.add_request(f"r{number}", prompt, asked):
                groups.append(group)
                steps.arrived(group)
        while engine.has_unfinished_requests():
            record = engine.step()
            steps.stepped(record)
            if record.step == 20:
                questions.connect(snapshot_endpoint(endpoint))
                questions.send(codec.encode(SnapshotRequest()))
                assert questions.poll(MILLISECONDS)
                stream += b"".join(questions.recv_multipart())
                publisher.publish(steps.snapshot(engine))
        wait_until(lambda: len(session.state.finished) == len(PROMPTS))
        session.remove_listener(recorder.record)
        recorder.close()
        while live.poll(0):
            parts = live.recv_multipart()
            stream += b"".join(parts)
        state = session.state

    words = [
        word.encode()
        for group in groups
        for word in re.findall(r"\w{6,}", f"{group.prompt} {group.first_seq.output_text}")
    ]
    runs = [
        msgspec.msgpack.encode(list(ids[at : at + 2]))[1:]
        for group in groups
        for ids in (group.prompt_token_ids, group.first_seq.get_output_token_ids())
        for at in range(len(ids) - 1)
        if min(ids[at : at + 2]) > 255  # of three bytes each
    ]
    runs += [
        b"".join(
            struct.pack("<q", prompt_token_id) for prompt_token_id in group.prompt_token_ids[:2]
        )
        for group in groups
    ]
    assert len(words) > 5
    assert len(runs) > 20
    recorded = unpacked(file)
    assert len(recorded) > 5_000
    assert not traces(recorded, [*words, *runs, b"zyx"], [])
    assert bool(traces(bytes(stream), [*words, *runs, b"zyx"], [])) is not redacts_itself

    assert state.info is not None
    assert state.info.redacted
    for group in groups:
        sequence = state.sequences[group.first_seq.seq_id]
        assert sequence.num_prompt_tokens == group.first_seq.get_prompt_len()
        assert len(sequence.output_token_ids) == group.first_seq.get_output_len()
        assert sequence.text == ""
        assert state.requests[group.request_id].prompt is None
    with FileStore(file) as recording:
        for _, event in recording.events(recording.first, recording.last):
            if event is not None:
                assert not checker.apply(event), "redaction must not look like a fault"
