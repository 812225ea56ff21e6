"""Several iterations a schedule, or drafts, with all that may happen beside: no other tokens."""

from pathlib import Path
from typing import Any, get_args

import pytest

from engine_stub.config import EngineConfig
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.lookahead_slots import LookaheadSlots
from engine_stub.engine import LLMEngine
from engine_stub.step_record import ScheduledSequenceGroup, StepRecord
from seqtop.sequence import (
    SamplingParams,
    Sequence,
    SequenceGroup,
    token_inputs,
)
from seqtop.wire.messages import PreemptionMode
from tests.support.checkpoints import add_draft_head, generate, make_checkpoint
from tests.support.running import LOOKAHEADS, drain, repeating_prompts

MAX_TOKENS = 14
FAMILIES = ("mistral-sliding", "qwen3")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return add_draft_head(make_checkpoint(request.param, tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[list[int]]:
    return generate(checkpoint, repeating_prompts(), MAX_TOKENS)


def make_engine(checkpoint: Path, **more: Any) -> LLMEngine:
    defaults: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "block_size": 4,
        "num_gpu_blocks": 200,
        "max_num_seqs": 6,
        "max_num_batched_tokens": 64,
        "max_model_len": 80,
    }
    return LLMEngine(EngineConfig(model=checkpoint, **(defaults | more)))


def run(engine: LLMEngine) -> tuple[list[list[int]], list[StepRecord]]:
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)
    groups = [
        engine.add_request(f"r{index}", prompt, params)[0]
        for index, prompt in enumerate(repeating_prompts())
    ]
    records = drain(engine)
    return [list(group.first_seq.get_output_token_ids()) for group in groups], records


def looked_ahead(records: list[StepRecord]) -> bool:
    return any(record.execute_model_req.num_lookahead_slots for record in records)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    path = make_checkpoint("llama", tmp_path_factory.mktemp("small"), hidden_size=32)
    add_draft_head(path, 32)
    return path, generate(path, repeating_prompts(), MAX_TOKENS)


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_one_batch(known: tuple[Path, list[list[int]]], lookahead: str) -> None:
    path, tokens = known
    outputs, records = run(make_engine(path, **LOOKAHEADS[lookahead]))
    assert outputs == tokens
    assert looked_ahead(records)
    most_steps = max(record.execute_model_req.num_steps for record in records)
    assert most_steps == (5 if lookahead == "multi-step" else 1), "a draft is verified at once"


@pytest.mark.parametrize("mode", get_args(PreemptionMode))
@pytest.mark.parametrize("lookahead", LOOKAHEADS)
def test_everything_at_once(
    checkpoint: Path, expected: list[list[int]], lookahead: str, mode: str
) -> None:
    """Chunks, cached prefixes and preemptions in a pool that is too small, with lookahead."""
    engine = make_engine(
        checkpoint,
        num_gpu_blocks=24,
        max_num_batched_tokens=21,
        preemption_mode=mode,
        **LOOKAHEADS[lookahead],
    )
    outputs, records = run(engine)
    assert outputs == expected
    assert looked_ahead(records)
    assert mode in {preemption.mode for record in records for preemption in record.preemptions}
    assert records[-1].blocks.prefix_hits > 0
    assert any(
        not group.do_sample
        for record in records
        for group in record.execute_model_req.seq_group_metadata_list
    )


@pytest.mark.parametrize("num_slots", [0, 1, 2])
def test_at_most_as_many_slots_as_are_set(
    known: tuple[Path, list[list[int]]], num_slots: int
) -> None:
    path, tokens = known
    outputs, records = run(make_engine(path, num_scheduler_steps=num_slots + 1))
    assert outputs == tokens
    requests = [record.execute_model_req for record in records]
    assert max(request.num_lookahead_slots for request in requests) == num_slots
    assert max(request.num_steps for request in requests) == num_slots + 1


def make_scheduled(
    manager: BlockManager, seq_id: int, num_tokens: int, params: SamplingParams
) -> ScheduledSequenceGroup:
    """A group in decode; the last one of its tokens is new, and has its slot."""
    seq = Sequence(seq_id, token_inputs([1] * (num_tokens - 1)), 4)
    group = SequenceGroup(f"r{seq_id}", [seq], 0.0, sampling_params=params)
    manager.allocate_slots([seq], manager.get_computed_blocks([seq]))
    group.update_num_computed_tokens(num_tokens - 1)
    seq.data.append_token_id(1, -1.0)
    manager.append_slots([seq])
    return ScheduledSequenceGroup(group, 1, 1, is_prompt=False)


