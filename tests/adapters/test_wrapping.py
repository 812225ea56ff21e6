"""Wrapped methods: their arguments, their results, and errors that never reach the caller."""

from collections.abc import Iterable
from typing import Any

import pytest

from seqtop.adapters.wrapping import Wrapping


class Adder:
    def add(self, values: Iterable[int]) -> int:
        return sum(values)


def test_a_wrapper_sees_arguments_and_result_and_can_replace_arguments() -> None:
    adder = Adder()
    calls: list[Any] = []
    wrapping = Wrapping(calls.append)
    wrapping.wrap(
        adder,
        "add",
        before=lambda values: (list(values),),
        after=lambda result, values: calls.append((result, values)),
    )
    assert adder.add(iter([1, 2])) == 3
    assert calls == [(3, [1, 2])]
    assert Adder().add([1]) == 1, "other objects of the class are as before"
    assert len(calls) == 1


@pytest.mark.parametrize("place", ["before", "after"])
def test_the_first_error_restores_every_method(place: str) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("injected")

    adder, other = Adder(), Adder()
    errors: list[BaseException] = []
    wrapping = Wrapping(errors.append)
    hooks: dict[str, Any] = {place: fail}
    wrapping.wrap(adder, "add", **hooks)
    wrapping.wrap(other, "add")
    assert adder.add([1, 2]) == adder.add([1, 2]) == 3
    assert [str(error) for error in errors] == ["injected"]
    assert not wrapping.active
    assert not vars(adder)
    assert not vars(other)
