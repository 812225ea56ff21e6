"""Redacted messages and states contain no text and no tokens, byte by byte."""

from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from seqtop.sequence import (
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
from seqtop.sequence.privacy import Privacy
from seqtop.state import EngineState, snapshot
from seqtop.wire import codec
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Event,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StreamingUpdate,
)
from seqtop.wire.redaction import privacy_of, redact
from seqtop.wire.snapshot import (
    RequestHistory,
    RequestSnapshot,
    SequenceHistory,
    SequenceSnapshot,
    Snapshot,
    SnapshotPart,
    Span,
)
from tests.support import events
from tests.support.events import engine_info
from tests.support.recordings import traces

SECRET = "xylophone"
ID = 0x5EC2E7_11
"""A token id whose bytes are found nowhere else."""


def params() -> SamplingParams:
    made = SamplingParams(
        stop=[SECRET],
        stop_token_ids=[ID],
        guided_decoding=GuidedDecodingParams(choice=[SECRET]),
        logit_bias={ID: 1.0},
        allowed_token_ids=[ID],
        extra_args={"note": SECRET, "beam_width": 3},
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
        prompt_token_ids=Ints.of([ID, ID]),
        sampling_params=params(),
        pooling_params=PoolingParams(additional_data=SECRET),
        metrics=METRICS,
    )


def request() -> RequestSnapshot:
    """A request in a snapshot, with its past."""
    sequence = SequenceSnapshot(
        update=update(),
        output_token_ids=Ints.of([ID, ID]),
        output_logprobs=Floats.of([-0.5, -0.25]),
        text=SECRET,
        top_logprobs={0: {ID: Logprob(-0.5, 1, SECRET)}},
        history=SequenceHistory(
            cumulative_logprob=-0.75,
            last_delta_length=9,
            text_lengths=Ints("b").plus([-1, 9]),
        ),
    )
    history = RequestHistory(spans=[Span("queued", 1.0, None)])
    return RequestSnapshot(arrival=arrived(), sequences=[sequence], history=history)


