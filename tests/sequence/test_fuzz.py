"""Random objects come back as they were; random bytes give an object or a `WireError`."""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import seqtop.sequence
from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    Logprob,
    LoRARequest,
    PlaceholderRange,
    PromptAdapterRequest,
    RequestMetrics,
    RequestOutputKind,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupState,
    SequenceOutput,
    SequenceStage,
)
from seqtop.wire import WireError, decode, encode
from tests.support.golden import streams, vectors

ints = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
token_ids = st.lists(ints, max_size=5)
ids = st.integers(0, 2**31)
tables = st.dictionaries(ids, st.lists(ids, max_size=4), max_size=2)
states = st.none() | st.builds(SequenceGroupState, ids, ids)
stages = st.sampled_from(SequenceStage)
text = st.text(max_size=8)


@st.composite
def sequence_data(draw: st.DrawFn) -> SequenceData:
    data = SequenceData.from_seqs(draw(token_ids), draw(st.none() | token_ids))
    for token in draw(token_ids):
        data.append_token_id(token, draw(floats.filter(math.isfinite)))
    data.update_num_computed_tokens(draw(st.integers(0, data.get_len())))
    data.update_num_cached_tokens(draw(ids))
    data.mrope_position_delta = draw(st.none() | ints)
    return data


sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 10),
    top_p=st.floats(0.001, 1),
    top_k=st.integers(-1, 100),
    seed=st.none() | st.integers(0, 2**63 - 1),
    stop=st.none() | st.lists(st.text(min_size=1, max_size=3), max_size=2),
    # They become a set, and ids that collide in its table would come out as they went in: these
    # cannot collide, so their order is settled.
    stop_token_ids=st.none() | st.lists(st.integers(0, 7), max_size=3),
    max_tokens=st.none() | st.integers(1, 2**40),
    logprobs=st.none() | st.integers(0, 20),
    output_kind=st.sampled_from(RequestOutputKind),
    logit_bias=st.none() | st.dictionaries(ids, floats, max_size=2),
    bad_words=st.none() | st.lists(text, max_size=2),
    extra_args=st.none() | st.dictionaries(text, ints | text | st.booleans(), max_size=2),
)
fulls = st.builds(
    SequenceGroupMetadata,
    request_id=text,
    is_prompt=st.booleans(),
    seq_data=st.dictionaries(ids, sequence_data(), min_size=1, max_size=2),
    sampling_params=st.none() | sampling_params,
    block_tables=tables,
    do_sample=st.booleans(),
    lora_request=st.none() | st.builds(LoRARequest, text, ids, st.text(min_size=1)),
    computed_block_nums=st.none() | st.lists(ids, max_size=3),
    state=states,
    token_type_ids=st.none() | token_ids,
    multi_modal_placeholders=st.none()
    | st.dictionaries(text, st.lists(st.builds(PlaceholderRange, ids, ids), max_size=2)),
    encoder_seq_data=st.none() | sequence_data(),
    cross_block_table=st.none() | st.lists(ids, max_size=3),
    prompt_adapter_request=st.none() | st.builds(PromptAdapterRequest, text, ids, text, ids),
    token_chunk_size=st.none() | ids,
    num_speculative_tokens=st.none() | ids,
)
deltas = st.builds(
    SequenceGroupMetadataDelta,
    seq_data_delta=st.dictionaries(
        ids, st.builds(SequenceDataDelta, token_ids, floats, ints, stages), max_size=2
    ),
    request_id=text,
    block_tables=tables,
    is_prompt=st.booleans(),
    do_sample=st.booleans(),
    token_chunk_size=st.none() | ids,
    computed_block_nums=st.none() | st.lists(ids, max_size=3),
    state=states,
)
pairs = st.lists(st.tuples(ids, ids), max_size=2)
requests = st.builds(
    ExecuteModelRequest,
    seq_group_metadata_list=st.lists(fulls | deltas, max_size=3),
    blocks_to_swap_in=pairs,
    blocks_to_swap_out=pairs,
    blocks_to_copy=pairs,
    running_queue_size=ids,
    spec_step_idx=st.none() | ids,
    finished_requests_ids=st.lists(text, max_size=2),
)
logprobs = st.dictionaries(
    ids, st.builds(Logprob, floats, st.none() | ids, st.none() | text), max_size=2
)
outputs = st.builds(
    CompletionSequenceGroupOutput,
    samples=st.lists(st.builds(SequenceOutput, ids, ids, logprobs), max_size=2),
    prompt_logprobs=st.none() | st.lists(st.none() | logprobs, max_size=2),
    step_index=st.none() | ids,
)
metrics = st.builds(
    RequestMetrics,
    *[floats] * 2,
    *[st.none() | floats] * 7,
    spec_token_acceptance_counts=st.none() | st.lists(ids, max_size=3),
)


@settings(deadline=None)
@given(requests | outputs | metrics | sampling_params)
def test_objects_come_back_as_they_were(obj: Any) -> None:
    data = encode(obj)
    there = decode(data, type(obj))
    assert there == obj
    assert encode(there) == data


@settings(deadline=None, max_examples=50)
@given(sequence_data(), st.lists(st.tuples(ids, floats.filter(math.isfinite)), max_size=5))
def test_a_receiver_follows_its_sender(sender: SequenceData, tokens: list[Any]) -> None:
    sender.get_delta_and_reset()
    receiver = decode(encode(sender), SequenceData)
    for token, logprob in tokens:
        sender.update_num_computed_tokens(sender.get_num_uncomputed_tokens())
        sender.append_token_id(token, logprob)
        receiver.apply_delta(decode(encode(sender.get_delta_and_reset()), SequenceDataDelta))
        assert receiver == sender


GENUINE = [
    (vector["type"], bytes.fromhex(vector["hex"]))
    for vector in vectors()
    if len(vector["hex"]) < 2000
] + [
    (frame["type"], bytes.fromhex(frame["hex"]))
    for stream in streams()
    for frame in stream.get("frames", stream.get("messages"))[:3]
    if len(frame["hex"]) < 2000
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, bytes]:
    name, data = draw(st.sampled_from(GENUINE))
    broken = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(broken)))
        until = draw(st.integers(at, min(at + 3, len(broken))))
        broken[at:until] = draw(st.binary(max_size=4))
    return name, bytes(broken)


def assert_object_or_wire_error(name: str, data: bytes) -> None:
    target = getattr(seqtop.sequence, name)
    try:
        outcome: Any = decode(data, target)
    except WireError as error:
        outcome = error
    if isinstance(outcome, WireError):
        assert str(outcome).startswith(f"cannot decode {name}: ")
    else:
        assert isinstance(outcome, target)


@settings(deadline=None, max_examples=1500)
@given(damaged())
@example(("SequenceData", b"\x81\xb1_prompt_token_ids\xc6\xff\xff\xff\xff"))
def test_damaged_bytes_give_an_object_or_a_wire_error(case: tuple[str, bytes]) -> None:
    name, data = case
    assert_object_or_wire_error(name, data)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted({name for name, _ in GENUINE})), st.binary(max_size=40))
def test_random_bytes_give_an_object_or_a_wire_error(name: str, data: bytes) -> None:
    assert_object_or_wire_error(name, data)


@pytest.mark.parametrize("case", [g for g in GENUINE if len(g[1]) < 300], ids=lambda g: g[0])
def test_every_truncation_is_refused(case: tuple[str, bytes]) -> None:
    name, data = case
    for length in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:length], getattr(seqtop.sequence, name))
