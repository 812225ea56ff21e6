"""Groups of requests and their figures."""

import random

import msgspec
import pytest

from seqtop.state import EngineState
from seqtop.state.filter import parse
from seqtop.state.groups import KEYS, Group, GroupKeyError, group_by, name_by
from seqtop.state.ordering import SequenceView, Sort
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.events import wait_reason
from tests.support.random_runs import RandomRun
from tests.support.scripted import Script, ScriptedSource


@pytest.fixture
def script() -> Script:
    """`chat-2` shares two blocks of `chat-1`, `pair` has two sequences, `batch.1` waits."""
    script = Script(ScriptedSource(), block_size=16)
    script.arrive("chat-1", num_prompt=40)
    script.step(prefill={"chat-1": 40})
    script.arrive("chat-2", num_prompt=48)
    script.arrive("pair", num_prompt=30, n=2, priority=1)
    script.step(prefill={"chat-2": 16, "pair": 30}, share={"chat-2": "chat-1"})
    script.arrive("batch.1", num_prompt=90)
    script.step(waits=[wait_reason("batch.1", "no_blocks", 3)])
    return script


def test_the_figures_of_groups(script: Script) -> None:
    state = script.source.state
    groups = {group.name: group for group in group_by(state, "prefix")}
    chat, pair, batch = groups["chat"], groups["pair"], groups["batch"]
    tables = {
        name: [{*state.sequences[seq_id].block_table} for seq_id in state.requests[name].seq_ids]
        for name in state.requests
    }
    shared = tables["chat-1"][0] & tables["chat-2"][0]
    assert len(shared) == 2
    assert chat.num_blocks == len(tables["chat-1"][0]) + len(tables["chat-2"][0]) - 2
    assert pair.num_blocks == len(set.union(*tables["pair"]))
    assert (chat.num_requests, chat.num_running, chat.num_prompt_tokens) == (2, 2, 88)
    assert (pair.num_requests, pair.num_running, pair.num_prompt_tokens) == (1, 2, 30)
    assert (batch.num_requests, batch.num_waiting, batch.num_blocks) == (1, 1, 0)
    assert (chat.num_output_tokens, batch.num_output_tokens) == (5, 0)
    assert batch.waited_seconds > 0.05
    assert batch.ttft_seconds is None
    assert chat.ttft_seconds is not None
    assert [*groups].index("batch") == len(groups) - 1, "the most blocks come first"


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("prefix", {"chat", "pair", "batch"}),
        ("status", {"running", "waiting"}),
        ("stage", {"decode", ""}),
        ("prio", {"0", "1"}),
        ("why", {"blocks", ""}),
        ("lora", {""}),
    ],
)
def test_the_groups_of_each_key(script: Script, key: str, names: set[str]) -> None:
    state = script.source.state
    groups = group_by(state, key)
    assert {group.name for group in groups} == names
    assert sum(group.num_requests for group in groups) == len(state.requests)


def test_every_key_has_a_test() -> None:
    marks = test_the_groups_of_each_key.pytestmark  # type: ignore[attr-defined]
    assert {case[0] for case in marks[0].args[1]} == {*KEYS}


def test_a_filter_chooses_what_is_counted(script: Script) -> None:
    (group,) = group_by(script.source.state, "prefix", parse("status:waiting"))
    assert (group.name, group.num_requests) == ("batch", 1)


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_groups_follow_each_event(seed: int) -> None:
    """As if all had been counted and sorted again; a group changes its place only with time."""
    run, state, view = RandomRun(seed), EngineState(max_finished=3), SequenceView()
    view.sort, rng = Sort("out", descending=True), random.Random(seed)
    view.grouped.group_by(state, "re:/[0-4]?$/")
    view.rebuild(state)

    class Publisher:
        def publish(self, event: Event) -> None:
            view.update(state, [*state.apply(parsing.event(codec.encode(event)))])
            if not rng.randrange(8):
                view.tick(state)
            rows = view.grouped.page(0, len(view.grouped))
            if rows and not rng.randrange(4):
                view.grouped.toggle(rng.choice(rows))
                rows = view.grouped.page(0, len(view.grouped))
            _check(state, view, rows)

    publisher = Publisher()
    for _ in run.steps(publisher):
        pass
    assert state.num_finished > 3


