"""Updates of the view, compared with sorting and filtering everything."""

import math
import random
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.state import EngineState, RequestState, SequenceState, ordering
from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS
from seqtop.state.filter import parse
from seqtop.state.ordering import SequenceView, Sort
from seqtop.state.sort_key import sort_key
from seqtop.wire.arrays import Ints
from tests.support.sequence_states import add, ids

STATUSES = list(SequenceStatus)
FILTERS = ("queue>20", "out>0 -status:stop", "")


def change(state: EngineState, seq_id: int, chance: random.Random) -> None:
    """Give a sequence other figures, drawn from few values so that there are ties."""
    sequence = state.sequences[seq_id]
    request = state.requests[sequence.request_id]
    sequence.status = chance.choice(STATUSES)
    sequence.num_prompt_tokens = chance.randrange(4)
    sequence.num_computed_tokens = chance.randrange(4)
    sequence.output_token_ids = Ints.of([0] * chance.randrange(4))
    sequence.block_table = [0] * chance.randrange(4)
    sequence.text = chance.choice(["", "once", "upon 2", "upon 10", "\0"])
    request.num_preemptions = chance.randrange(3)
    metrics = request.metrics
    metrics.first_token_time = chance.choice([None, metrics.arrival_time + chance.randrange(3)])
    metrics.finished_time = chance.choice([None, 200.0 + chance.randrange(3), math.nan])
    metrics.time_in_queue = chance.choice([None, None, float(chance.randrange(3))])


