"""What is to be seen to a few at a time: each once, and nobody is put off for ever."""

from hypothesis import given
from hypothesis import strategies as st

from seqtop.state.backlog import Backlog


@given(st.lists(st.sets(st.integers(0, 50)), max_size=8), st.integers(1, 20))
def test_each_comes_once_after_it_was_added_last(batches: list[set[int]], most: int) -> None:
    backlog, waiting = Backlog(), set[int]()
    for batch in batches:
        backlog.add(batch)
        waiting |= batch
        assert len(backlog) == len(waiting)
        taken = backlog.take(most)
        assert len(taken) == len(set(taken)) == min(most, len(waiting))
        assert waiting.issuperset(taken)
        waiting -= set(taken)
    rest = backlog.take(1_000)
    assert (len(rest), set(rest), len(backlog)) == (len(waiting), waiting, 0)


def test_what_is_touched_again_and_again_keeps_nobody_waiting() -> None:
    backlog, seen = Backlog(), set[int]()
    backlog.add(range(100))
    for _ in range(20):
        seen.update(backlog.take(10))
        backlog.add(range(50))
    assert seen == set(range(100))


def test_what_is_taken_out_does_not_come() -> None:
    backlog = Backlog()
    backlog.add([1, 2, 3])
    backlog.take(1)
    backlog.add([1, 2, 3, 4])
    assert backlog.discard(4)
    assert not backlog.discard(4)
    assert set(backlog.take(10)) == {1, 2, 3}
