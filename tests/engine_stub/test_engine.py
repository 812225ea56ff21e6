"""The engine as its callers see it: results, times, samples, and what a step record tells."""

from typing import Any

import pytest
import torch

from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams, SequenceStatus
from tests.support.running import Clock, MakeEngine, greedy


def test_arrival_time_can_be_given(make_engine: MakeEngine) -> None:
    engine = make_engine(clock=Clock())
    (group,) = engine.add_request("r", [1], greedy(1), arrival_time=990.0)
    engine.step()
    assert group.metrics.time_in_queue == 11.0


def test_an_aborted_request_has_an_end(make_engine: MakeEngine) -> None:
    engine = make_engine(clock=Clock())
    (group,) = engine.add_request("r", [1], greedy(9))
    engine.abort_request("r")
    assert group.metrics.finished_time == 1002.0


def test_generate_keeps_the_order(make_engine: MakeEngine) -> None:
    engine = make_engine()
    prompts: list[Any] = [[3] * 9, "abc", [5, 6]]
    groups = engine.generate(prompts, greedy(5))
    alone = [make_engine().generate([prompt], greedy(5))[0] for prompt in prompts]
    outputs = [group.first_seq.get_output_token_ids() for group in groups]
    assert outputs == [group.first_seq.get_output_token_ids() for group in alone]


def draw(engine: LLMEngine, **params: Any) -> list[tuple[int, ...]]:
    defaults: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True}
    (group,) = engine.generate([[1, 2, 3]], SamplingParams(**(defaults | params)))
    return [seq.get_output_token_ids() for seq in group.seqs]


def test_parallel_samples_differ_and_follow_the_seed(make_engine: MakeEngine) -> None:
    three = draw(make_engine(), n=3, seed=7)
    assert len(set(three)) == 3
    assert three == draw(make_engine(), n=3, seed=7)
    assert three[1:2] == draw(make_engine(), seed=8)


def test_the_best_of_several_samples_is_kept(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(best_of=4, n=2, seed=7, max_tokens=12, ignore_eos=True)
    (group,) = engine.generate([[1, 2, 3]], params)
    every = draw(make_engine(), n=4, seed=7)
    assert [seq.get_output_token_ids() in every for seq in group.seqs] == [True, True]
    assert len(group.seqs) == 2


def test_parallel_samples_are_requests_of_their_own(make_engine: MakeEngine) -> None:
    engine = make_engine()
    groups = engine.add_request("r", [1] * 9, SamplingParams(n=3, seed=1, max_tokens=4))
    assert [group.request_id for group in groups] == [f"r_parallel_sample_{i}" for i in range(3)]
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("r", [1], greedy(1))
    engine.step()
    assert engine.abort_request("r")
    assert all(group.first_seq.status is SequenceStatus.FINISHED_ABORTED for group in groups)
    assert len(engine.step().aborted) == 3
    assert engine.seq_id_to_seq_group == {}
    assert not engine.has_unfinished_requests()


def test_a_seed_survives_chunks_preemption_and_company(make_engine: MakeEngine) -> None:
    params = SamplingParams(seed=5, max_tokens=14, ignore_eos=True)
    prompt = [9] * 11
    (alone,) = make_engine().generate([prompt], params)
    engine = make_engine(num_gpu_blocks=12, max_num_batched_tokens=7, max_num_seqs=4)
    for index in range(3):
        engine.add_request(f"n{index}", [index + 1] * 6, SamplingParams(max_tokens=20))
    (group,) = engine.add_request("r", prompt, params, priority=1)
    preempted = []
    while engine.has_unfinished_requests():
        preempted += [preemption.request_id for preemption in engine.step().preemptions]
    assert "r" in preempted
    assert group.first_seq.get_output_token_ids() == alone.first_seq.get_output_token_ids()


def test_a_seed_starts_anew_with_each_request(make_engine: MakeEngine) -> None:
    engine = make_engine()
    outputs = []
    for _ in range(2):
        params = SamplingParams(seed=5, max_tokens=8, ignore_eos=True)
        (group,) = engine.add_request("r", [1, 2, 3], params)
        while not group.is_finished():
            engine.step()
        outputs.append(group.first_seq.get_output_token_ids())
    assert outputs[0] == outputs[1]


def test_a_seed_gives_new_numbers_at_each_step(make_engine: MakeEngine) -> None:
    # So hot that the model hardly matters: equal numbers would give equal tokens.
    (output,) = draw(make_engine(), seed=3, temperature=1000.0)
    assert len(set(output)) > 6


def test_the_model_computes_what_the_record_counts(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=20, max_num_seqs=4)
    forward = engine.worker.model.forward
    computed = []

    def count(input_ids: torch.Tensor, *others: Any) -> Any:
        computed.append(len(input_ids))
        return forward(input_ids, *others)

    engine.worker.model.forward = count
    for index in range(8):
        prompt = [7] * 17 + [index + 1] * (index + 2)
        engine.add_request(f"r{index}", prompt, greedy(9))
    records = []
    while engine.has_unfinished_requests():
        records.append(engine.step())
    assert computed == [
        record.num_prefill_tokens + record.num_decode_tokens
        for record in records
        if record.scheduled
    ]
    assert records[-1].blocks.prefix_hits > 0


def test_the_engines_seed_decides_for_requests_without(make_engine: MakeEngine) -> None:
    assert draw(make_engine(seed=1)) == draw(make_engine(seed=1))
    assert draw(make_engine(seed=1)) != draw(make_engine(seed=2))
