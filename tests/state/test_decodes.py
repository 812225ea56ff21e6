"""Decodes told in columns: what they mean, said by rows, and what is refused of them."""

from itertools import repeat
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqtop.checks.checker import Checker
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import (
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire import WireError, codec, parsing
from seqtop.wire.decode_rows import num_decodes
from seqtop.wire.messages import Decodes, Event, SequenceUpdate, Step
from tests.support.event_script import EventScript
from tests.support.reducer_events import RUNNING, arrived, delta, prefilled, step, update


def decodes(seq_id: int = 1, token: int = 6, text: str = " x", **fields: Any) -> Decodes:
    return Decodes(seq_ids=[seq_id], new_token_ids=[token], text_deltas=[text], **fields)


def in_rows(event: Step, state: EngineState) -> Step:
    """`event` as it would be without columns; `state` is that before it (docs/protocol.md)."""
    columns = event.decodes
    groups, updates = list(event.execute.seq_group_metadata_list), list(event.sequences)
    for seq_id, token, text, logprob in zip(
        columns.seq_ids,
        columns.new_token_ids,
        columns.text_deltas,
        columns.new_logprobs or repeat(None),
        strict=False,
    ):
        was = state.sequences[seq_id]
        data = SequenceDataDelta(
            was.output_token_ids[-1:].tolist(),
            was.cumulative_logprob,
            was.num_computed_tokens,
            SequenceStage.DECODE,
        )
        groups.append(
            SequenceGroupMetadataDelta(
                {seq_id: data}, was.request_id, {}, is_prompt=False, token_chunk_size=1
            )
        )
        updates.append(
            SequenceUpdate(
                seq_id=seq_id,
                status=RUNNING,
                num_computed_tokens=was.num_computed_tokens + 1,
                num_cached_tokens=was.num_cached_tokens,
                new_token_ids=[token],
                new_logprobs=[] if logprob is None else [logprob],
                text_delta=text,
                new_blocks=[columns.new_blocks[seq_id]] if seq_id in columns.new_blocks else [],
            )
        )
    return step_with(event, event.execute.clone(groups), updates)


def step_with(event: Step, execute: object, updates: list[SequenceUpdate]) -> Step:
    told = {name: getattr(event, name) for name in event.__struct_fields__}
    return Step(**told | {"execute": execute, "sequences": updates, "decodes": None})


def travelled(event: Event) -> Event:
    return parsing.event(codec.encode(event))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    pool=st.sampled_from((24, 48, 400)),
    load=st.integers(2, 24),
    with_logprobs=st.booleans(),
)
def test_columns_mean_what_rows_say(seed: int, pool: int, load: int, with_logprobs: bool) -> None:
    """Whatever state they meet, and to the bit: cumulative log-probabilities among it."""
    columns, rows = EngineState(), EngineState()
    told = 0
    for event in EventScript(seed, 60, num_blocks=pool, load=load, max_running=load):
        if isinstance(event, Step) and event.decodes is not None:
            told += num_decodes(event)
            if not with_logprobs:
                event.decodes.new_logprobs = []
            rows.apply(travelled(in_rows(event, rows)))
        else:
            rows.apply(travelled(event))
        touched = {*columns.apply(travelled(event))}
        assert codec.encode(columns) == codec.encode(rows)
        if isinstance(event, Step) and event.decodes is not None:
            assert touched.issuperset(event.decodes.seq_ids)
    assert columns.num_anomalies == 0
    assert told > 0


def test_the_script_says_the_same_in_either_form() -> None:
    columns, rows = EngineState(), EngineState()
    for one, other in zip(EventScript(7, 120), EventScript(7, 120, columns=False), strict=True):
        columns.apply(travelled(one))
        rows.apply(travelled(other))
    assert codec.encode(columns) == codec.encode(rows)


def test_the_first_decode_ends_a_wait() -> None:
    """A row may say that a sequence runs before any metadata is there."""
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(step(0, sequences=[update(1, RUNNING, 3)]))
    state.apply(step(1, decodes=decodes()))
    request = state.requests["a"]
    assert [(each.kind, each.start, each.end) for each in request.spans] == [
        ("queued", 10.0, 21.0),
        ("decode", 21.0, 21.5),
    ]
    assert (request.wait.since, request.wait.total) == (None, 11.0)


def test_a_long_text_grows() -> None:
    state = prefilled()
    held = state.sequences[1].text
    for number in range(1, 200):
        state.apply(step(number, decodes=decodes(text=f" word{number}")))
    assert held == "Hi"  # whoever holds the text of before has the text of before
    assert state.sequences[1].text == "Hi" + "".join(f" word{n}" for n in range(1, 200))
    assert sum(state.sequences[1].text_lengths) == len(state.sequences[1].text)


