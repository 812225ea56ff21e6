"""Layouts, a recording and its exports are those that are stored."""

import io
from pathlib import Path
from typing import Any

import pytest

import seqtop
from seqtop.export import csv_rows, json_document, perfetto, text
from seqtop.export.lifecycle import EngineRun, read_runs
from seqtop.history import FileStore
from seqtop.history.event_index import EventKind
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.wire import codec, parsing
from tests.golden.conftest import RECORDINGS, Compare
from tests.support import layouts, protocol_examples, public_names, trace_format
from tests.support.recordings import assert_same
from tests.support.stored_run import FORMULA, MISSED

CONNECTION = Connection("run.seqtop", ConnectionState.REPLAY)


@pytest.fixture(scope="module")
def runs(recording: FileStore) -> list[EngineRun]:
    return read_runs(recording)


@pytest.fixture(scope="module")
def ends(recording: FileStore) -> list[EngineState]:
    """The last state of each start of the engine."""
    restart = recording.index.next(EventKind.RESTART, 0)
    assert restart is not None
    return [recording.at(restart - 1), recording.at(recording.last)]


def test_layouts_and_bytes_of_what_is_sent_and_recorded(compare: Compare) -> None:
    compare("layouts.txt", layouts.dump())


@pytest.mark.parametrize("example", layouts.examples(), ids=lambda value: type(value).__name__)
def test_every_field_comes_back_from_its_bytes(example: Any) -> None:
    assert codec.decode(codec.encode(example), type(example)) == example


def test_public_names(compare: Compare) -> None:
    compare("public_names.txt", "\n".join(public_names.lines()))


def test_the_folder_for_authors_of_viewers_and_publishers(updates: bool) -> None:
    files = protocol_examples.files()
    if updates:
        protocol_examples.write(files)
    stored = protocol_examples.stored()
    changed = {name for name in {*files, *stored} if files.get(name) != stored.get(name)}
    assert not changed, "if it is meant: pytest tests/golden --update"


def test_recording_of_this_version_is_read_as_it_was_written(recording: FileStore) -> None:
    assert recording.damage is None
    assert [(gap.restarted, gap.num_missed) for gap in recording.gaps] == [(False, 1), (True, 0)]
    assert recording.gaps[0].position == MISSED + 1
    state = recording.at(recording.first)
    for position, payload in recording.payloads(recording.first, recording.last):
        if payload is None:
            state = recording.at(position)
            continue
        state.apply(parsing.event(payload))
        assert_same(recording.at(position), state)
        assert state.num_anomalies == 0, state.last_anomaly


@pytest.mark.parametrize("path", sorted(RECORDINGS.iterdir()), ids=lambda path: path.stem)
def test_recordings_of_every_released_version_open(path: Path) -> None:
    with seqtop.open(path) as opened:
        assert opened.damage is None
        num_steps = sum(1 for _ in opened)
        assert num_steps > 20
        assert sum(len(state.requests) > 0 for _, state in opened.states()) > num_steps // 2


@pytest.mark.parametrize("number", [0, 1])
def test_json(ends: list[EngineState], number: int, compare: Compare) -> None:
    compare(f"state-{number}.json", json_document.encode(ends[number], CONNECTION).decode())


def test_sequences_as_csv_and_as_tables(
    runs: list[EngineRun],
    ends: list[EngineState],
    compare: Compare,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All texts that have a column for each declared field."""
    file = io.StringIO()
    csv_rows.write_sequences(runs, file)
    assert len(runs[0].requests) > len(ends[0].requests), "the state has forgotten some"
    assert f"'{FORMULA}" in file.getvalue()
    monkeypatch.setenv("COLUMNS", "400")
    tables = [text.table(end, columns=keys) for end in ends for keys in (None, [*FIELDS])]
    compare("sequences.txt", "\n".join([file.getvalue(), *tables]))


def test_csv_of_steps(runs: list[EngineRun], compare: Compare) -> None:
    file = io.StringIO()
    csv_rows.write_steps(runs, file)
    compare("steps.csv", file.getvalue())


def test_perfetto(runs: list[EngineRun], compare: Compare) -> None:
    compare("perfetto.txt", trace_format.Trace(b"".join(perfetto.encode(runs))).lines())
