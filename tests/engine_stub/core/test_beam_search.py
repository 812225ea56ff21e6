"""Beam search finds what transformers finds, on shared blocks, through any pool."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from engine_stub.core.beam_search import BeamSearchParams, replace_seqs
from engine_stub.engine import LLMEngine
from seqtop.sequence import (
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
    token_inputs,
)
from tests.support.running import MakeEngine, drain

WIDTH = 3
MAX_TOKENS = 14
SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"early_stopping": True, "length_penalty": 0.0},
    {"early_stopping": "never", "length_penalty": 0.3},
    {"length_penalty": -1.0},
)
Generate = Callable[..., list[list[int]]]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [
        [rng.randrange(1, 257) for _ in range(length)] for length in (1, 3, 4, 8, 9, 13, 20, 31)
    ]


@pytest.fixture(scope="module")
def ending_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, more inclined to end: outputs of many lengths compete."""
    path = tmp_path_factory.mktemp("ending-model")
    model = LlamaForCausalLM.from_pretrained(tiny_model)
    model.lm_head.weight.data[0] *= 2
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    return path


@pytest.fixture(scope="module")
def generate(ending_model: Path) -> Generate:
    reference = LlamaForCausalLM.from_pretrained(ending_model, dtype=torch.float32).eval()

    def run(prompt: list[int], **search: Any) -> list[list[int]]:
        outputs = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            num_beams=WIDTH,
            num_return_sequences=WIDTH,
            pad_token_id=256,
            **search,
        )
        cut = [output[len(prompt) :].tolist() for output in outputs]
        return [output[: output.index(0) + 1] if 0 in output else output for output in cut]

    return run


def search(engine: LLMEngine, prompts: list[list[int]], **fields: Any) -> list[SequenceGroup]:
    params = BeamSearchParams(beam_width=WIDTH, max_tokens=MAX_TOKENS, **fields)
    return [
        engine.add_request(f"r{index}", prompt, params)[0] for index, prompt in enumerate(prompts)
    ]


def outputs(group: SequenceGroup) -> list[list[int]]:
    return [list(seq.get_output_token_ids()) for seq in group.seqs]


@pytest.mark.parametrize("fields", SEARCHES, ids=str)
def test_the_outputs_are_those_of_transformers(
    make_engine: MakeEngine,
    ending_model: Path,
    generate: Generate,
    prompts: list[list[int]],
    fields: dict[str, Any],
) -> None:
    engine = make_engine(model=ending_model, num_gpu_blocks=400)
    groups = search(engine, prompts, **fields)
    drain(engine)
    answers = [outputs(group) for group in groups]
    assert answers == [generate(prompt, **fields) for prompt in prompts]
    lengths = {len(output) for beams in answers for output in beams}
    assert len(lengths) > 3, f"outputs were meant to end at many lengths: {lengths}"
    assert engine.block_manager.stats.used == 0


@pytest.mark.parametrize(
    ("settings", "modes"),
    [
        ({"num_gpu_blocks": 30}, ["recompute"]),
        ({"num_gpu_blocks": 30, "enable_prefix_caching": False}, ["recompute"]),
        ({"num_gpu_blocks": 30, "max_num_batched_tokens": 20}, ["recompute"]),
        ({"num_gpu_blocks": 30, "num_cpu_blocks": 30}, ["swap"]),
        ({"num_gpu_blocks": 30, "preemption_mode": "swap", "num_cpu_blocks": 7},
         ["recompute", "swap"]),
        ({"num_gpu_blocks": 30, "preemption_mode": "swap", "enable_prefix_caching": False},
         ["swap"]),
        ({"num_gpu_blocks": 30, "enable_chunked_prefill": False, "max_num_batched_tokens": 140,
          "max_model_len": 46}, ["recompute"]),
    ],
    ids=str,
)  # fmt: skip
def test_preempted_beams_go_on_as_if_nothing_had_been(
    make_engine: MakeEngine,
    ending_model: Path,
    generate: Generate,
    prompts: list[list[int]],
    settings: dict[str, Any],
    modes: set[str],
) -> None:
    engine = make_engine(model=ending_model, max_num_seqs=18, **settings)
    groups = search(engine, prompts, early_stopping="never")
    records = drain(engine)
    assert (
        sorted({preemption.mode for record in records for preemption in record.preemptions})
        == modes
    )
    expected = [generate(prompt, early_stopping="never") for prompt in prompts]
    assert [outputs(group) for group in groups] == expected
    stats = engine.block_manager.stats
    assert (stats.used, stats.free_cpu) == (0, stats.total_cpu)
    assert engine.worker.seq_groups == {}