@pytest.mark.parametrize("key", ["", *FIELDS])
@pytest.mark.parametrize("descending", [False, True])
def test_updates_keep_the_order_that_a_rebuild_makes(key: str, descending: bool) -> None:
    chance = random.Random(f"{key}{descending}")
    state = EngineState(time=150.0)
    kept = SequenceView()
    kept.sort = Sort(key, descending)
    next_id = 0
    for turn in range(75):
        if turn % 25 == 0:
            kept.filter = parse(FILTERS[turn // 25])
            kept.rebuild(state)
        touched = set()
        for _ in range(chance.randrange(4)):
            add(state, next_id, chance)
            touched.add(next_id)
            next_id += 1
        for seq_id in chance.sample(sorted(state.sequences), min(len(state.sequences), 5)):
            change(state, seq_id, chance)
            touched.add(seq_id)
        if len(state.sequences) > 20:
            gone = chance.choice(sorted(state.sequences))
            del state.requests[state.sequences.pop(gone).request_id]
            touched.add(gone)
        state.time += 1
        kept.update(state, touched)
        kept.tick(state)
        fresh = SequenceView()
        fresh.sort, fresh.filter = kept.sort, kept.filter
        fresh.rebuild(state)
        assert ids(kept) == ids(fresh)
        assert kept.queue.ids == fresh.queue.ids
        assert kept.running == {
            seq_id
            for seq_id, sequence in state.sequences.items()
            if sequence.status is SequenceStatus.RUNNING
        }
        assert [kept.index(seq_id) for seq_id in ids(kept)] == list(range(len(kept)))
        assert set(ids(kept)) == {
            seq_id
            for seq_id, sequence in state.sequences.items()
            if kept.filter.matches(state.requests[sequence.request_id], sequence, state.time)
        }


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("key", DEFAULT_COLUMNS)
def test_rows_are_sorted_ties_are_stable_and_the_unknown_is_last(
    key: str, descending: bool
) -> None:
    chance = random.Random(7)
    state = EngineState(time=150.0)
    for seq_id in range(40):
        add(state, seq_id, chance)
        change(state, seq_id, chance)
    view = SequenceView()
    view.sort = Sort(key, descending)
    view.rebuild(state)
    values = [
        FIELDS[key].sort_value(state.requests[f"req-{seq_id}"], state.sequences[seq_id], state.time)
        for seq_id in ids(view)
    ]
    known = [value for value in values if value is not None]
    assert values == known + [None] * (len(values) - len(known))
    if key not in {"request", "text"}:  # these count digits as numbers, see below
        assert known == sorted(known, reverse=descending)
    for (first, value), (second, other) in zip(
        list(zip(ids(view), values, strict=True))[:-1],
        list(zip(ids(view), values, strict=True))[1:],
        strict=True,
    ):
        assert value != other or first < second


def test_a_page_of_nothing_is_empty() -> None:
    view = SequenceView()
    view.rebuild(EngineState())
    assert view.page(-5, 10) == []
    assert view.index(1) is None
    assert view.index(None) is None


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of the sequences whose keys are computed, in order."""
    ids: list[int] = []

    def counting(
        state: EngineState, request: RequestState, sequence: SequenceState, *rest: Any
    ) -> object:
        ids.append(sequence.seq_id)
        return sort_key(state, request, sequence, *rest)

    monkeypatch.setattr(ordering, "sort_key", counting)
    return ids


@pytest.mark.parametrize("number", [100, 5_000])
@pytest.mark.parametrize("key", ["", "out", "queue", "text"])
def test_keys_are_computed_of_touched_sequences_only(
    number: int, key: str, keyed: list[int]
) -> None:
    state, chance = EngineState(time=150.0), random.Random(3)
    for seq_id in range(number):
        add(state, seq_id, chance)
    view = SequenceView()
    view.sort, view.filter = Sort(key, descending=True), parse("req -out>5")
    view.rebuild(state)
    keyed.clear()
    for seq_id in range(30):
        change(state, seq_id, chance)
    view.update(state, set(range(30)))
    view.page(0, 50)
    assert sorted(keyed) == list(range(30))


@pytest.mark.parametrize("number", [100, 5_000])
def test_no_key_is_computed_when_time_passes_even_by_queue_time(
    number: int, keyed: list[int]
) -> None:
    state, chance = EngineState(time=150.0), random.Random(3)
    for seq_id in range(number):
        add(state, seq_id, chance)
    scheduled = state.requests["req-7"].metrics
    scheduled.time_in_queue = 140.0  # longer than any other has waited so far
    view = SequenceView()
    view.sort = Sort("queue", descending=True)
    view.rebuild(state)
    assert ids(view)[0] == 7
    keyed.clear()
    state.time += 200
    view.update(state, set())
    view.tick(state)
    assert ids(view)[-1] == 7
    assert not keyed


def test_no_key_is_computed_of_a_sequence_that_goes_on_running(keyed: list[int]) -> None:
    state, view = EngineState(), SequenceView()
    running(state, 1)
    view.rebuild(state)
    assert keyed == [1]
    state.sequences[1].text = "more"
    assert view.update(state, [1]) == set()
    assert keyed == [1]
    view.filter = parse("-more")
    view.update(state, [1])
    assert not ids(view)


def test_a_filter_by_waiting_time_follows_the_time() -> None:
    state, chance = EngineState(time=150.0), random.Random(3)
    for seq_id in range(5_000):
        add(state, seq_id, chance)
    view = SequenceView()
    view.filter = parse("queue>60")
    view.rebuild(state)
    assert not len(view)
    state.time += 100
    view.tick(state)
    assert len(view) == 5_000


def test_a_text_is_found_as_it_grows_and_looked_at_once() -> None:
    state, chance = EngineState(time=150.0), random.Random(3)
    add(state, 1, chance)
    sequence = state.sequences[1]
    view = SequenceView()
    view.filter = parse("Fox -owl")
    view.rebuild(state)
    is_shown = []
    for delta in ("a little f", "ox", " named Pip ", "and an o", "wl"):
        sequence.text += delta
        view.update(state, {1})
        is_shown.append(1 in view)
    assert is_shown == [False, True, True, True, False]
    sequence.text = "an"  # the engine was asked for the whole again
    view.update(state, {1})
    assert 1 not in view


def test_a_repeated_search_begins_again() -> None:
    state, chance = EngineState(), random.Random(3)
    add(state, 1, chance)
    view, query = SequenceView(), parse("fox")
    view.rebuild(state)
    for text, is_hit in (("an owl and an owl", False), ("a fox", True), ("an owl", False)):
        state.sequences[1].text = text
        view.hits.search(state, query)
        assert (1 in view.hits) == is_hit


def test_updates_keep_the_hits_that_a_new_search_finds() -> None:
    chance = random.Random(2)
    state = EngineState()
    kept = SequenceView()
    kept.sort = Sort("out")
    kept.rebuild(state)
    kept.hits.search(state, parse("text:x"))
    for seq_id in range(60):
        name = f"r{seq_id}"
        state.requests[name] = RequestState(name, RequestMetrics(0, 0, None, None, None), [seq_id])
        state.sequences[seq_id] = SequenceState(seq_id, name)
        touched = {seq_id, *chance.sample(sorted(state.sequences), min(seq_id, 3))}
        for changed_id in touched:
            state.sequences[changed_id].text = chance.choice("xyz")
            state.sequences[changed_id].output_token_ids = Ints.of([0] * chance.randrange(3))
        if seq_id > 20:
            gone = min(state.sequences)
            del state.requests[state.sequences.pop(gone).request_id]
            touched.add(gone)
        kept.update(state, touched)
        rows = kept.page(0, len(kept))
        hits = [row_id for row_id in rows if state.sequences[row_id].text == "x"]
        assert [row_id for row_id in rows if row_id in kept.hits] == hits
        assert [kept.hits.place(row_id) for row_id in hits] == [
            (place, len(hits)) for place in range(1, len(hits) + 1)
        ]
        for row, row_id in enumerate(rows):
            after = [hit for hit in hits if rows.index(hit) > row]
            before = [hit for hit in hits if rows.index(hit) < row]
            if hits:
                assert kept.hits.next(None, 1) == kept.hits.next(-1, -1) == hits[0], "not shown"
                assert kept.hits.next(row_id, 1) == (after or hits)[0]
                assert kept.hits.next(row_id, -1) == (before or hits)[-1]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("arrival", [math.nan, math.inf, -math.inf, 1e308])
def test_an_arrival_at_no_time_moves_no_other_id(descending: bool, arrival: float) -> None:
    """Found by mutated messages: the time was added to the id of such a row."""
    state = EngineState(time=150.0)
    for seq_id in (7, 8):
        add(state, seq_id, random.Random(seq_id))
        state.sequences[seq_id].status = SequenceStatus.WAITING
        state.requests[state.sequences[seq_id].request_id].metrics = RequestMetrics(
            arrival if seq_id == 7 else 100.0, 0.0, None, None, None
        )
    view = SequenceView()
    view.sort = Sort("queue", descending)
    view.rebuild(state)
    view.tick(state)
    assert sorted(view.page(0, 9)) == [7, 8]


def running(state: EngineState, seq_id: int, arrival: float = 1.0, text: str = "") -> None:
    name = f"req-{seq_id}"
    metrics = RequestMetrics(arrival, arrival, None, None, None)
    state.requests[name] = RequestState(name, metrics, [seq_id])
    state.sequences[seq_id] = SequenceState(seq_id, name, SequenceStatus.RUNNING, text=text)


def test_a_search_follows_the_text_of_a_running_sequence() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id in (1, 2):
        running(state, seq_id, text="a f")
    assert view.hits.next(None, 1) is None
    view.rebuild(state)
    view.hits.search(state, parse("fox"))
    assert view.hits.place(1) == (0, 0)
    assert view.hits.next(1, 1) is None
    state.sequences[1].text += "ox"
    view.update(state, [1])
    assert 1 in view.hits
    assert view.hits.place(1) == (1, 1)
    assert view.hits.place(2) == view.hits.place(None) == (0, 1)
    state.sequences[2].status = SequenceStatus.WAITING
    state.sequences[2].text += "ox"
    view.update(state, [2])
    assert view.hits.place(2) == (2, 2)
    view.filter = parse("status:waiting")
    view.rebuild(state)
    assert view.hits.place(2) == (1, 1)
    view.hits.search(state, parse(""))
    assert view.hits.place(2) == (0, 0)


def test_a_search_may_stay_where_it_is() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id, text in enumerate(("owl", "fox", "owl", "fox", "owl")):
        running(state, seq_id, seq_id, text)
    view.rebuild(state)
    view.hits.search(state, parse("fox"))
    assert [view.hits.next(seq_id, 1, here=True) for seq_id in range(5)] == [1, 1, 3, 3, 1]
    assert [view.hits.next(seq_id, 1) for seq_id in range(5)] == [1, 3, 3, 1, 1]
    assert [view.hits.next(seq_id, -1) for seq_id in range(5)] == [3, 3, 1, 1, 3]


@pytest.mark.parametrize("source", ["owl", "-owl"])
def test_another_sequence_with_the_id_of_one_that_is_gone_is_searched_anew(source: str) -> None:
    state, view = EngineState(), SequenceView()
    running(state, 1, text="a long tale of a fox")
    view.filter = parse(source)
    view.rebuild(state)
    view.hits.search(state, parse(source))
    del state.sequences[1], state.requests["req-1"]
    view.update(state, [1])
    assert (len(view), 1 in view.hits, list(view.running)) == (0, False, [])
    running(state, 1, text="an owl, and a long tale of a fox")
    view.update(state, [1])
    assert (1 in view) == (1 in view.hits) == (source == "owl")


def test_a_request_that_arrives_again_at_another_time_moves() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id in (1, 2):
        running(state, seq_id, seq_id)
    view.rebuild(state)
    state.requests["req-1"].metrics.arrival_time = 3.0
    view.update(state, [1])
    assert ids(view) == [2, 1]


def test_the_place_in_the_queue_follows_each_change() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id in (1, 2, 3):
        running(state, seq_id, seq_id)
        state.sequences[seq_id].status = SequenceStatus.WAITING
    view.rebuild(state)
    assert [view.queue.position(seq_id) for seq_id in (1, 2, 3)] == [(0, 1), (1, 1), (2, 2)]
    state.sequences[1].status = SequenceStatus.RUNNING
    view.update(state, [1])
    assert [view.queue.position(seq_id) for seq_id in (1, 2, 3)] == [None, (0, 2), (1, 2)]
    state.requests["req-3"].priority = -1
    view.update(state, [3])
    assert view.queue.ids == [3, 2]
    del state.sequences[3]
    view.update(state, [3])
    assert view.queue.ids == [2]
    assert view.queue.position(3) is None
    view.rebuild(EngineState())
    assert (view.queue.ids, list(view.running), ids(view)) == ([], [], [])


@pytest.mark.parametrize("time", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("descending", [False, True])
def test_a_time_that_no_clock_shows_counts_as_none(time: float, descending: bool) -> None:
    state, view = EngineState(time=time), SequenceView()
    for seq_id, arrival in ((1, 5.0), (2, 7.0)):
        running(state, seq_id, arrival)
        state.sequences[seq_id].status = SequenceStatus.WAITING
    view.sort = Sort("queue", descending)
    view.rebuild(state)
    view.tick(state)
    assert ids(view) == ([1, 2] if descending else [2, 1])
    assert view.index(1) == (0 if descending else 1)


@pytest.mark.parametrize("descending", [False, True])
def test_present_waits_are_compared_with_waits_that_ended(descending: bool) -> None:
    state, view = EngineState(time=10.0), SequenceView()
    running(state, 1, 5.0)
    state.sequences[1].status = SequenceStatus.WAITING
    for seq_id, seconds in ((2, 4.5), (3, 5.5)):
        running(state, seq_id)
        state.requests[f"req-{seq_id}"].metrics.time_in_queue = seconds
    view.sort = Sort("queue", descending)
    view.rebuild(state)
    assert ids(view) == ([3, 1, 2] if descending else [2, 1, 3])
    view.hits.search(state, parse("req"))
    assert [view.hits.place(seq_id)[0] for seq_id in ids(view)] == [1, 2, 3]
    state.time = 11.0
    view.tick(state)
    assert ids(view) == ([1, 3, 2] if descending else [2, 3, 1])
    assert [view.hits.place(seq_id)[0] for seq_id in ids(view)] == [1, 2, 3]
    state.sequences[1].status = SequenceStatus.RUNNING
    state.requests["req-1"].metrics.time_in_queue = 5.0
    view.update(state, [1])
    state.time = 12.0
    view.tick(state)
    assert ids(view) == ([3, 1, 2] if descending else [2, 1, 3])
    state.sequences[1].status = SequenceStatus.WAITING
    state.requests["req-1"].metrics.time_in_queue = None
    view.update(state, [1])
    del state.sequences[1], state.requests["req-1"]
    view.rebuild(state)
    view.tick(state)
    assert ids(view) == ([3, 2] if descending else [2, 3])


def test_a_tree_of_samples_that_wait_moves_as_time_passes() -> None:
    state, view = EngineState(time=10.0), SequenceView()
    running(state, 1, 5.0)
    running(state, 2, 0.0)
    state.requests["req-2"].metrics.time_in_queue = 7.0
    state.requests["req-1"].seq_ids.append(3)
    state.sequences[3] = SequenceState(3, "req-1", SequenceStatus.WAITING)
    state.sequences[1].status = SequenceStatus.WAITING
    view.sort = Sort("queue", descending=True)
    view.rebuild(state)
    assert ids(view) == [2, 1, 3]
    state.time = 13.0
    view.tick(state)
    assert ids(view) == [1, 3, 2]


def test_one_sample_that_is_left_of_several_is_in_no_tree() -> None:
    state, view = EngineState(), SequenceView()
    running(state, 1)
    running(state, 2)
    state.requests["req-1"].seq_ids.append(3)
    state.sequences[3] = SequenceState(3, "req-1", SequenceStatus.RUNNING)
    view.rebuild(state)
    assert view.tree_position(1).is_parent
    assert view.tree_position(3).parent == 1
    state.requests["req-1"].seq_ids.remove(3)
    del state.sequences[3]
    assert view.update(state, [1, 2, 3]) == {1}
    assert view.tree_position(1) == view.tree_position(2) == view.tree_position(3)
    assert not view.tree_position(1).is_parent
    assert ids(view) == [1, 2]


def test_folding_all_after_a_folded_request_has_left_folds_the_others() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id in (1, 2):
        running(state, seq_id)
        state.requests[f"req-{seq_id}"].seq_ids.append(seq_id + 10)
        state.sequences[seq_id + 10] = SequenceState(
            seq_id + 10, f"req-{seq_id}", SequenceStatus.RUNNING
        )
    view.folded.add(1)
    view.rebuild(state)
    assert ids(view) == [1, 2, 12]
    del state.sequences[1], state.sequences[11], state.requests["req-1"]
    view.update(state, [1, 11])
    view.fold_all()
    view.rebuild(state)
    assert ids(view) == [2]


def test_another_state_has_trees_of_its_own() -> None:
    view = SequenceView()
    for whole, numbers in (("x", [1, 3]), ("y", [1, 2])):
        state = EngineState()
        for seq_id in numbers:
            running(state, seq_id)
            state.requests[f"req-{seq_id}"].parent_request_id = whole
        view.rebuild(state)
        assert ids(view) == numbers
        assert [view.tree_position(seq_id).parent for seq_id in numbers] == [None, 1]


def test_a_page_ends_where_the_rows_do() -> None:
    state, view = EngineState(), SequenceView()
    for seq_id in range(5):
        running(state, seq_id, seq_id)
    view.rebuild(state)
    assert view.page(-1, 2) == [0, 1]
    assert view.page(3, 9) == [3, 4]
    assert view.page(5, 9) == view.page(-3, -1) == view.page(0, -1) == []


def test_no_row_is_moved_when_its_key_stays_the_same_or_its_id_is_unknown() -> None:
    state, view = EngineState(), SequenceView()
    running(state, 1)
    view.rebuild(state)
    assert view.update(state, [1, 2]) == set()
    assert ids(view) == [1]
    assert 2 not in view
