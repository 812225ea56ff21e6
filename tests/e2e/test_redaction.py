"""Nothing of prompts and outputs leaves a redacted engine, byte by byte."""

import contextlib
import re
import struct
from pathlib import Path

import msgspec
import pytest
import zmq
import zstandard

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher, engine_info
from seqtop.checks import Checker
from seqtop.history import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.recorder import Recorder
from seqtop.sequence import (
    ExecuteModelRequest,
    GuidedDecodingParams,
    Logprob,
    PoolingParams,
    RequestMetrics,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.state import redaction as state_
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.redaction import redacted
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import Publisher
from seqtop.wire import codec
from seqtop.wire import redaction as wire
from seqtop.wire.messages import (
    Decodes,
    Event,
    InFlight,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    SnapshotRequest,
    Step,
    StepStats,
)
from seqtop.wire.redaction import redact
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until

SECRET = "xylophone"
ID = 0x5EC2E7_11
"""A token id whose bytes are found nowhere else."""


def traces(data: bytes, words: list[bytes], ids: list[int]) -> list[bytes]:
    """Which of `words`, or of the bytes of `ids` in either order, are in `data`."""
    forms = [struct.pack(order, number) for number in ids for order in ("<i", ">i")]
    return [each for each in (*words, *forms) if each in data]


def params() -> SamplingParams:
    made = SamplingParams(
        stop=[SECRET],
        stop_token_ids=[ID],
        guided_decoding=GuidedDecodingParams(choice=[SECRET]),
        logit_bias={ID: 1.0},
        allowed_token_ids=[ID],
        extra_args={"note": SECRET},
        bad_words=[SECRET],
        logits_processors=[SECRET],
        temperature=0.5,
        logprobs=2,
        max_tokens=7,
        seed=3,
    )
    made._bad_words_token_ids = [[ID]]
    return made


def update() -> SequenceUpdate:
    return SequenceUpdate(
        seq_id=1,
        status=SequenceStatus.RUNNING,
        num_computed_tokens=3,
        num_cached_tokens=1,
        new_token_ids=[ID, ID],
        new_logprobs=[-0.5, -0.25],
        text_delta=SECRET,
        new_blocks=[4],
        stop_reason=SECRET,
        top_logprobs=[{ID: Logprob(-0.5, 1, SECRET)}],
    )


def arrived() -> RequestArrived:
    return RequestArrived(
        request_id="r",
        arrival_time=1.0,
        seq_ids=[1],
        num_prompt_tokens=2,
        prompt=SECRET,
        prompt_token_ids=[ID, ID],
        sampling_params=params(),
        pooling_params=PoolingParams(additional_data=SECRET),
        metrics=METRICS,
    )


METRICS = RequestMetrics(1.0, 1.0, None, None, None)
STATS = StepStats(
    num_running=1,
    num_waiting=0,
    num_used_blocks=1,
    num_free_blocks=1,
    num_cached_blocks=0,
    num_prefill_tokens=2,
    num_decode_tokens=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    num_preemptions=0,
    scheduler_time=0.0,
    model_forward_time=0.0,
    model_execute_time=0.0,
)


def step() -> Step:
    full = SequenceGroupMetadata(
        request_id="r",
        is_prompt=True,
        seq_data={1: SequenceData.from_seqs([ID, ID], [ID])},
        sampling_params=params(),
        block_tables={1: [4]},
        pooling_params=PoolingParams(additional_data=SECRET),
        token_type_ids=[ID],
        encoder_seq_data=SequenceData.from_seqs([ID]),
    )
    delta = SequenceGroupMetadataDelta(
        seq_data_delta={1: SequenceDataDelta([ID], -0.5, 3, SequenceStage.DECODE)},
        request_id="r",
        block_tables={},
        is_prompt=False,
    )
    return Step(
        step=1,
        start_time=1.0,
        time=2.0,
        execute=ExecuteModelRequest([full, delta]),
        sequences=[update()],
        stats=STATS,
    )


EVENTS = [
    arrived(),
    step(),
    RequestFinished(
        request_id="r",
        time=3.0,
        status=SequenceStatus.FINISHED_STOPPED,
        metrics=METRICS,
        text_lengths=[9],
    ),
    InFlight(time=1.0, step=1, stats=STATS, requests=[arrived()], sequences=[update()]),
    msgspec.structs.replace(
        step(),
        execute=ExecuteModelRequest([]),
        sequences=[],
        decodes=Decodes(
            seq_ids=[1, 2],
            new_token_ids=[ID, ID],
            text_deltas=[SECRET, ""],
            new_logprobs=[-0.5, -0.5],
            new_blocks={1: 5},
        ),
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_no_event_says_a_word(event: Event | InFlight) -> None:
    before = codec.encode(event)
    after = codec.encode(redact(event))
    assert not traces(after, [SECRET.encode()], [ID])
    if not isinstance(event, RequestFinished):
        assert len(traces(before, [SECRET.encode()], [ID])) > 1
    assert codec.encode(event) == before  # the engine's own objects are as they were


def test_numbers_are_those_of_the_unredacted() -> None:
    open_, closed = EngineState(), EngineState()
    for event in EVENTS[:2]:
        open_.apply(codec.decode(codec.encode(event), type(event)))
        closed.apply(redact(event))
    assert closed.sequences[1].num_tokens == open_.sequences[1].num_tokens > 0
    assert closed.sequences[1].num_computed_tokens == open_.sequences[1].num_computed_tokens
    assert closed.sequences[1].block_table == open_.sequences[1].block_table == [4, 4]
    assert closed.requests["r"].sampling_params == SamplingParams(
        temperature=0.5, logprobs=2, max_tokens=7, seed=3
    )
    # And a viewer that redacts for itself knows what one of a redacted engine knows.
    again = redacted(open_)
    assert not traces(codec.encode(again), [SECRET.encode()], [ID])
    assert again.sequences == closed.sequences


def test_what_is_blank_is_this_and_nothing_else() -> None:
    """Whoever adds a field to one of these has to say here, or in the list, what it is."""

    def blank(kind: type[msgspec.Struct], kept: str) -> str:
        return " ".join(name for name in kind.__struct_fields__ if name not in kept.split())

    said = "prompt prompt_token_ids sampling_params pooling_params"  # of these, parts are kept
    assert blank(RequestArrived, wire._ARRIVED) == blank(RequestState, state_._REQUEST) == said
    assert blank(SequenceUpdate, wire._UPDATE) == (
        "new_token_ids new_logprobs text_delta stop_reason top_logprobs"
    )
    assert blank(RequestFinished, wire._FINISHED) == "text_lengths"
    assert blank(SequenceState, state_._SEQUENCE) == (
        "output_token_ids output_logprobs top_logprobs cumulative_logprob text last_delta_length"
        " stop_reason text_lengths"
    )


def test_what_is_new_is_blank_until_somebody_says_otherwise() -> None:
    class Newer(SequenceUpdate, tag="Newer"):
        reasoning: str = ""

    newer = Newer(seq_id=1, status=SequenceStatus.RUNNING, num_computed_tokens=0, reasoning=SECRET)
    event = msgspec.structs.replace(step(), sequences=[newer])
    assert SECRET.encode() not in codec.encode(redact(event))


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
        Publisher(endpoint, info, EngineState(), repairs=True) as publisher,
        Session(endpoint, redact=not redacts_itself) as session,
    ):
        live.subscribe(b"")
        live.connect(endpoint)
        assert live.poll(MILLISECONDS)  # greeted
        session.await_engine(SECONDS)
        recorder = Recorder(FileWriter(file))
        session.listen(recorder)
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
                publisher.publish(
                    steps.in_flight(engine.clock(), engine.block_manager.get_block_table)
                )
        wait_until(lambda: len(session.state.finished) == len(PROMPTS))
        session.unlisten(recorder)
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
        b"".join(struct.pack("<q", each) for each in group.prompt_token_ids[:2]) for group in groups
    ]
    assert len(words) > 5
    assert len(runs) > 20
    recorded = whole(file)
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


def whole(file: Path) -> bytes:
    """A recording as it lies on the disk, and all that its frames unpack to."""
    data = file.read_bytes()
    unpacked, at = bytearray(), 0
    while (at := data.find(zstandard.FRAME_HEADER, at)) >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # no frame begins there
            unpacked += zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at += 4
    return data + bytes(unpacked)