def test_beams_share_blocks_until_they_write(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (group,) = search(engine, [[7] * 10])
    engine.step()
    first, second, third = group.seqs
    manager = engine.block_manager
    shared = manager.get_block_table(first)
    # 10 prompt tokens in blocks of 4: the last block has room, and all three hold it.
    assert len(shared) == 3
    assert manager.get_block_table(second) == manager.get_block_table(third) == shared
    assert [manager.device.ref_count(block) for block in shared] == [3, 3, 3]
    record = engine.step()
    copies = record.execute_model_req.blocks_to_copy
    assert [source for source, _ in copies] == [shared[2]] * 2
    tables = record.execute_model_req.seq_group_metadata_list[0].block_tables.values()
    assert all(table[:2] == shared[:2] for table in tables)
    assert {table[2] for table in tables} == {shared[2], *(copy for _, copy in copies)}
    drain(engine)


def test_a_fork_or_a_drop_is_told_the_worker_in_full(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (group,) = search(engine, [[7] * 10])
    known: list[int] = []
    kinds = set()
    while engine.has_unfinished_requests():
        record = engine.step()
        for sent in record.execute_model_req.seq_group_metadata_list:
            is_full = isinstance(sent, SequenceGroupMetadata)
            ids = list(sent.seq_data if is_full else sent.seq_data_delta)
            assert is_full == (ids != known)
            known = ids
            kinds.add(type(sent))
    assert kinds == {SequenceGroupMetadata, SequenceGroupMetadataDelta}
    assert group.is_finished()


def test_updates_tell_forks_before_their_parents_and_drops(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (group,) = search(engine, [[7] * 10], early_stopping="never")
    tokens: dict[int, list[int]] = {0: []}
    num_forks = num_removed = 0
    while engine.has_unfinished_requests():
        for update in engine.step().updates:
            seq_id = update.seq.seq_id
            if update.parent_seq_id is not None:
                tokens[seq_id] = tokens[update.parent_seq_id].copy()
                num_forks += 1
            tokens[seq_id] += update.new_token_ids
            if update.is_removed:
                del tokens[seq_id]
                num_removed += 1
                assert update.seq.is_finished()
    assert tokens == {seq.seq_id: list(seq.get_output_token_ids()) for seq in group.seqs}
    assert num_forks > WIDTH
    assert num_removed == 1 + num_forks - WIDTH


def test_a_search_has_a_place_for_each_beam_from_the_start(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=5)
    search(engine, [[1] * 4, [2] * 4])
    record = engine.step()
    assert record.admission_blocked.cause == "seq_limit"
    assert all(record.num_running <= 5 for record in drain(engine))


def test_aborting_a_search_frees_its_beams(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (group,) = search(engine, [[1] * 9])
    for _ in range(4):
        engine.step()
    assert engine.abort_request("r0")
    assert {seq.status for seq in group.seqs} == {SequenceStatus.FINISHED_ABORTED}
    engine.block_manager.check()
    assert engine.block_manager.stats.used == 0
    drain(engine)


def test_beams_are_ranked_and_scored(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = BeamSearchParams(beam_width=4, max_tokens=9, ignore_eos=True)
    (group,) = engine.generate([[3, 4, 5]], params)
    scores = [seq.get_cumulative_logprob() for seq in group.seqs]
    assert scores == sorted(scores, reverse=True)
    assert len({seq.get_output_token_ids() for seq in group.seqs}) == 4
    for seq in group.seqs:
        total = sum(
            candidates[token].logprob
            for token, candidates in zip(
                seq.get_output_token_ids(), seq.output_logprobs, strict=True
            )
        )
        assert seq.get_cumulative_logprob() == pytest.approx(total)
        assert seq.output_text == engine.tokenizer.decode(list(seq.get_output_token_ids()))


def test_one_beam_is_greedy(make_engine: MakeEngine) -> None:
    params = BeamSearchParams(beam_width=1, max_tokens=9, ignore_eos=True)
    greedy = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    beam, one = (
        make_engine().generate([[5, 6]], each_params)[0] for each_params in (params, greedy)
    )
    assert outputs(beam) == outputs(one)


@pytest.mark.parametrize(
    ("fields", "settings", "reason"),
    [
        ({"beam_width": 0}, {}, "at least 1"),
        ({"early_stopping": "soon"}, {}, "early_stopping"),
        ({"beam_width": 6}, {"max_num_seqs": 5}, "5 sequences that may run"),
        ({"max_tokens": 90}, {"num_gpu_blocks": 60}, "the pool has 60"),
        ({"max_tokens": 90}, {"enable_chunked_prefill": False, "max_num_batched_tokens": 200},
         "chunked prefill is off"),
    ],
)  # fmt: skip
def test_searches_that_cannot_run_are_refused(
    make_engine: MakeEngine, fields: dict[str, Any], settings: dict[str, Any], reason: str
) -> None:
    engine = make_engine(**({"num_gpu_blocks": 200} | settings))
    with pytest.raises(ValueError, match=reason):
        engine.add_request(
            "r", [1] * 9, BeamSearchParams(**({"beam_width": 3, "max_tokens": 4} | fields))
        )
    assert not engine.seq_groups


def test_a_search_is_asked_for_by_its_own_parameters_alone(make_engine: MakeEngine) -> None:
    params = SamplingParams(extra_args={"beam_width": "many"}, min_tokens=3)
    with pytest.raises(ValueError, match="BeamSearchParams"):
        make_engine().add_request("r", [1], params)


def test_ids_of_forks_are_nobody_elses(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=200)
    search(engine, [[1] * 5, [2] * 5])
    engine.step()
    (late,) = engine.add_request("late", [3], SamplingParams(temperature=0, max_tokens=2))
    seqs = itertools.chain.from_iterable(group.seqs for group in engine.seq_groups.values())
    seq_ids = [seq.seq_id for seq in seqs]
    assert len(set(seq_ids)) == len(seq_ids)
    assert late.first_seq.seq_id == max(seq_ids)
    drain(engine)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("length_penalty", 1e308),
        ("length_penalty", -10.5),
        ("length_penalty", float("nan")),
        ("temperature", float("inf")),
        ("temperature", -1.0),
    ],
)
def test_values_whose_scores_would_not_be_finite(name: str, value: float) -> None:
    given: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} must be"):
        BeamSearchParams(beam_width=2, max_tokens=8, **given)


def test_all_views_of_a_groups_sequences_are_replaced() -> None:
    first, *seqs = (Sequence(seq_id, token_inputs([1]), 4) for seq_id in (1, 5, 4))
    seq_group = SequenceGroup("r", [first], 0.0, sampling_params=SamplingParams())
    replace_seqs(seq_group, seqs)
    assert seq_group.seqs == seqs
    assert seq_group.first_seq is seqs[0]
    assert not seq_group.is_single_seq
    assert seq_group.seqs_dict == {5: seqs[0], 4: seqs[1]}