def test_large_numbers_are_kept() -> None:
    """A column of numbers gets a larger type with the first one that it cannot hold."""
    state = prefilled()
    for number, (token, text) in enumerate(((2**40, "x"), (6, "y" * 300), (-1, "z"))):
        state.apply(step(1 + number, decodes=decodes(token=token, text=text, new_logprobs=[-0.1])))
    sequence = state.sequences[1]
    assert list(sequence.output_logprobs) == [-0.5, -0.1, -0.1, -0.1]
    assert list(sequence.output_token_ids) == [5, 2**40, 6, -1]
    assert list(sequence.text_lengths) == [2, 1, 300, 1]
    assert sequence.text == "Hix" + "y" * 300 + "z"


def test_a_step_of_nothing_but_columns_is_not_a_bare_one() -> None:
    """In a bare stream of vLLM's deltas, those would move their sequences by themselves."""
    state = prefilled()
    state.apply(arrived("b", 2))
    assert list(state.apply(step(1, delta("b", 2, [9], 2), decodes=decodes()))) == [1]
    assert list(state.sequences[2].output_token_ids) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"seq_ids": [1, 2], "new_token_ids": [5], "text_deltas": ["", ""]},
        {"seq_ids": [1, 2], "new_token_ids": [5, 5], "text_deltas": [""]},
        {"seq_ids": [1], "new_token_ids": [5], "text_deltas": [""], "new_logprobs": [0.0, 0.0]},
    ],
)
def test_columns_that_do_not_fit_together_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="decodes"):
        Decodes(**columns)
    good = decodes()
    for name, column in columns.items():
        setattr(good, name, column)
    with pytest.raises(WireError, match="decodes"):
        travelled(step(1, decodes=good))


@pytest.mark.parametrize(
    ("seq_id", "anomaly"),
    [
        (99, "decode of unknown sequence 99"),
        (2, "decode of sequence 2, which is not running"),
        (3, "decode of sequence 3, which is not running"),
        (1, "a step names sequence 1 twice"),
    ],
)
def test_what_cannot_decode_is_an_anomaly_and_stays_as_it_is(seq_id: int, anomaly: str) -> None:
    """Unknown, waiting, ended, or told of in a row of the same step."""
    told, expected = prefilled(), prefilled()
    for state in (told, expected):
        state.apply(arrived("b", 2))
        state.apply(arrived("c", 3))
        state.apply(step(1, sequences=[update(3, SequenceStatus.FINISHED_STOPPED, 3)]))
    row = [update(1, RUNNING, 4, new_token_ids=[8], text_delta="!")]
    told.apply(step(2, sequences=row, decodes=decodes(seq_id, new_blocks={seq_id: 9})))
    expected.apply(step(2, sequences=row))
    assert (told.num_anomalies, told.last_anomaly) == (1, anomaly)
    told.num_anomalies, told.last_anomaly = 0, None
    assert codec.encode(told) == codec.encode(expected)


def test_a_sequence_is_in_the_columns_once() -> None:
    told, expected = prefilled(), prefilled()
    columns = Decodes(
        seq_ids=[1, 1], new_token_ids=[6, 7], text_deltas=[" x", " y"], new_blocks={1: 9}
    )
    told.apply(step(1, decodes=columns))
    expected.apply(step(1, decodes=decodes(new_blocks={1: 9})))
    assert (told.num_anomalies, told.last_anomaly) == (1, "a step names sequence 1 twice")
    told.num_anomalies, told.last_anomaly = 0, None
    assert codec.encode(told) == codec.encode(expected)


def test_a_block_goes_to_who_is_in_the_columns() -> None:
    told, expected = prefilled(), prefilled()
    for state in (told, expected):
        state.apply(arrived("b", 2))
    told.apply(step(1, decodes=decodes(new_blocks={2: 9})))
    expected.apply(step(1, decodes=decodes()))
    assert (told.num_anomalies, "sequence 2" in told.last_anomaly) == (1, True)
    told.num_anomalies, told.last_anomaly = 0, None
    assert codec.encode(told) == codec.encode(expected)


def test_a_request_that_has_ended_is_shared_and_not_touched() -> None:
    """Even if one of its sequences is said to run: who else holds it must not see it change."""
    state = prefilled()
    state.requests["a"].finish_reason = "stop"
    held = codec.encode(state.requests["a"]), codec.encode(state.sequences[1])
    event = step(1, decodes=decodes())
    state.apply(event)
    assert (codec.encode(state.requests["a"]), codec.encode(state.sequences[1])) == held
    assert state.num_anomalies == 1
    assert state.last_anomaly == "decode of sequence 1, which is not running"


def test_checks_look_at_columns_as_at_rows() -> None:
    for seed in range(6):
        found = []
        for columns in (True, False):
            checker = Checker(thresholds=Thresholds(overtaken_seconds=0.5, overtaken_requests=1))
            found.append(
                [
                    finding
                    for event in EventScript(seed, 100, num_blocks=24, columns=columns)
                    for finding in checker.apply(event)
                ]
            )
        in_columns, in_rows_ = (sorted(map(codec.encode, each)) for each in found)
        assert in_columns == in_rows_
