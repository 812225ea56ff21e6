import gc
from collections.abc import Iterator

import pytest

from seqtop.process import garbage_collection


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    garbage_collection.restore_defaults()


def test_pausing_restores_what_was_before() -> None:
    with garbage_collection.paused():
        assert not gc.isenabled()
        made: list[list[int]] = [[] for _ in range(10)]
    assert gc.isenabled()
    assert all(any(thing is old for old in gc.get_objects(generation=2)) for thing in made[:1])
    gc.disable()
    with garbage_collection.paused():
        pass
    assert not gc.isenabled()


def test_young_cycles_are_collected_while_frames_are_drawn() -> None:
    default = gc.get_threshold()
    garbage_collection.pause_until_first_frame()
    assert not gc.isenabled()
    garbage_collection.make_full_collections_rare()
    assert gc.isenabled()
    assert gc.get_threshold()[:2] == default[:2]
    assert gc.get_threshold()[2] > default[2]
    garbage_collection.restore_defaults()
    assert gc.get_threshold() == default
