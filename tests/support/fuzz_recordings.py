"""Mutated recordings, given to everything that reads one.

The frames of a recording are decompressed, changed, compressed and joined again with sizes and
checksums that are right, so that what is wrong with most files is their content.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import zstandard

from seqtop.checks.report import check_recording
from seqtop.export import csv_rows, mooncake, otlp, perfetto, vcr
from seqtop.export.lifecycle import read_runs
from seqtop.export.report import contents, page
from seqtop.gates.condition_gate import ConditionGate
from seqtop.gates.objective_gate import ObjectiveGate
from seqtop.history import FileStore, FileWriter, RecordingError, file_format, segments
from seqtop.history.file_format import AnyHeader, EventsHeader, FinishedHeader, FrameLocation
from seqtop.state import EngineState
from seqtop.state.slo import Slo, parse_objective
from seqtop.wire import codec
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError
from tests.support.fuzz import Feed, require_reason
from tests.support.mutation import Pool, by_meaning, bytewise, plausible
from tests.support.random_engine import RandomEngine
from tests.support.recordings import append, frames_of

Frame = tuple[AnyHeader, bytes]


class MutatedRecordings:
    """Variations of a recording, by default of a random engine's thirty steps.

    Args:
        choose: Chooses what is changed.
        directory: The directory of the file that is written, `run.seqtop`.
        payloads: The messages of the recording.
    """

    def __init__(
        self, choose: random.Random, directory: Path, payloads: list[bytes] | None = None
    ) -> None:
        self._choose = choose
        self._path = directory / "run.seqtop"
        if payloads is None:
            payloads = [codec.encode(event) for event in RandomEngine(choose.randrange(2**32), 30)]
        with (
            patch.multiple(segments, BATCH_BYTES=4_000, SEGMENT_BYTES=12_000),
            FileWriter(self._path, overwrite=True) as writer,
        ):
            append(writer, payloads, EngineState(max_finished=5))
        self._whole = self._path.read_bytes()
        self._frames: list[Frame] = []
        for offset, header in frames_of(self._path):
            data = self._whole[offset : offset + header.size]
            self._frames.append((header, file_format.decompress(data, max_length=header.length)))
        self._pool = Pool([msgspec.msgpack.decode(payload, strict=False) for payload in payloads])

    def write(self) -> bytes:
        """Writes the next variation, and returns its bytes."""
        if self._choose.random() < 0.1:
            data = bytewise(self._choose, self._whole)
        else:
            data = self._joined(self._changed_frames())
        self._path.write_bytes(data)
        return data

    def feed(self) -> bool:
        data = self.write()
        try:
            return self._read()
        except Exception as error:
            raise AssertionError(f"{error!r} from {data!r}") from error

    def _read(self) -> bool:
        """Reads a file as the commands do; returns whether all of it could be read."""
        choose = self._choose
        is_whole = True
        try:
            with FileStore(self._path) as recording:
                recording.require()
                is_whole = not list(recording.unreadable())
                for position in (recording.last, choose.randint(0, recording.last)):
                    try:
                        state = recording.at(position)
                        assert sum(state.num_by_status) == len(state.sequences)
                        for _ in recording.events(position, min(position + 5, recording.last)):
                            pass
                    except RecordingError as error:
                        require_reason(error)
                        is_whole = False
                if choose.random() < 0.1:
                    self._export(recording)
        except RecordingError as error:
            require_reason(error)
            return False
        if choose.random() < 0.05:
            gates = ConditionGate("waited>1us"), ObjectiveGate(parse_objective("ttft=1us,itl=1us"))
            check_recording(str(self._path), gates=gates).as_text()
        return is_whole

    def _export(self, recording: FileStore) -> None:
        with contextlib.suppress(RecordingError):
            times = vcr.TokenTimes()
            runs = read_runs(recording, times)
            workload = mooncake.encode(mooncake.read(runs, 16))
            for _ in chain(
                perfetto.encode(runs), workload, otlp.encode(runs), vcr.encode(runs, times)
            ):
                pass
            with contextlib.suppress(ImportError):
                from seqtop.export import parquet

                tables = Path(self._path.parent, "tables")
                parquet.write(tables, recording, redact=False, overwrite=True)
            with Path(self._path.parent, "rows.csv").open("w") as file:
                csv_rows.write_sequences(runs, file)
            for text in page.write([contents.read(recording, Slo(e2e=1.0))], with_text=True):
                text.encode()

    def _changed_frames(self) -> list[Frame]:
        choose, frames = self._choose, self._frames.copy()
        at = choose.randrange(len(frames))
        header, content = frames[at]
        match choose.randrange(12):
            case 0:
                del frames[at]
            case 1:
                frames.insert(choose.randrange(len(frames)), frames[at])
            case 2 | 3:
                frames[at] = self._changed_header(header), content
            case _:
                frames[at] = self._changed_content(header, content)
        return frames

    def _changed_header(self, header: AnyHeader) -> AnyHeader:
        tree = plausible(self._choose, msgspec.msgpack.decode(codec.encode(header)), self._pool)
        try:
            return codec.decode(msgspec.msgpack.encode(tree), type(header))
        except WireError:
            return header

    def _changed_content(self, header: AnyHeader, content: bytes) -> Frame:
        header = copy.deepcopy(header)
        if isinstance(header, EventsHeader):
            sizes = header.arrays.sizes
            at = self._choose.randrange(len(sizes))
            start = sum(sizes[:at])
            payload = self._changed_payload(content[start : start + sizes[at]])
            content = content[:start] + payload + content[start + sizes[at] :]
            header.arrays.sizes = Ints("q", [*sizes[:at], len(payload), *sizes[at + 1 :]])
        else:
            content = self._changed_payload(content)
            if isinstance(header, FinishedHeader) and self._choose.random() < 0.8:
                with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                    tree: Any = msgspec.msgpack.decode(content, strict=False)
                    header.count = len(tree) if isinstance(tree, list) else 1
        return header, content

    def _changed_payload(self, payload: bytes) -> bytes:
        match self._choose.randrange(10):
            case 0:
                return bytewise(self._choose, payload)
            case 1:
                return by_meaning(self._choose, payload)
        tree = plausible(self._choose, msgspec.msgpack.decode(payload, strict=False), self._pool)
        return msgspec.msgpack.encode(tree)

    def _joined(self, frames: list[Frame]) -> bytes:
        """A file of these frames, with an index or, as after a crash, without."""
        data = bytearray(file_format.FILE_HEADER)
        located: list[FrameLocation] = []
        for header, content in frames:
            compressed = file_format.compress(content, zstandard.ZstdCompressor())
            own = copy.copy(header)
            own.size, own.length = len(compressed), len(content)
            try:
                packed = file_format.pack_header(own)
            except WireError:  # a number that has no form in a file
                continue
            data += packed
            located.append(FrameLocation(len(data), own))
            data += compressed
        if self._choose.random() < 0.5:
            data += file_format.pack_index(located, len(data))
        return bytes(data)


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A recording in a directory of its own."""
    with TemporaryDirectory(prefix="sq") as directory:
        yield MutatedRecordings(choose, Path(directory)).feed
