"""Trees in the view: descent, updates and folding."""

import random
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.filter import parse
from seqtop.state.ordering import SequenceView, Sort
from seqtop.state.tree import RequestTrees, TreePosition, paths, tree_positions
from seqtop.wire.arrays import Ints


def request(
    state: EngineState, name: str, seq_ids: list[int], arrival: float = 1.0, parent: str = ""
) -> None:
    metrics = RequestMetrics(arrival, arrival, None, None, None)
    state.requests[name] = RequestState(name, metrics, [], parent_request_id=parent)
    for seq_id in seq_ids:
        fork(state, name, seq_id)


def fork(state: EngineState, name: str, seq_id: int, parent: int | None = None) -> None:
    state.requests[name].seq_ids.append(seq_id)
    state.sequences[seq_id] = SequenceState(
        seq_id, name, SequenceStatus.RUNNING, parent_seq_id=parent
    )


def drop(state: EngineState, name: str) -> list[int]:
    seq_ids = state.requests.pop(name).seq_ids
    for seq_id in seq_ids:
        del state.sequences[seq_id]
    return seq_ids


def drawn(view: SequenceView) -> list[str]:
    """Each row as its branch and its id."""
    rows = []
    for seq_id in view.page(0, len(view)):
        position = view.tree_position(seq_id)
        rails = "".join("│" if follows else "." for follows in position.rails[:-1])
        rails += "├" * (position.rails[-1:] == (True,)) + "└" * (position.rails[-1:] == (False,))
        rows.append(f"{rails}{seq_id}" + (f"+{position.num_folded}" if position.num_folded else ""))
    return rows


def viewed(state: EngineState, **changes: Any) -> SequenceView:
    view = SequenceView()
    for name, value in changes.items():
        setattr(view, name, value)
    view.rebuild(state)
    return view


def test_a_tree_of_parts_ends_with_its_last_sequence() -> None:
    state, trees = EngineState(), RequestTrees()
    request(state, "part-1", [1, 2], parent="whole")
    request(state, "part-2", [3], parent="whole")
    for name in ("part-1", "part-2"):
        for seq_id in state.requests[name].seq_ids:
            for _ in range(2):  # the second time, nothing is added
                assert trees.add(state.requests[name], seq_id) == ("whole", True)
    assert trees.members(state, ("whole", True)) == [1, 2, 3]
    assert trees.discard(1) == ("whole", True)
    assert trees.discard(1) is None
    assert trees.members(state, ("whole", True)) == [1, 2, 3], "part-1 has another one"
    assert trees.discard(2) == ("whole", True)
    assert trees.members(state, ("whole", True)) == [3]
    assert trees.discard(3) is None
    assert trees.members(state, ("whole", True)) == []


def test_a_cleared_index_has_no_sequences() -> None:
    state, trees = EngineState(), RequestTrees()
    request(state, "part", [1], parent="whole")
    trees.add(state.requests["part"], 1)
    trees.clear()
    assert trees.members(state, ("whole", True)) == []
    assert trees.discard(1) is None
    trees.add(state.requests["part"], 1)
    assert trees.members(state, ("whole", True)) == [1]


@pytest.fixture
def beams() -> EngineState:
    """A request whose first sequence has forked, and a child of it again; one that is alone."""
    state = EngineState()
    request(state, "beams", [1])
    for seq_id, parent in ((3, 1), (4, 1), (6, 3), (7, 4)):
        fork(state, "beams", seq_id, parent)
    request(state, "alone", [5], arrival=0.5)
    return state


def test_forks_stand_below_what_they_were_forked_from(beams: EngineState) -> None:
    assert drawn(viewed(beams)) == ["5", "1", "├3", "│└6", "└4", ".└7"]


def test_parallel_samples_stand_below_the_first() -> None:
    state = EngineState()
    request(state, "n3", [1, 2, 3])
    assert drawn(viewed(state)) == ["1", "├2", "└3"]


def test_the_parts_of_a_whole_stand_together_though_they_are_requests() -> None:
    state = EngineState()
    request(state, "x-0", [1], arrival=1.0, parent="x")
    request(state, "between", [2], arrival=1.5)
    request(state, "x-1", [3], arrival=2.0, parent="x")
    request(state, "x-2", [4], arrival=3.0)  # part of no request
    view = viewed(state)
    assert drawn(view) == ["1", "└3", "2", "4"]
    gone = drop(state, "x-0")
    view.update(state, gone)
    assert drawn(view) == ["2", "3", "4"]


