"""Updates of a sequence: its tokens, texts and candidates."""

import pytest

from seqtop.sequence import Logprob, SequenceStatus
from tests.support.reducer_events import delta, prefilled, step, update

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


def test_candidates_are_kept_by_output_position() -> None:
    state = prefilled()
    candidates = {6: Logprob(-0.1, 1, "x"), 8: Logprob(-2.0, 2, "y")}
    state.apply(
        step(
            1,
            delta("a", 1, [5], 3),
            sequences=[
                update(1, RUNNING, 4, new_token_ids=[6], new_logprobs=[-0.1],
                       top_logprobs=[candidates])
            ],
        )
    )  # fmt: skip
    assert state.sequences[1].top_logprobs == {1: candidates}


@pytest.mark.parametrize(
    ("tokens", "text", "decoded", "lengths"),
    [
        ([6], "abc", None, [3]),
        ([6], "", None, [0]),
        ([], "abc", None, []),  # held back until now, and so the token's before
        ([6, 7], "abc", None, [-1, 3]),
        ([6, 7], "", None, [0, 0]),
        ([6, 7], "abc", ["a", "bc"], [1, 2]),
        ([6, 7], "abc", ["", "abc"], [0, 3]),
        ([6, 7], "abc", ["a", "b"], [-1, 3]),
        ([6, 7], "abc", ["abc"], [-1, 3]),
    ],
)
def test_where_tokens_end_is_noted_as_far_as_it_can_be_known(
    tokens: list[int], text: str, decoded: list[str] | None, lengths: list[int]
) -> None:
    state = prefilled()
    candidates = (
        None
        if decoded is None
        else [{token: Logprob(-0.1, 1, each)} for token, each in zip(tokens, decoded, strict=False)]
    )
    more = update(1, RUNNING, 4, new_token_ids=tokens, text_delta=text, top_logprobs=candidates)
    state.apply(step(1, delta("a", 1, [5], 3), sequences=[more]))
    assert state.sequences[1].text_lengths == ([2, *lengths] if tokens else [5])


def test_fork_appears_under_its_request() -> None:
    state = prefilled()
    parent = state.sequences[1]
    parent.top_logprobs = {0: {5: Logprob(-0.5)}}
    touched = state.apply(
        step(1, sequences=[update(2, RUNNING, 3, parent_seq_id=1, request_id="a", block_table=[7])])
    )
    assert list(touched) == [2]
    assert state.requests["a"].seq_ids == [1, 2]
    assert state.sequences[2].parent_seq_id == 1
    assert state.sequences[2].block_table == [7]
    assert state.sequences[2].fork_length == 4
    assert state.sequences[2].top_logprobs == parent.top_logprobs
    assert state.sequences[2].top_logprobs is not parent.top_logprobs
    assert state.sequences[2].text_lengths == [2]
