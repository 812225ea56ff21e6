"""The engine as its callers see it: results, times, samples, and what a step record tells."""

import itertools

import pytest

from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams, SequenceStatus


class Clock:
    """Goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


def test_times_of_a_request(make_engine) -> None:
    engine = make_engine(clock=Clock(), max_num_batched_tokens=4, max_num_seqs=1)
    (group,) = engine.add_request("r", [1] * 6, greedy(2))
    metrics = group.metrics
    assert (metrics.arrival_time, metrics.first_scheduled_time) == (1001.0, None)
    first = engine.step()
    assert (first.start_time, first.time) == (1002.0, 1003.0)
    assert metrics.first_scheduled_time == 1002.0
    assert metrics.time_in_queue == 1.0
    # The first chunk samples nothing.
    assert metrics.first_token_time is None
    assert metrics.last_token_time == metrics.arrival_time
    second = engine.step()
    assert metrics.first_token_time == metrics.last_token_time == second.time == 1005.0
    third = engine.step()
    assert third.finished == [group]
    assert metrics.finished_time == metrics.last_token_time == third.time == 1007.0
    assert group.last_token_latency == 2.0
    assert [first.step, second.step, third.step] == [0, 1, 2]


def test_durations_add_up_over_the_steps_a_group_took_part_in(make_engine) -> None:
    engine = make_engine()
    (long,) = engine.add_request("long", [1] * 5, greedy(4))
    records = [engine.step()]
    (short,) = engine.add_request("short", [2] * 5, greedy(2))
    while engine.has_unfinished_requests():
        records.append(engine.step())
    for group, steps in ((long, records[:4]), (short, records[1:3])):
        for name in ("scheduler_time", "model_forward_time", "model_execute_time"):
            total = sum(getattr(each, name) for each in steps)
            assert getattr(group.metrics, name) == pytest.approx(total)
    for record in records:
        assert 0 < record.model_execute_time < record.step_time
        assert record.model_forward_time <= record.model_execute_time
        assert 0 < record.scheduler_time < record.step_time


def test_arrival_time_can_be_given(make_engine) -> None:
    engine = make_engine(clock=Clock())
    (group,) = engine.add_request("r", [1], greedy(1), arrival_time=990.0)
    engine.step()
    assert group.metrics.time_in_queue == 11.0


def test_an_aborted_request_has_an_end(make_engine) -> None:
    engine = make_engine(clock=Clock())
    (group,) = engine.add_request("r", [1], greedy(9))
    engine.abort_request("r")
    assert group.metrics.finished_time == 1002.0


def test_updates_bring_tokens_logprobs_and_text(make_engine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=3, ignore_eos=True)
    (group,) = engine.add_request("r", "Hi there", params)
    updates = []
    while engine.has_unfinished_requests():
        record = engine.step()
        assert [each.seq_group for each in record.scheduled] == [
            engine.seq_groups.get(each.request_id, group) for each in record.updates
        ]
        updates += record.updates
    seq = group.first_seq
    tokens = list(itertools.chain.from_iterable(each.new_token_ids for each in updates))
    logprobs = list(itertools.chain.from_iterable(each.new_logprobs for each in updates))
    assert tokens == list(seq.get_output_token_ids())
    assert len(tokens) == 12
    assert logprobs == seq.output_logprobs
    assert "".join(each.text_delta for each in updates) == seq.output_text
    assert seq.get_cumulative_logprob() == pytest.approx(
        sum(each[token].logprob for token, each in zip(tokens, logprobs, strict=True))
    )
    for token, candidates in zip(tokens, logprobs, strict=True):
        assert len(candidates) == 3
        assert candidates[token].rank == 1
        assert candidates[token].decoded_token == engine.tokenizer.decode([token])


def test_text_prompts_are_encoded(make_engine) -> None:
    engine = make_engine()
    (group,) = engine.add_request("r", "Hi", greedy(1))
    assert group.prompt == "Hi"
    assert group.prompt_token_ids == engine.tokenizer.encode("Hi")
    (group,) = engine.add_request(
        "s", "Hello", SamplingParams(truncate_prompt_tokens=2, temperature=0)
    )
    assert group.prompt_token_ids == engine.tokenizer.encode("lo")


def test_generate_keeps_the_order(make_engine) -> None:
    engine = make_engine()
    prompts = [[3] * 9, "abc", [5, 6]]
    groups = engine.generate(prompts, greedy(5))
    alone = [make_engine().generate([prompt], greedy(5))[0] for prompt in prompts]
    outputs = [group.first_seq.get_output_token_ids() for group in groups]
    assert outputs == [group.first_seq.get_output_token_ids() for group in alone]


def test_the_callers_parameters_are_left_alone(make_engine) -> None:
    params = SamplingParams(stop_token_ids=[5])
    before = params.clone()
    make_engine().generate([[1]], params)
    assert params == before


def draw(engine: LLMEngine, **params: object) -> list[tuple[int, ...]]:
    defaults: dict[str, object] = {"max_tokens": 12, "ignore_eos": True}
    (group,) = engine.generate([[1, 2, 3]], SamplingParams(**(defaults | params)))
    return [seq.get_output_token_ids() for seq in group.seqs]


def test_parallel_samples_differ_and_follow_the_seed(make_engine) -> None:
    three = draw(make_engine(), n=3, seed=7)
    assert len(set(three)) == 3
    assert three == draw(make_engine(), n=3, seed=7)
    assert three[1:2] == draw(make_engine(), seed=8)


def test_the_best_of_several_samples_is_kept(make_engine) -> None:
    engine = make_engine()
    params = SamplingParams(best_of=4, n=2, seed=7, max_tokens=12, ignore_eos=True)
    (group,) = engine.generate([[1, 2, 3]], params)
    every = draw(make_engine(), n=4, seed=7)
    assert [seq.get_output_token_ids() in every for seq in group.seqs] == [True, True]
    assert len(group.seqs) == 2


def test_parallel_samples_are_requests_of_their_own(make_engine) -> None:
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


def test_a_seed_survives_chunks_preemption_and_company(make_engine) -> None:
    params = SamplingParams(seed=5, max_tokens=14, ignore_eos=True)
    prompt = [9] * 11
    (alone,) = make_engine().generate([prompt], params)
    engine = make_engine(num_gpu_blocks=12, max_num_batched_tokens=7, max_num_seqs=4)
    for index in range(3):
        engine.add_request(f"n{index}", [index + 1] * 6, SamplingParams(max_tokens=20))
    (group,) = engine.add_request("r", prompt, params, priority=1)
    preempted = []
    while engine.has_unfinished_requests():
        preempted += [each.request_id for each in engine.step().preemptions]
    assert "r" in preempted
    assert group.first_seq.get_output_token_ids() == alone.first_seq.get_output_token_ids()


def test_a_seed_starts_anew_with_each_request(make_engine) -> None:
    engine = make_engine()
    outputs = []
    for _ in range(2):
        params = SamplingParams(seed=5, max_tokens=8, ignore_eos=True)
        (group,) = engine.add_request("r", [1, 2, 3], params)
        while not group.is_finished():
            engine.step()
        outputs.append(group.first_seq.get_output_token_ids())
    assert outputs[0] == outputs[1]


def test_a_seed_gives_new_numbers_at_each_step(make_engine) -> None:
    # So hot that the model hardly matters: equal numbers would give equal tokens.
    (output,) = draw(make_engine(), seed=3, temperature=1000.0)
    assert len(set(output)) > 6


def test_the_model_computes_what_the_record_counts(make_engine) -> None:
    engine = make_engine(num_gpu_blocks=24, max_num_batched_tokens=20, max_num_seqs=4)
    forward = engine.worker.model.forward
    computed = []

    def count(input_ids, *others):
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
        each.num_prefill_tokens + each.num_decode_tokens for each in records if each.scheduled
    ]
    assert records[-1].blocks.prefix_hits > 0


def test_the_engines_seed_decides_for_requests_without(make_engine) -> None:
    assert draw(make_engine(seed=1)) == draw(make_engine(seed=1))
    assert draw(make_engine(seed=1)) != draw(make_engine(seed=2))


def test_the_pool_to_swap_to_is_as_large_as_the_other_within_limits(
    make_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapping = {"num_gpu_blocks": 24, "preemption_mode": "swap"}
    assert make_engine(num_gpu_blocks=24).config.num_cpu_blocks == 0
    assert make_engine(**swapping).config.num_cpu_blocks == 24
    # A block has 2 layers of 4 slots with keys and values of 32 numbers each.
    most_bytes = 10 * (2 * 4 * 2 * 32 * 4) + 1
    monkeypatch.setattr("engine_stub.worker.pool_sizes.HOST_POOL_BYTES", most_bytes)
    assert make_engine(**swapping).config.num_cpu_blocks == 10
    assert make_engine(**swapping, num_cpu_blocks=11).config.num_cpu_blocks == 11
