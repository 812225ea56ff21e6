"""What publishing a step costs the engine: work for what has happened, not for what there is."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publishing import StepPublisher
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams
from seqtop.wire.messages import Event, Step

NUM = 6


class Sink:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def publish(self, event: Event) -> None:
        self.events.append(event)


class Unread(dict[int, list[int]]):
    """Block tables that nobody may look at."""

    def _refuse(self, *_: object) -> NoReturn:
        raise AssertionError("a block table was looked at")

    __iter__ = __getitem__ = __len__ = __eq__ = __or__ = _refuse
    items = keys = values = get = _refuse


@pytest.fixture
def sink() -> Sink:
    return Sink()


def decoding(sink: Sink, **params: Any) -> Iterator[tuple[StepRecord, Step]]:
    """The steps in which all requests decode, and what was published of each."""
    engine = LLMEngine(EngineConfig(device="cpu", max_num_seqs=NUM, max_model_len=256))
    steps = StepPublisher(sink)
    sampling = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, **params)
    for number in range(NUM):
        for group in engine.add_request(f"req-{number}", "Once upon a time", sampling):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        record = engine.step()
        plain = not record.num_prefill_tokens and not record.finished and record.scheduled
        for metadata in record.execute_model_req.seq_group_metadata_list if plain else ():
            metadata.block_tables = Unread()
        steps.stepped(record)
        if plain:
            step = sink.events[-1]
            assert isinstance(step, Step)
            yield record, step


def test_plain_decodes_are_published_without_a_row_or_a_look_at_a_table(sink: Sink) -> None:
    num_blocks = 0
    for record, step in decoding(sink):
        assert len(step.decodes.seq_ids) == len(record.scheduled) == NUM
        assert step.sequences == step.execute.seq_group_metadata_list == []
        assert step.metrics == {}
        assert step.decodes.new_blocks == {
            seq_id: block for seq_id, (block,) in record.table_changes.appended.items()
        }
        num_blocks += len(step.decodes.new_blocks)
    assert num_blocks == 2 * NUM


def test_decodes_that_have_more_to_say_are_rows(sink: Sink) -> None:
    for record, step in decoding(sink, logprobs=2):
        assert step.decodes is None
        assert [len(each.top_logprobs) for each in step.sequences] == [1] * NUM
        assert len(step.execute.seq_group_metadata_list) == len(record.scheduled)


def test_a_record_tells_of_columns_as_of_rows(sink: Sink) -> None:
    """For those who want an update a sequence, in the order of the batch."""
    for record, step in decoding(sink):
        updates = record.updates
        assert [each.request_id for each in updates] == [
            each.seq_group.request_id for each in record.scheduled
        ]
        columns = step.decodes
        for update in updates:
            place = columns.seq_ids.index(update.seq.seq_id)
            (token,) = update.new_token_ids
            assert token == columns.new_token_ids[place] == update.seq.get_last_token_id()
            assert update.text_delta == columns.text_deltas[place]
            assert update.new_logprobs[0][token].logprob == columns.new_logprobs[place]