@pytest.mark.parametrize(
    ("lengths", "more", "num_blocks", "expected"),
    [
        ([9], {}, 9, [4]),
        ([9], {"max_tokens": None}, 9, [4]),
        ([], {}, 9, []),
        ([9], {"num_scheduler_steps": 1}, 9, [0]),
        ([9], {"num_scheduler_steps": 2}, 9, [1]),
        ([9], {"num_scheduler_steps": 1, "speculative": "ngram", "num_speculative_tokens": 3}, 9,
         [3]),
        # The budget is for all groups, and for the slot of the step itself.
        ([9, 5], {"max_num_batched_tokens": 8}, 9, [3, 3]),
        ([9, 5], {"max_num_batched_tokens": 7}, 9, [2, 2]),
        ([9, 5], {"max_num_batched_tokens": 3}, 9, [0, 0]),
        # No more than the tokens that may come.
        ([9], {"max_model_len": 12}, 9, [2]),
        ([9], {"max_model_len": 10}, 9, [0]),
        ([9, 10], {"max_model_len": 12}, 9, [2, 1]),
        ([9], {"max_tokens": 4}, 9, [2]),
        ([9], {"max_tokens": 2}, 9, [0]),
        ([9], {"extra_args": {"beam_width": 1}}, 9, [0]),
        # As many as there are blocks for.
        ([7], {}, 2, [1]),
        ([8], {}, 2, [0]),
        ([8, 8], {}, 5, [4, 0]),
        ([8, 7], {}, 5, [4, 1]),
    ],
    ids=str,
)  # fmt: skip
def test_slots_of_a_step_that_decodes(
    lengths: list[int], more: dict[str, Any], num_blocks: int, expected: list[int]
) -> None:
    params: dict[str, Any] = {"max_tokens": 20}
    params |= {name: more[name] for name in ("max_tokens", "extra_args") if name in more}
    defaults: dict[str, Any] = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "max_model_len": 32,
        "num_scheduler_steps": 5,
    }
    settings = {name: value for name, value in more.items() if name not in params}
    manager = BlockManager(num_blocks, 4, enable_prefix_caching=False)
    slots = LookaheadSlots(EngineConfig(**(defaults | settings)), manager)
    scheduled = [
        make_scheduled(manager, index, length, SamplingParams(**params))
        for index, length in enumerate(lengths)
    ]
    extended = slots.extend(scheduled)
    manager.check()
    assert [group.seq_group for group in extended] == [group.seq_group for group in scheduled]
    assert [group.num_lookahead_slots for group in extended] == expected
    for group in extended:
        assert group.num_batched_tokens == 1 + group.num_lookahead_slots
        assert group.token_chunk_size == 1
        assert group.seq_group.state.num_steps == 1 + group.num_lookahead_slots
        seq = group.seq_group.first_seq
        num_slots = len(manager.get_block_table(seq)) * 4
        assert num_slots - 4 < seq.get_len() + group.num_lookahead_slots <= num_slots


def test_a_step_with_a_prompt_has_no_slots_ahead() -> None:
    manager = BlockManager(9, 4, enable_prefix_caching=False)
    config = EngineConfig(max_num_seqs=2, max_model_len=32, num_scheduler_steps=5)
    slots = LookaheadSlots(config, manager)
    decode = make_scheduled(manager, 0, 9, SamplingParams(max_tokens=20))
    assert [group.num_lookahead_slots for group in slots.extend([decode])] == [4]
    prompt_seq = Sequence(1, token_inputs([1] * 5), 4)
    prompt = ScheduledSequenceGroup(
        SequenceGroup("prompt", [prompt_seq], 0.0, sampling_params=SamplingParams()),
        token_chunk_size=5,
        num_batched_tokens=5,
        is_prompt=True,
    )
    manager.allocate_slots([prompt_seq], manager.get_computed_blocks([prompt_seq]))
    assert slots.extend([prompt, decode]) == [prompt, decode]
    assert [group.seq_group.state.num_steps for group in (prompt, decode)] == [1, 1]
