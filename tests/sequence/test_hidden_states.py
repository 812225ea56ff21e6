"""`HiddenStates`."""

import shutil

import pytest
import torch

from seqtop.sequence import (
    HiddenStates,
    SequenceData,
    SequenceError,
    SequenceGroupMetadata,
)
from seqtop.wire import decode

BACKENDS = ["eager", "aot_eager"]
if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
    BACKENDS.append("inductor")


def groups(*seq_ids: int) -> list[SequenceGroupMetadata]:
    return [
        SequenceGroupMetadata(f"r{i}", False, {i: SequenceData.from_seqs([1])}, None, {i: [0]})
        for i in seq_ids
    ]


def rows(*values: float) -> torch.Tensor:
    return torch.tensor([[value, value] for value in values])


def firsts(tensor: torch.Tensor) -> list[float]:
    return tensor[:, 0].tolist()


def test_hidden_states_know_their_sequences() -> None:
    assert HiddenStates(rows(1, 2), groups(7, 8)).seq_ids == [7, 8]
    assert HiddenStates(rows(1, 2)).seq_ids == []
    with pytest.raises(SequenceError, match="2 hidden states for 1 groups"):
        HiddenStates(rows(1, 2), groups(7))


def test_update_appends_rows() -> None:
    states = HiddenStates(rows(1), groups(7))
    states.update(rows(2, 3), groups(8, 9), rows(20, 30))
    assert states.seq_ids == [7, 8, 9]
    assert firsts(states.hidden_states) == [1, 2, 3]
    assert states.second_last_token_hidden_states is None


def test_update_appends_rows_of_the_last_but_one_token() -> None:
    states = HiddenStates(rows(1), groups(7), rows(10))
    states.update(rows(2), groups(8), rows(20))
    states.update(rows(3), groups(9))
    assert firsts(states.second_last_token_hidden_states) == [10, 20, 0]


def test_a_wrong_update_changes_nothing() -> None:
    states = HiddenStates(rows(1), groups(7))
    with pytest.raises(SequenceError, match="1 hidden states for 2 groups"):
        states.update(rows(2), groups(8, 9))
    assert (states.seq_ids, firsts(states.hidden_states)) == ([7], [1])


def test_prune_keeps_the_given_groups_in_their_order() -> None:
    states = HiddenStates(rows(1, 2, 3), groups(7, 8, 9), rows(10, 20, 30))
    states.prune(groups(9, 5, 7))
    assert states.seq_ids == [9, 7]
    assert firsts(states.hidden_states) == [3, 1]
    assert firsts(states.second_last_token_hidden_states) == [30, 10]
    same = states.hidden_states
    states.prune(groups(9, 7))
    assert states.hidden_states is same
    states.prune([])
    assert (states.seq_ids, len(states.hidden_states)) == ([], 0)


def test_bonus_tokens_put_a_row_before() -> None:
    states = HiddenStates(rows(1, 2, 3), groups(7, 8, 9), rows(10, 20, 30))
    states.expand_with_bonus_tokens({7, 9})
    assert firsts(states.hidden_states) == [10, 1, 2, 30, 3]
    assert states.seq_ids == [7, 8, 9]


@pytest.mark.parametrize("bonus", [set(), {7}], ids=["no sequence", "no rows"])
def test_no_bonus_tokens(bonus: set[int]) -> None:
    states = HiddenStates(rows(1), groups(7), None if bonus else rows(10))
    states.expand_with_bonus_tokens(bonus)
    assert firsts(states.hidden_states) == [1]


def test_hidden_states_that_a_sender_lost() -> None:
    there = decode(bytes.fromhex("94c0c0c0920708"), HiddenStates)
    assert (there.hidden_states, there.seq_ids) == (None, [7, 8])
    with pytest.raises(SequenceError, match="not sent"):
        there.prune(groups(7))
    with pytest.raises(SequenceError, match="not sent"):
        there.update(rows(1), groups(9))
    assert there.seq_ids == [7, 8]