METRICS = RequestMetrics(1.0, 1.0, None, None, None)
STATS = events.stats(
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
    return events.step(1, full, delta, start_time=1.0, time=2.0, sequences=[update()], stats=STATS)


EVENTS: list[Event | Snapshot | SnapshotPart] = [
    arrived(),
    step(),
    StreamingUpdate(
        request_id="r",
        time=2.0,
        num_computed_tokens=3,
        num_prompt_tokens=4,
        prompt=SECRET,
        prompt_token_ids=Ints.of([ID, ID]),
    ),
    RequestFinished(
        request_id="r",
        time=3.0,
        status=SequenceStatus.FINISHED_STOPPED,
        metrics=METRICS,
        text_lengths=[9],
    ),
    Snapshot(time=1.0, step=1, stats=STATS, requests=[request()], info=engine_info()),
    SnapshotPart(index=0, is_last=True, requests=[request()]),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_redacted_event_holds_no_text_and_no_token(event: Event | Snapshot | SnapshotPart) -> None:
    before = codec.encode(event)
    after = codec.encode(redact(event))
    assert not traces(after, [SECRET.encode()], [ID])
    if not isinstance(event, RequestFinished):
        assert len(traces(before, [SECRET.encode()], [ID])) > 1
    assert codec.encode(event) == before  # the engine's own objects are as they were


def test_numbers_are_those_of_the_unredacted() -> None:
    open_, closed = EngineState(), EngineState()
    for event in (arrived(), step()):
        open_.apply(codec.decode(codec.encode(event), type(event)))
        closed.apply(redact(event))
    assert closed.sequences[1].num_tokens == open_.sequences[1].num_tokens > 0
    assert closed.sequences[1].num_computed_tokens == open_.sequences[1].num_computed_tokens
    assert closed.sequences[1].block_table == open_.sequences[1].block_table == [4, 4]
    assert closed.requests["r"].sampling_params == SamplingParams(
        temperature=0.5, logprobs=2, max_tokens=7, seed=3, extra_args={"beam_width": 3}
    )
    # A viewer that redacts has the same state as a viewer of a redacted engine.
    again = redact(open_)
    assert not traces(codec.encode(again), [SECRET.encode()], [ID])
    assert again.sequences == closed.sequences
    late = EngineState()
    late.apply(redact(snapshot.take(open_)))
    assert late.sequences == closed.sequences
    assert late.requests["r"].num_prompt_tokens == 2


def structs_in(hint: object, found: dict[type[msgspec.Struct], None]) -> None:
    """Adds all structs that a published value may hold, by their public fields."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in found:
        found[hint] = None
        hints = get_type_hints(hint)
        for name, privacy in privacy_of(hint).items():
            if privacy is not Privacy.PRIVATE:
                structs_in(hints[name], found)
    for argument in get_args(hint):
        structs_in(argument, found)


def published_structs() -> list[type[msgspec.Struct]]:
    found: dict[type[msgspec.Struct], None] = {}
    for root in (Event, Snapshot, SnapshotPart, EngineState):
        structs_in(root, found)
    return list(found)


@pytest.mark.parametrize("struct", published_structs(), ids=lambda struct: struct.__name__)
def test_every_field_declares_its_privacy(struct: type[msgspec.Struct]) -> None:
    undeclared = [name for name, privacy in privacy_of(struct).items() if privacy is None]
    assert not undeclared, (
        f"{struct.__name__}.{undeclared[0]} declares no privacy; see seqtop/sequence/privacy.py"
    )


def test_fields_that_are_not_public_are_these() -> None:
    """A second list, so that a field does not become public by mistake."""
    hidden = {
        struct.__name__: " ".join(
            name for name, privacy in privacy_of(struct).items() if privacy is not Privacy.PUBLIC
        )
        for struct in published_structs()
    }
    assert {name: fields for name, fields in hidden.items() if fields} == {
        "RequestArrived": "prompt prompt_token_ids eos_token_id cache_salt",
        "StreamingUpdate": "prompt prompt_token_ids",
        "RequestState": "prompt prompt_token_ids cache_salt",
        "SequenceUpdate": "new_token_ids text_delta new_logprobs stop_reason top_logprobs",
        "SequenceState": (
            "output_token_ids output_logprobs top_logprobs cumulative_logprob text"
            " last_delta_length stop_reason text_lengths"
        ),
        "RequestFinished": "text_lengths",
        "NotPublished": "detail",
        "SequenceSnapshot": "output_token_ids output_logprobs text top_logprobs",
        "SequenceHistory": "cumulative_logprob last_delta_length text_lengths",
        "ExecuteModelRequest": "previous_hidden_states last_sampled_token_ids async_callback",
        "SequenceGroupMetadata": (
            "lora_request token_type_ids multi_modal_data multi_modal_placeholders"
            " encoder_seq_data prompt_adapter_request"
        ),
        "SequenceDataDelta": "new_output_token_ids new_cumulative_logprob",
        "SequenceData": (
            "_prompt_token_ids _output_token_ids _prompt_embeds _output_embeds _cumulative_logprob"
            " _prompt_token_ids_tuple _cached_all_token_ids _cached_all_token_embeds"
            " _new_appended_tokens _mrope_position_delta"
        ),
        "SamplingParams": (
            "stop stop_token_ids logits_processors output_text_buffer_length _all_stop_token_ids"
            " guided_decoding logit_bias allowed_token_ids extra_args bad_words"
            " _bad_words_token_ids"
        ),
        "PoolingParams": "additional_data",
    }


@pytest.mark.parametrize("width", [SECRET, [ID], {SECRET: ID}, 0.5, True, None])
def test_key_that_is_public_keeps_integers_only(width: object) -> None:
    params = SamplingParams(extra_args={"beam_width": width})
    assert redact(params).extra_args is None


def test_field_without_a_declaration_is_private() -> None:
    class Newer(SequenceUpdate, tag="Newer"):
        reasoning: str = ""

    newer = Newer(seq_id=1, status=SequenceStatus.RUNNING, num_computed_tokens=0, reasoning=SECRET)
    event = msgspec.structs.replace(step(), sequences=[newer])
    assert SECRET.encode() not in codec.encode(redact(event))


def test_struct_without_any_declaration_is_refused() -> None:
    class Undeclared(msgspec.Struct):
        text: str

    values: list[Any] = [Undeclared(SECRET), object()]
    for value in values:
        with pytest.raises(WireError, match="cannot be redacted"):
            redact(value)


def test_engine_and_state_say_that_they_are_redacted() -> None:
    state = redact(EngineState(info=engine_info()))
    assert state.info == redact(engine_info()) == engine_info(redacted=True)
