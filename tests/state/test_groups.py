"""Groups of requests and their figures."""

import pytest

from seqtop.state.filter import parse
from seqtop.state.groups import KEYS, group_by
from tests.support.events import wait_reason
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
    assert batch.waited > 0.05
    assert batch.ttft is None
    assert chat.ttft is not None
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
