import gc
import weakref
from collections.abc import Iterator

import pytest

from seqtop import garbage_collection


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    garbage_collection.restore_defaults()


def test_pausing_restores_what_was_before() -> None:
    with garbage_collection.paused():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(10)]
    assert gc.isenabled()
    assert all(any(each is old for old in gc.get_objects(generation=2)) for each in made[:1])
    gc.disable()
    with garbage_collection.paused():
        pass
    assert not gc.isenabled()


class Cycle:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_young_cycles_are_collected_while_frames_are_drawn() -> None:
    default = gc.get_threshold()
    garbage_collection.pause_until_first_frame()
    assert not gc.isenabled()
    garbage_collection.make_collections_rare()
    assert gc.isenabled()
    assert all(
        now > usual for now, usual in zip(gc.get_threshold()[::2], default[::2], strict=True)
    )
    cycle = weakref.ref(Cycle())
    many = [[number] for number in range(10_000)]
    assert cycle() is None, f"still there after {len(many):,} objects"
    garbage_collection.restore_defaults()
    assert gc.get_threshold() == default