def _check(state: EngineState, view: SequenceView, rows: list[int]) -> None:
    grouped = view.grouped
    expected = {group.name: group for group in group_by(state, grouped.by)}
    assert [grouped.index(row) for row in rows] == [*range(len(rows))]
    assert grouped.page(1, 3) == rows[1:3]
    found: dict[str, Group] = {}
    order = view.page(0, len(view))
    members: dict[str, list[int]] = {}
    name = ""
    for row in rows:
        if (group := grouped.group(row)) is not None:
            name, found[group.name] = group.name, group
            members[name] = []
        else:
            members[name].append(row)
    assert found.keys() == expected.keys()
    for name, group in found.items():
        assert msgspec.structs.asdict(group) == pytest.approx(
            msgspec.structs.asdict(expected[name]), abs=1e-6
        )
        own = [seq_id for seq_id in order if _group_of(state, seq_id, grouped.by) == name]
        row = next(row for row in rows if (mine := grouped.group(row)) and mine.name == name)
        held = (seq_id for seq_id in own if state.sequences[seq_id].block_table)
        assert grouped.holders(row) == set(held)
        assert members[name] in ([], own)


def _group_of(state: EngineState, seq_id: int, by: str) -> str:
    sequence = state.sequences[seq_id]
    return name_by(by)(state.requests[sequence.request_id], sequence, state.time)


def test_an_expression_names_groups_by_its_first_parenthesis_or_all_that_it_finds(
    script: Script,
) -> None:
    state = script.source.state
    assert {group.name for group in group_by(state, "re:/^(..)/")} == {"ch", "pa", "ba"}
    assert {group.name for group in group_by(state, "re:/[0-9]/")} == {"1", "2", ""}
    with pytest.raises(GroupKeyError, match=r"there are prefix, .* and re:/…/$"):
        group_by(state, "color")


@pytest.mark.parametrize("regex", [r"(a+)+$", r"(?:a|a)*b", r"(a*){30}b", r"[x](a+)+$"])
def test_an_expression_that_may_take_for_ever_is_refused(regex: str) -> None:
    with pytest.raises(GroupKeyError, match="a parenthesis cannot be repeated"):
        name_by(f"re:/{regex}/")


@pytest.mark.parametrize(
    ("regex", "found"),
    [(r"\)+x", ")x"), (r"[)*]+x", ")x"), ("(a)?x", ""), ("y$", ""), ("^a{3}", "aaa")],
)
def test_an_expression_searches_the_beginning_of_an_id(
    script: Script, regex: str, found: str
) -> None:
    request = script.source.state.requests["chat-1"]
    request.request_id = "aaa)x" + "b" * 200 + "y"
    sequence = script.source.state.sequences[request.seq_ids[0]]
    assert name_by(f"re:/{regex}/")(request, sequence, 0.0) == found


def test_rows_of_groups_are_unfolded_one_by_one(script: Script) -> None:
    state, view = script.source.state, SequenceView()
    view.rebuild(state)
    grouped = view.grouped
    grouped.reveal(1)  # without groups there is nothing to unfold
    grouped.group_by(state, "prefix")
    folded = grouped.page(0, 9)
    assert len(folded) == len(grouped) == 3
    names = {row: group.name for row in folded if (group := grouped.group(row)) is not None}
    chat, batch = ({name: row for row, name in names.items()}[own] for own in ("chat", "batch"))
    members = [seq_id for name in ("chat-1", "chat-2") for seq_id in state.requests[name].seq_ids]
    grouped.reveal(members[0])
    unfolded = grouped.page(0, 9)
    at = unfolded.index(chat)
    assert sorted(unfolded[at + 1 : at + 3]) == sorted(members)
    assert [row for row in unfolded if row not in members] == folded
    assert [grouped.index(row) for row in unfolded] == [*range(5)]
    grouped.reveal(members[1])
    assert grouped.page(0, 9) == unfolded, "its group is unfolded already"
    assert (grouped.is_unfolded(chat), grouped.is_unfolded(batch)) == (True, False)
    assert grouped.toggle(members[0]) == chat, "of a sequence, its group is folded"
    assert grouped.page(0, 9) == folded
    assert grouped.toggle(batch) == batch
    assert len(grouped) == 4
    assert grouped.toggle(99) is None
    grouped.toggle_all()
    assert grouped.page(0, 9) == folded, "if one is unfolded, all are folded"
    grouped.toggle_all()
    assert len(grouped) == 3 + len(state.sequences)
