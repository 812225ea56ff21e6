"""Drafts: the same tokens in fewer passes, whatever is proposed; what is rejected is gone."""

from typing import Any

import pytest

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.engine import LLMEngine
from engine_stub.spec_decode.speculation import Draft, GeneratorOf, SpeculationOutcome
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams, SequenceGroup, SequenceGroupMetadata
from tests.support.running import MakeEngine, drain, greedy, run, tokens

LOOP = [11, 12, 13, 14, 15, 16] * 3


class Oracle:
    """Proposes what is really going to come, up to the place from which it is made to be wrong."""

    def __init__(self, outputs: dict[int, tuple[int, ...]], num_right: int) -> None:
        self.outputs = outputs
        self.num_right = num_right
        self.outcomes: list[SpeculationOutcome] = []

    def propose(self, groups: list[SequenceGroupMetadata], _: GeneratorOf) -> dict[int, Draft]:
        drafts = {}
        for group in groups:
            for seq_id, data in group.seq_data.items():
                assert group.num_speculative_tokens is not None
                first = data.get_output_len()
                draft = list(
                    self.outputs.get(seq_id, ())[first : first + group.num_speculative_tokens]
                )
                for place in range(self.num_right, len(draft)):
                    draft[place] = (draft[place] + 1) % 257
                drafts[seq_id] = Draft(draft)
        return drafts

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        self.outcomes += outcomes


def with_oracle(
    make_engine: MakeEngine, num_right: int, prompts: list[list[int]], *params: Any, **settings: Any
) -> tuple[LLMEngine, list[SequenceGroup], list[StepRecord], Oracle]:
    expected, _ = run(make_engine(), prompts, *params)
    engine = make_engine(speculative="ngram", **settings)
    oracle = Oracle(dict(enumerate(tokens(expected))), num_right)
    engine.worker.model_runner.speculator.proposer = oracle
    groups, records = run(engine, prompts, *params)
    assert tokens(groups) == tokens(expected)
    return engine, groups, records, oracle


@pytest.mark.parametrize(
    ("num_right", "num_sampled"), [(0, [1] * 13), (2, [1, 3, 3, 3, 3]), (4, [1, 5, 5, 2])]
)
def test_as_many_tokens_as_stand_and_one_more(
    make_engine: MakeEngine, num_right: int, num_sampled: list[int]
) -> None:
    num_tokens = sum(num_sampled)
    _, (group,), records, _ = with_oracle(make_engine, num_right, [[5] * 6], greedy(num_tokens))
    assert [
        len(record.updates[0].new_token_ids) for record in records if record.updates
    ] == num_sampled
    drafted = [record.updates[0].num_draft_tokens for record in records if record.updates]
    accepted = [record.updates[0].num_accepted_tokens for record in records if record.updates]
    assert drafted[0] is None
    assert [num for num in accepted[1:] if num is not None] == [
        num - 1 for num, had in zip(num_sampled[1:], drafted[1:], strict=True) if had is not None
    ]
    counts = group.metrics.spec_token_acceptance_counts
    assert counts == [sum(num > place for num in num_sampled) for place in range(5)]
    assert group.first_seq.get_num_computed_tokens() == 6 + num_tokens - 1


def test_rejected_drafts_never_get_into_the_cache(make_engine: MakeEngine) -> None:
    """Blocks that wrong drafts were written to are found under the right tokens only."""
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6, 5, 3, 5]]
    engine, groups, _, _ = with_oracle(make_engine, 1, prompts, greedy(40))
    for number, group in enumerate(groups):
        prompt = group.first_seq.get_token_ids()[:-10]
        (again,) = engine.add_request(f"again-{number}", list(prompt), greedy(10))
        drain(engine)
        assert again.first_seq.data.get_num_cached_tokens() >= len(prompt) - 4
        assert tokens([again])[0] == tokens([group])[0][-10:]


def test_stop_within_a_draft(make_engine: MakeEngine) -> None:
    (free,), _ = run(make_engine(), [[7] * 5], greedy(12))
    output = tokens([free])[0]
    stop = output[3]
    engine = make_engine(speculative="ngram")
    engine.worker.model_runner.speculator.proposer = Oracle({0: output}, 4)
    (group,), records = run(engine, [[7] * 5], greedy(12, stop_token_ids=[stop]))
    assert tokens([group])[0] == output[: output.index(stop) + 1]
    assert group.first_seq.stop_reason == stop
    # All four were right, and the worker knew of no stop.
    (last,) = records[1].updates
    assert last.num_draft_tokens == 4
    assert last.num_accepted_tokens == len(last.new_token_ids) == output.index(stop)
    assert group.metrics.spec_token_acceptance_counts == [2, 1, 1, 1, 1]


def test_one_pass_for_drafts_of_any_length(make_engine: MakeEngine) -> None:
    """Some with drafts, some without, a search beside them: one forward pass each step."""
    prompts = [LOOP, [200, 3, 77], LOOP[:8], [4] * 9]
    params = [greedy(16, allowed_token_ids=[11, 12]), SamplingParams(seed=1, max_tokens=16),
              greedy(9, logprobs=2), BeamSearchParams(beam_width=2, max_tokens=8)]  # fmt: skip
    engine = make_engine(speculative="ngram", num_speculative_tokens=3)
    ours, records = run(engine, prompts, *params)
    theirs, _ = run(make_engine(), prompts, *params)
    for index in (0, 2, 3):
        assert tokens(ours[index : index + 1]) == tokens(theirs[index : index + 1])
    drafted_updates = [
        update for record in records for update in record.updates if update.num_draft_tokens
    ]
    assert len({update.num_draft_tokens for update in drafted_updates}) > 1
    assert any(update.num_accepted_tokens for update in drafted_updates)
    assert any(update.num_accepted_tokens == 0 for update in drafted_updates)
    assert {record.execute_model_req.num_steps for record in records} == {1}
    for record in records:
        drafted = sum(update.num_draft_tokens or 0 for update in record.updates)
        if record.num_prefill_tokens == 0 and record.scheduled:
            num_seqs = len(
                {update.seq.seq_id for update in record.updates if not update.parent_seq_id}
            )
            assert record.num_decode_tokens >= drafted
            assert record.num_decode_tokens <= num_seqs + drafted


def test_penalties_see_the_draft(make_engine: MakeEngine) -> None:
    params = SamplingParams(
        temperature=0, repetition_penalty=1.4, frequency_penalty=0.3, min_tokens=6, max_tokens=14
    )
    for num_right in (1, 4):
        with_oracle(make_engine, num_right, [[5, 9, 5]], params)


def test_seen_states_are_those_that_the_tokens_came_from(make_engine: MakeEngine) -> None:
    engine, (group,), _, oracle = with_oracle(make_engine, 2, [[5] * 6], greedy(9))
    model = engine.worker.model
    output = iter(tokens([group])[0])
    for outcome in oracle.outcomes:
        states = outcome.hidden[: outcome.num_accepted + 1]
        for token_id in model.compute_logits(states).argmax(-1).tolist():
            assert token_id == next(output)
