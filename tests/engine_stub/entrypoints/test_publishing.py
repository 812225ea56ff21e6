"""Publishing a step costs the engine work for the events of the step, not for all that exists."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.step_record import StepRecord
from engine_stub.worker.worker import Worker
from seqtop.sequence import SamplingParams, SequenceGroupMetadataDelta
from seqtop.state import EngineState
from seqtop.state.ordering import SequenceView
from seqtop.wire.batch import members, metadata_of
from seqtop.wire.messages import RequestFinished, Step
from tests.support import events
from tests.support.running import MakeEngine, Sink, greedy

NUM = 6


class Unread(dict[int, list[int]]):
    """Block tables that must not be read."""

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


def test_every_scheduled_group_is_published_without_a_look_at_its_table(sink: Sink) -> None:
    num_blocks = 0
    for record, step in decoding(sink):
        batch = list(members(step))
        assert [member.request_id for member in batch] == [
            scheduled.seq_group.request_id for scheduled in record.scheduled
        ]
        for member, update in zip(batch, record.updates, strict=True):
            assert member.num_computed_tokens == update.seq.get_num_computed_tokens()
            assert (member.num_tokens, member.is_prompt) == (1, False)
            delta = metadata_of(step, member.request_id)
            assert isinstance(delta, SequenceGroupMetadataDelta)
            assert delta.block_tables == {}
        assert step.metrics == {}
        num_blocks += sum(len(update.new_blocks) for update in step.sequences)
    assert num_blocks == 2 * NUM


def test_updates_have_only_what_the_batch_does_not_say(sink: Sink) -> None:
    for record, step in decoding(sink):
        for update, of_record in zip(step.sequences, record.updates, strict=True):
            (token,) = of_record.new_token_ids
            assert update == events.update(
                of_record.seq.seq_id,
                tokens=[token],
                text=of_record.text_delta,
                blocks=record.table_changes.appended.get(of_record.seq.seq_id, []),
                logprobs=[of_record.new_logprobs[0][token].logprob],
            )


def test_candidates_are_published_if_a_request_asks_for_them(sink: Sink) -> None:
    for record, step in decoding(sink, logprobs=2):
        assert [len(update.top_logprobs) for update in step.sequences] == [1] * NUM
        assert len(list(members(step))) == len(record.scheduled)


@pytest.mark.parametrize("is_aborted", [False, True])
def test_the_text_of_a_snapshot_and_the_deltas_after_it_are_the_text(
    sink: Sink, is_aborted: bool
) -> None:
    """Text that could be the start of a stop string comes with a later delta."""
    engine = LLMEngine(EngineConfig(device="cpu", max_model_len=256))
    steps = StepPublisher(sink)
    params = SamplingParams(temperature=0.0, max_tokens=20, stop=["no such text"])
    (group,) = engine.add_request("r", "Once upon a time", params)
    steps.arrived(group)
    texts: list[str] = []
    while engine.has_unfinished_requests():
        if len(texts) == 15 and is_aborted:
            engine.abort_request("r")
        if engine.seq_groups:
            snapshot = steps.snapshot(engine)
            assert snapshot.step == len(texts) - 1
            texts.append(snapshot.requests[0].sequences[0].text)
        record = engine.step()
        steps.stepped(record)
        delta = "".join(update.text_delta for update in record.updates)
        texts = [text + delta for text in texts]
    assert len(texts) > 15
    assert len(group.first_seq.output_text) > 20
    assert set(texts) == {group.first_seq.output_text}
    (finished,) = (event for event in sink.events if isinstance(event, RequestFinished))
    assert finished.text_lengths == [len(group.first_seq.output_text)]


def test_the_bytes_of_a_block_are_those_of_the_pool(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=6)
    info = engine_info(engine, engine_id="test", control=False)
    assert isinstance(engine.worker, Worker)
    num_bytes = engine.worker.cache.pool.nbytes
    assert info.bytes_per_block == num_bytes // 7, "one block more is allocated"


def test_the_queue_of_a_viewer_is_that_of_the_scheduler_after_a_preemption(
    sink: Sink, make_engine: MakeEngine
) -> None:
    engine = make_engine(num_gpu_blocks=6, enable_prefix_caching=False)
    steps, state = StepPublisher(sink), EngineState()
    state.apply(engine_info(engine, engine_id="test", control=False))

    def add(name: str, priority: int) -> None:
        for group in engine.add_request(name, [1] * 12, greedy(4), priority=priority):
            steps.arrived(group)

    add("high", 0)
    add("low", 1)
    steps.stepped(engine.step())
    add("urgent", 0)
    steps.stepped(engine.step())
    for event in sink.events:
        state.apply(event)
    assert state.requests["low"].num_preemptions == 1
    assert [group.request_id for group in engine.scheduler.waiting] == ["urgent", "low"]
    view = SequenceView()
    view.rebuild(state)
    assert [state.sequences[seq_id].request_id for seq_id in view.queue.ids] == ["urgent", "low"]