def test_a_tree_stands_where_its_first_sequence_would() -> None:
    state = EngineState()
    request(state, "pair", [1, 2])
    request(state, "other", [3])
    for seq_id, number in ((1, 1), (2, 9), (3, 5)):
        state.sequences[seq_id].output_token_ids = Ints.of([0] * number)
    assert drawn(viewed(state, sort=Sort("out", descending=True))) == ["1", "└2", "3"]
    assert drawn(viewed(state, sort=Sort("out"))) == ["1", "└2", "3"]
    assert drawn(viewed(state, sort=Sort("out", descending=True), tree=False)) == ["2", "3", "1"]


def test_folding_hides_descendants_and_counts_them(beams: EngineState) -> None:
    view = viewed(beams)
    view.folded = {3}
    view.update(beams, [3])
    assert drawn(view) == ["5", "1", "├3+1", "└4", ".└7"]
    view.fold_all()  # something is folded: so it unfolds
    view.rebuild(beams)
    assert len(view) == 6
    view.fold_all()
    view.rebuild(beams)
    assert drawn(view) == ["5", "1+4"]
    fork(beams, "beams", 8, 7)
    assert 1 in view.update(beams, [8])  # it now counts one more
    assert drawn(view) == ["5", "1+5"]


def test_whose_parent_the_filter_hides_stands_a_level_higher(beams: EngineState) -> None:
    beams.sequences[1].text = beams.sequences[4].text = "dull"
    assert drawn(viewed(beams, filter=parse("-text:dull"), folded={1})) == ["5", "3", "└6", "7"]


def test_a_sibling_that_comes_changes_the_branch_of_the_one_before(beams: EngineState) -> None:
    view = viewed(beams)
    fork(beams, "beams", 9, 1)
    assert view.update(beams, [9]) >= {4, 9}
    assert drawn(view) == ["5", "1", "├3", "│└6", "├4", "│└7", "└9"]


def test_senseless_parents_do_no_harm() -> None:
    state = EngineState()
    request(state, "odd", [1])
    request(state, "other", [7])
    for seq_id, parent in ((2, 3), (3, 2), (4, 4), (5, 99), (6, 7)):
        fork(state, "odd", seq_id, parent)
    assert sorted(view_ids := viewed(state).page(0, 9)) == [1, 2, 3, 4, 5, 6, 7], view_ids
    assert paths(state, [1, 5, 6]) == {1: (1,), 5: (1, 5), 6: (1, 6)}


def test_children_may_be_listed_before_their_parents() -> None:
    state = EngineState()
    request(state, "odd", [1])
    for seq_id in (4, 3, 2):
        fork(state, "odd", seq_id, seq_id - 1)
    assert paths(state, [1, 4, 3, 2]) == {1: (1,), 2: (1, 2), 3: (1, 2, 3), 4: (1, 2, 3, 4)}


def test_deep_descent_ends_at_a_depth_that_can_be_drawn() -> None:
    state = EngineState()
    request(state, "deep", [0])
    for seq_id in range(1, 300):
        fork(state, "deep", seq_id, seq_id - 1)
    known_paths = paths(state, range(300))
    assert max(map(len, known_paths.values())) == 8
    assert list(tree_positions(known_paths.values(), ())) == sorted(known_paths, reverse=True)
    assert tree_positions([(1,)], ()) == {1: TreePosition()}
    assert tree_positions([(1,)], {1}) == {1: TreePosition()}, "it has nothing to hide"


def test_updates_keep_the_tree_that_a_rebuild_makes() -> None:
    chance = random.Random(3)
    state = EngineState(time=9.0)
    kept = SequenceView()
    kept.sort, kept.filter = Sort("out", descending=True), parse("out<3")
    kept.rebuild(state)
    next_id = 0
    for turn in range(150):
        touched = set()
        parent = f"whole{chance.randrange(4)}" * chance.randrange(2)
        request(state, f"{turn}", [next_id], parent=parent)
        touched.add(next_id)
        next_id += 1
        for old in chance.sample(sorted(state.sequences), min(len(state.sequences), 2)):
            fork(state, state.sequences[old].request_id, next_id, old)
            touched.add(next_id)
            next_id += 1
        for seq_id in chance.sample(sorted(state.sequences), min(len(state.sequences), 3)):
            state.sequences[seq_id].output_token_ids = Ints.of([0] * chance.randrange(4))
            touched.add(seq_id)
        if len(state.requests) > 6:
            touched.update(drop(state, chance.choice(sorted(state.requests))))
        fold = chance.choice(sorted(state.sequences))
        kept.folded ^= {fold}
        before = {seq_id: kept.tree_position(seq_id) for seq_id in kept.page(0, len(kept))}
        changed = kept.update(state, touched | {fold})
        fresh = viewed(state, sort=kept.sort, filter=kept.filter, folded=set(kept.folded))
        assert drawn(kept) == drawn(fresh)
        for seq_id in kept.page(0, len(kept)):
            if seq_id in before and before[seq_id] != kept.tree_position(seq_id):
                assert seq_id in changed
