"""`IntermediateTensors` and `HiddenStates`, with real tensors and under `torch.compile`."""

import inspect
import shutil
from pathlib import Path

import pytest
import torch

from seqtop.sequence import (
    HiddenStates,
    IntermediateTensors,
    SequenceData,
    SequenceError,
    SequenceGroupMetadata,
)
from seqtop.wire import WireError, decode, encode


def tensors() -> IntermediateTensors:
    return IntermediateTensors(
        {"hidden": torch.arange(6.0).reshape(3, 2), "residual": torch.ones(3)}
    )


def test_access_by_name_and_slice() -> None:
    stage = tensors()
    assert len(stage) == 2
    assert list(stage.items()) == list(stage.tensors.items())
    assert stage["hidden"] is stage.tensors["hidden"]
    stage["hidden"] = torch.zeros(3, 2)
    assert stage["hidden"].sum() == 0
    part = stage[1:]
    assert isinstance(part, IntermediateTensors)
    assert (part["hidden"].shape, part["residual"].shape) == ((2, 2), (2,))
    with pytest.raises(KeyError):
        stage["absent"]


@pytest.mark.parametrize("key", [0, None, (0, 1)])
def test_no_other_access(key: object) -> None:
    with pytest.raises(TypeError, match="a name or a slice"):
        tensors()[key]


def test_slices_keep_the_connector_output_and_the_class() -> None:
    class Own(IntermediateTensors):
        pass

    part = Own({"a": torch.ones(4)}, kv_connector_output={"done": 1})[:2]
    assert type(part) is Own
    assert part.kv_connector_output == {"done": 1}
    assert tensors().kv_connector_output is None


def test_equality_is_by_class_names_and_elements() -> None:
    assert tensors() == tensors()
    assert tensors() == IntermediateTensors(tensors().tensors, kv_connector_output=1)
    assert tensors() != tensors()[:2]
    assert tensors() != IntermediateTensors({"hidden": tensors()["hidden"]})
    assert tensors() != tensors().tensors
    changed = tensors()
    changed["residual"] = torch.zeros(3)
    assert tensors() != changed
    assert IntermediateTensors({"a": None}) == IntermediateTensors({"a": None})
    assert IntermediateTensors({"a": None}) != IntermediateTensors({"a": torch.ones(1)})


def test_repr_is_of_the_tensors() -> None:
    stage = IntermediateTensors({"a": torch.ones(1)}, kv_connector_output=1)
    assert repr(stage) == "IntermediateTensors(tensors={'a': tensor([1.])})"


def test_connector_output_travels_only_if_set() -> None:
    bare = IntermediateTensors({"a": None})
    assert encode(bare).hex() == "81a774656e736f727381a161c0"
    assert decode(encode(bare), IntermediateTensors)[:1] == bare
    with_output = IntermediateTensors({}, {"done": [1]})
    there = decode(encode(with_output), IntermediateTensors)
    assert there.kv_connector_output == {"done": [1]}
    assert encode(there) == encode(with_output)
    with pytest.raises(WireError, match=r"kv_connector_output: builtins\.object has no form"):
        encode(IntermediateTensors({}, object()))


def test_dynamo_can_find_the_source() -> None:
    source = inspect.getsourcefile(IntermediateTensors.__init__)
    assert Path(source).name == "tensors.py"


def stage_of_a_pipeline(given: IntermediateTensors) -> IntermediateTensors:
    hidden = given["hidden"] * 2
    first = given[0:1]
    given["extra"] = hidden.sum()
    total = sum(tensor.sum() for _, tensor in given.items())
    return IntermediateTensors(
        {"hidden": hidden + len(first), "residual": given["residual"] + total},
        given.kv_connector_output,
    )


BACKENDS = ["eager", "aot_eager"]
if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
    BACKENDS.append("inductor")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_compile_takes_and_returns_them(backend: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(stage_of_a_pipeline, fullgraph=True, backend=backend)
    for output in (None, "report"):
        given, expected = tensors(), tensors()
        given.kv_connector_output = output
        result = compiled(given)
        assert isinstance(result, IntermediateTensors)
        assert result == stage_of_a_pipeline(expected)
        assert result.kv_connector_output == output
        assert given["extra"] == expected["extra"]


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
