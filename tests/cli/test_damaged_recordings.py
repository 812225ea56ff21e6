"""Whole and damaged recordings, given to every command that reads one.

The work of a command is counted in decoded messages and keyframes: it takes no time to be wrong.
"""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from seqtop.cli import COMMANDS
from seqtop.cli.main import main
from seqtop.export.formats import FORMATS
from seqtop.history import FileStore, FileWriter, RecordingError, segments
from seqtop.history.timeline import CompressedData
from seqtop.state import EngineState
from seqtop.whatif.workload import WorkloadError, read_workload
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.random_engine import RandomEngine
from tests.support.recordings import append, fed

READERS = (
    ["check", "FILE"],
    ["check", "FILE", "--slo", "ttft=1s,tpot=1s", "--fail-if", "age>1s"],
    ["check", "FILE", "--baseline", "FILE", "--slo", "ttft=1s,tpot=1s", "--fail-if", "age>1s"],
    ["diff", "FILE", "FILE"],
    ["explain", "FILE", "REQUEST"],
    ["explain", "FILE", "REQUEST", "--who"],
    ["explain", "FILE", "--who"],
    ["explain", "FILE", "--slow"],
    ["explain", "FILE", "--cache"],
    *(["export", "FILE", f"--{form}", "-o", "OUT"] for form in FORMATS),
    ["report", "FILE", "-o", "OUT"],
    ["show", "FILE"],
    ["whatif", "FILE"],  # what it reads before the engine's scheduler runs
)
"""The commands that read a recording to its end."""
OTHERS = {
    "advise": "a recording, as whatif does",
    "attach": "engines",
    "completion": "nothing",
    "demo": "an engine",
    "keygen": "nothing",
    "mcp": "an engine or a recording, for the questions of a client",
    "record": "an engine",
    "replay": "a recording, for the app",
    "serve": "an engine or a recording, for the app",
    "test": "a recording, as whatif does",
}
"""The commands that do not, and what they read."""


class Work:
    """The work of a command."""

    def __init__(self) -> None:
        self.decoded: Counter[bytes] = Counter()
        """The number of times that each message was decoded."""
        self.num_bytes = 0
        """Bytes that were decompressed."""
        self.limit = 0
        """The bytes that may be decompressed; 0 for any number."""

    @property
    def num_decoded(self) -> int:
        return self.decoded.total()

    def decode(self, payload: bytes) -> Event:
        self.decoded[payload] += 1
        return parsing_event(payload)

    def read(self, store: FileStore, data: CompressedData) -> bytes:
        content = read(store, data)
        self.num_bytes += len(content)
        assert not self.limit or self.num_bytes <= self.limit, "it reads on and on"
        return content


