"""Lines of changes and tables of groups, of states that are written by hand."""

import io
import json
import threading
from typing import Any, cast

import pytest

from seqtop.export import groups
from seqtop.export.follow import JsonLinesWriter, follow
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state import filter as filters
from seqtop.state.groups import Group
from seqtop.text import format as fmt
from seqtop.transport.connection import Connection, ConnectionState
from tests.support.events import arrival, engine_info, step, update
from tests.support.scripted import ScriptedSource

RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


@pytest.fixture
def state() -> EngineState:
    state = EngineState()
    for event in (
        engine_info(),
        arrival(1),
        arrival(2),
        step(0, sequences=[update(1, RUNNING, 3)]),
    ):
        state.apply(event)
    return state


def lines(written: bytes | None) -> list[tuple[str, list[int], list[int]]]:
    """Returns of each line the kind, the sequences that are gone and those that are shown."""
    documents: list[dict[str, Any]] = [*map(json.loads, (written or b"").splitlines())]
    return [
        (own["kind"], own.get("gone", []), [it["seq"] for it in own.get("sequences", [])])
        for own in documents
    ]


def test_a_line_has_what_has_changed_and_what_is_not_shown_any_more(state: EngineState) -> None:
    writer = JsonLinesWriter(["computed"], filters.parse("status:running"))
    connection = Connection("ipc:///run/demo", ConnectionState.LIVE)
    assert lines(writer.line(state, connection, {1})) == [("state", [], [1])]
    assert writer.line(state, connection, set()) is None
    state.apply(step(1, sequences=[update(1, computed=4)]))
    assert lines(writer.line(state, connection, {1})) == [("change", [], [1])]
    state.apply(step(2, sequences=[update(2, RUNNING, 3)]))
    assert lines(writer.line(state, connection, {2})) == [("change", [], [2])]
    state.apply(step(3, sequences=[update(1, WAITING, 0)]))
    assert lines(writer.line(state, connection, {1})) == [("change", [1], [])]
    assert lines(writer.line(state, connection, {1, 99})) == [("change", [], [])]
    connection.state = ConnectionState.LOST
    assert lines(writer.line(state, connection, set())) == [("change", [], [])]
    assert lines(writer.line(state, connection, None)) == [("state", [], [2])]
    assert lines(writer.end(state, connection, "over")) == [("end", [], [])]


def test_time_alone_changes_what_is_shown(state: EngineState) -> None:
    """The second request arrived at 2 s and waits; the first one runs."""
    writer = JsonLinesWriter(filter_=filters.parse("waited>200s status:waiting"))
    connection = Connection("ipc:///run/demo", ConnectionState.LIVE)
    state.time = 201.0
    assert lines(writer.line(state, connection, None)) == [("state", [], [])]
    assert writer.line(state, connection, set()) is None
    state.time = 203.0
    assert lines(writer.line(state, connection, set())) == [("change", [], [2])]
    assert writer.line(state, connection, set()) is None


def test_the_last_line_says_that_it_was_interrupted() -> None:
    source, file, ended = ScriptedSource(engine_info(), arrival(1)), io.BytesIO(), threading.Event()
    ended.set()
    follow(cast(Session, source), JsonLinesWriter(), file, every=0.0, ended=ended)
    assert lines(file.getvalue()) == [("state", [], [1]), ("end", [], [])]
    assert json.loads(file.getvalue().splitlines()[-1])["reason"] == "interrupted"


def test_groups_as_text() -> None:
    named = Group("long", 2, 1, 1, 30, 1_200, 7, 3, 1.5, 0.25, 0.5)
    rows = groups.as_text([named, Group("", 1)], "request", 40).splitlines()
    assert rows[0].split() == ["request", *" ".join(groups.TITLES).split()]
    assert rows[1].split() == "long 2 1 1 30 75% 1,200 7 3 1.50 s 250 ms 500 ms".split()
    assert rows[2].split() == f"(none) 1 0 0 0 0% 0 0 0 0 s {fmt.UNKNOWN} {fmt.UNKNOWN}".split()
    assert groups.as_text([named], "request", None).splitlines()[1].split()[5] == "1,200"
