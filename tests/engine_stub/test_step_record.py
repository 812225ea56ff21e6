"""The records of steps."""

import itertools

import pytest

from seqtop.sequence import SamplingParams
from tests.support.running import MakeEngine


def test_updates_bring_tokens_logprobs_and_text(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=3, ignore_eos=True)
    (group,) = engine.add_request("r", "Hi there", params)
    updates = []
    while engine.has_unfinished_requests():
        record = engine.step()
        assert [group.seq_group for group in record.scheduled] == [
            engine.seq_groups.get(update.request_id, group) for update in record.updates
        ]
        updates += record.updates
    seq = group.first_seq
    tokens = list(itertools.chain.from_iterable(update.new_token_ids for update in updates))
    logprobs = list(itertools.chain.from_iterable(update.new_logprobs for update in updates))
    assert tokens == list(seq.get_output_token_ids())
    assert len(tokens) == 12
    assert logprobs == seq.output_logprobs
    assert "".join(update.text_delta for update in updates) == seq.output_text
    assert seq.get_cumulative_logprob() == pytest.approx(
        sum(candidates[token].logprob for token, candidates in zip(tokens, logprobs, strict=True))
    )
    for token, candidates in zip(tokens, logprobs, strict=True):
        assert len(candidates) == 3
        assert candidates[token].rank == 1
        assert candidates[token].decoded_token == engine.tokenizer.decode([token])
