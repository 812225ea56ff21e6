"""`ParallelSampleSequenceGroup`: one request for n samples as n requests for one."""

from typing import Any

import pytest

from seqtop.sequence import (
    Logprob,
    ParallelSampleSequenceGroup,
    RequestOutputKind,
    SamplingParams,
    Sequence,
    SequenceError,
    SequenceGroup,
    SequenceGroupBase,
    SequenceStatus,
    token_inputs,
)
from seqtop.sequence.parallel import parent_request_id


class Engine:
    """As much of an engine as a split request needs."""

    def __init__(self) -> None:
        self.seq_id_to_seq_group: dict[str, SequenceGroupBase] = {}
        self.added: list[SequenceGroup] = []

    def _add_processed_request(
        self, request_id: str, params: SamplingParams, arrival_time: float, priority: int
    ) -> SequenceGroup:
        seq = Sequence(len(self.added), token_inputs([1, 2]), 4)
        group = SequenceGroup(
            request_id, [seq], arrival_time, sampling_params=params, priority=priority
        )
        self.added.append(group)
        return group


def added(**options: Any) -> tuple[Engine, ParallelSampleSequenceGroup, SamplingParams]:
    engine, params = Engine(), SamplingParams(**options)
    ParallelSampleSequenceGroup.add_request("r", engine, params, arrival_time=100.0, priority=3)
    whole = engine.seq_id_to_seq_group["r_parallel_sample_0"]
    assert isinstance(whole, ParallelSampleSequenceGroup)
    return engine, whole, params


def finish(whole: SequenceGroupBase, part: SequenceGroup) -> SequenceGroup | None:
    part.first_seq.status = SequenceStatus.FINISHED_STOPPED
    assembled = whole.maybe_assemble_group(part)
    whole.finish_seq(part)
    return assembled


def test_a_request_is_split() -> None:
    engine, whole, params = added(n=3, seed=10)
    names = [f"r_parallel_sample_{i}" for i in range(3)]
    assert [part.request_id for part in engine.added] == names
    assert [part.sampling_params.n for part in engine.added] == [1, 1, 1]
    assert [part.sampling_params.seed for part in engine.added] == [10, 11, 12]
    assert (params.n, params.seed) == (3, 10)
    assert engine.seq_id_to_seq_group == dict.fromkeys(names, whole)
    assert whole.seq_id_to_index == {name: i for i, name in enumerate(names)}
    assert list(whole.to_be_finished.values()) == engine.added
    assert (whole.group_id, whole.finished_reqs, whole.streaming) == ("r", {}, False)

    group = whole.assembled_seq_group
    assert (group.request_id, group.arrival_time, group.priority) == ("r", 100.0, 3)
    assert group.sampling_params is params
    assert group.seqs == [part.first_seq for part in engine.added]


def test_parts_name_their_parent() -> None:
    assert parent_request_id("r_parallel_sample_0") == "r"
    assert parent_request_id("r_parallel_sample_12") == "r"
    assert parent_request_id("r") == parent_request_id("r_parallel_sample_") == ""


def test_without_a_seed_the_parts_have_none() -> None:
    engine, _, _ = added(n=2)
    assert [part.sampling_params.seed for part in engine.added] == [None, None]


def test_the_whole_is_reported_once_when_the_last_part_finishes() -> None:
    engine, whole, _ = added(n=3)
    a, b, c = engine.added
    assert whole.maybe_assemble_group(a) is None
    assert finish(whole, b) is None
    assert finish(whole, a) is None
    assert whole.maybe_assemble_group(c) is None
    c.first_seq.status = SequenceStatus.FINISHED_STOPPED
    assert whole.maybe_assemble_group(c) is whole.assembled_seq_group
    assert whole.output_produced
    assert whole.maybe_assemble_group(c) is None
    whole.finish_seq(c)
    assert whole.to_be_finished == {}
    assert list(whole.finished_reqs.values()) == [b, a, c]


def test_best_of_keeps_the_likeliest() -> None:
    engine, whole, params = added(n=2, best_of=4)
    assert (params.n, params._real_n, len(engine.added)) == (4, 2, 4)
    for part, logprob in zip(engine.added, [-3.0, -1.0, -4.0, -2.0], strict=True):
        part.first_seq.append_token_id(7, {7: Logprob(logprob)})
    *_, assembled = [finish(whole, part) for part in engine.added]
    assert [seq.seq_id for seq in assembled.seqs] == [1, 3]


def test_while_streaming_the_first_running_part_reports_for_all() -> None:
    engine, whole, _ = added(n=3, output_kind=RequestOutputKind.DELTA)
    assert whole.streaming
    a, b, c = engine.added
    assert whole.maybe_assemble_group(a) is whole.assembled_seq_group
    assert whole.maybe_assemble_group(b) is None
    assert finish(whole, a) is whole.assembled_seq_group
    assert whole.maybe_assemble_group(c) is None
    assert whole.maybe_assemble_group(b) is whole.assembled_seq_group
    assert finish(whole, b) is whole.assembled_seq_group
    assert finish(whole, c) is whole.assembled_seq_group
    assert whole.maybe_assemble_group(c) is None


def test_an_engine_that_makes_no_group_is_named() -> None:
    class Full(Engine):
        def _add_processed_request(self, *args: Any, **options: Any) -> Any:
            return None

    with pytest.raises(SequenceError, match="'r_parallel_sample_0'"):
        ParallelSampleSequenceGroup.add_request("r", Full(), SamplingParams(n=2))


def test_a_group_that_was_never_added_cannot_be_assembled() -> None:
    engine, _, _ = added(n=1)
    part = engine.added[0]
    part.first_seq.status = SequenceStatus.FINISHED_STOPPED
    for assembled in (None, SequenceGroup("r", [part.first_seq], 0.0)):
        whole = ParallelSampleSequenceGroup("r", assembled, to_be_finished={part.request_id: part})
        with pytest.raises(SequenceError, match="assembled when it is added"):
            whole.maybe_assemble_group(part)


def test_the_base_leaves_splitting_and_assembling_open() -> None:
    base = SequenceGroupBase("r")
    with pytest.raises(NotImplementedError):
        SequenceGroupBase.add_request("r", Engine(), SamplingParams())
    engine, _, _ = added(n=1)
    with pytest.raises(NotImplementedError):
        base.maybe_assemble_group(engine.added[0])
    assert base.to_be_finished is not SequenceGroupBase("s").to_be_finished
