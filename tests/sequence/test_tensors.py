"""`IntermediateTensors`."""

import inspect
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from seqtop.sequence import (
    IntermediateTensors,
)
from seqtop.wire import WireError, decode, encode


def tensors() -> IntermediateTensors:
    return IntermediateTensors(
        {"hidden": torch.arange(6.0).reshape(3, 2), "residual": torch.ones(3)}
    )


@pytest.mark.parametrize("key", [0, None, (0, 1)])
def test_no_other_access(key: Any) -> None:
    with pytest.raises(TypeError, match="a name or a slice"):
        tensors()[key]


def test_slices_cut_every_tensor_and_keep_the_connector_output_and_the_class() -> None:
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


BACKENDS: list[Any] = ["eager", "aot_eager"]
if shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"):
    BACKENDS.append(pytest.param("inductor", marks=pytest.mark.release("compiles C++")))


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