parsing_event = parsing.event
read = FileStore._read


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted = Work()
    monkeypatch.setattr(parsing, "event", counted.decode)
    monkeypatch.setattr(FileStore, "_read", lambda store, data: counted.read(store, data))
    return counted


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with several segments, of requests that wait, finish and do not."""
    path = tmp_path_factory.mktemp("damaged") / "run.seqtop"
    with (
        patch.multiple(segments, BATCH_BYTES=4_000, SEGMENT_BYTES=20_000),
        FileWriter(path) as writer,
    ):
        payloads = [codec.encode(event) for event in RandomEngine(7, 60, load=6, num_blocks=24)]
        append(writer, payloads, EngineState())
    return path


def finished(path: Path) -> str:
    """A request that finished, of which the recording has more than one segment."""
    with FileStore(path) as store:
        state = store.at(store.last)
        return max(
            (state.requests[name] for name in state.finished),
            key=lambda request: request.num_scheduled_steps,
        ).request_id


def unfinished(path: Path) -> str:
    """A request that had not finished, and has a first token."""
    with FileStore(path) as store:
        state = store.at(store.last)
        return next(
            request.request_id
            for request in state.requests.values()
            if request.finish_reason is None and request.metrics.first_token_time is not None
        )


@pytest.fixture(scope="module")
def recording_with_gap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that begins in the middle of a run, and has several segments around a gap."""
    path = tmp_path_factory.mktemp("gap") / "run.seqtop"
    engine = RandomEngine(3, 120, load=10)
    payloads = [codec.encode(event) for event in engine]
    first, gap, end = (len(payloads) * share // 10 for share in (2, 5, 6))
    with (
        patch.multiple(segments, BATCH_BYTES=4_000, SEGMENT_BYTES=20_000),
        FileWriter(path) as writer,
    ):
        state = fed(payloads[:first], max_finished=0)
        writer.restore("one", first - 1, state)
        append(writer, payloads[:gap], state, first)
        state = fed(payloads[:end], max_finished=0)
        writer.restore("one", end - 1, state)
        append(writer, payloads, state, end)
    return path


def _names(recording: FileStore, position: int) -> set[str]:
    return set(recording.at(position).requests)


def without_an_end(path: Path) -> str:
    """A request that arrived before a gap and has not finished after it."""
    with FileStore(path) as store:
        gap = store.gaps[0].position
        names = _names(store, gap) & _names(store, store.last) & _names(store, gap - 1)
        return min(names - _names(store, store.first))


def without_an_arrival(path: Path) -> str:
    """A request that arrived in a gap and has not finished after it."""
    with FileStore(path) as store:
        gap = store.gaps[0].position
        return min((_names(store, gap) & _names(store, store.last)) - _names(store, gap - 1))


def of_the_first_keyframe(path: Path) -> str:
    """A request that arrived before the recording begins and finished in a gap."""
    with FileStore(path) as store:
        gap = store.gaps[0].position
        names = _names(store, store.first) & _names(store, gap - 1)
        return min(names - _names(store, gap))


def run(arguments: list[str], path: Path, request: str, out: Path) -> int:
    places = {"FILE": str(path), "REQUEST": request, "OUT": str(out)}
    if arguments[0] == "whatif":
        try:
            with FileStore(path) as store:
                read_workload(store)
        except (RecordingError, WorkloadError):
            return 2
        return 0
    forced = ["--force"] if arguments[0] in ("report", "export") else []
    return main([places.get(word, word) for word in [*arguments, *forced]])


def test_each_command_is_in_one_of_the_lists() -> None:
    commands = {arguments[0] for arguments in READERS}
    assert commands.isdisjoint(OTHERS)
    assert {name.replace("_", "-") for name in COMMANDS} == commands | OTHERS.keys()


@pytest.mark.parametrize(
    "arguments",
    [
        arguments
        for arguments in READERS
        # A baseline is a second recording, and its decisions are read on their own, as by `diff`.
        if arguments[0] in ("check", "explain", "report") and "--baseline" not in arguments
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(
    ("find", "name"),
    [
        (finished, "recording"),
        (unfinished, "recording"),
        (without_an_end, "recording_with_gap"),
        (without_an_arrival, "recording_with_gap"),
        (of_the_first_keyframe, "recording_with_gap"),
    ],
)
def test_each_message_is_decoded_once(
    find: Callable[[Path], str],
    name: str,
    arguments: list[str],
    tmp_path: Path,
    work: Work,
    request: pytest.FixtureRequest,
) -> None:
    path: Path = request.getfixturevalue(name)
    request_id = find(path)
    work.decoded.clear()
    assert run(arguments, path, request_id, tmp_path / "out") in (0, 1)
    assert work.num_decoded
    assert max(work.decoded.values()) == 1


def damaged(whole: bytes, choose: random.Random) -> bytes:
    """A recording with one byte changed, or cut, at any place."""
    at = choose.randrange(len(whole))
    if choose.random() < 0.2:
        return whole[:at]
    return whole[:at] + bytes([whole[at] ^ (1 << choose.randrange(8))]) + whole[at + 1 :]


def ends_of(arguments: list[str], path: Path) -> list[list[str]]:
    """The command at each place where a recording may be cut, if it reads only what is there.

    A state takes the events since the keyframe before it, of which there may be none at the end.
    """
    if arguments[0] != "show":
        return []
    with FileStore(path) as store:
        steps = {store.index[position].step for position in range(store.first, store.last + 1)}
    return [[*arguments, "--at", str(step)] for step in sorted(steps)]


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
@pytest.mark.parametrize(
    "num_places",
    [
        12,
        pytest.param(1_000, marks=[pytest.mark.release("many places"), pytest.mark.timeout(1_800)]),
    ],
)
def test_damage_at_any_byte_makes_no_command_read_longer(
    arguments: list[str], num_places: int, recording: Path, tmp_path: Path, work: Work
) -> None:
    """It reads twice as much at most: after a damaged part, a state is read anew."""
    request = finished(recording)
    num_decoded = num_bytes = 0
    for whole_run in (arguments, *ends_of(arguments, recording)):
        work.decoded.clear()
        work.num_bytes = 0
        assert run(whole_run, recording, request, tmp_path / "out") in (0, 1, 3)
        num_decoded, num_bytes = max(num_decoded, work.num_decoded), max(num_bytes, work.num_bytes)
    assert num_bytes
    choose = random.Random(" ".join(arguments))
    whole, path = recording.read_bytes(), tmp_path / "run.seqtop"
    for _ in range(num_places):
        path.write_bytes(damaged(whole, choose))
        work.decoded.clear()
        work.num_bytes = 0
        work.limit = 2 * num_bytes
        assert run(arguments, path, request, tmp_path / "out") in range(4)
        assert work.num_decoded <= 2 * num_decoded
