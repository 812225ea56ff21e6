"""Scripted events, applied to states and recorded in memory and in files."""

import contextlib
import functools
import struct
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from seqtop.history import FileStore, FileWriter, file_format
from seqtop.history.file_format import FrameLocation
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from tests.support.random_engine import RandomEngine

MAX_FINISHED = 40


@functools.cache  # several modules have the same
def encoded(seed: int, num_steps: int, **options: Any) -> list[bytes]:
    """The payloads of an `RandomEngine`."""
    return [codec.encode(event) for event in RandomEngine(seed, num_steps, **options)]


def fed(script: list[bytes], *, max_finished: int = MAX_FINISHED) -> EngineState:
    """A new state after all events of `script`."""
    state = EngineState(max_finished=max_finished)
    for payload in script:
        state.apply(parsing.event(payload))
    return state


def append(
    store: MemoryStore | FileWriter, script: list[bytes], state: EngineState, start: int = 0
) -> EngineState:
    """Applies the events of `script` from index `start` on to `state` and adds them to `store`."""
    for number, payload in enumerate(script[start:], start):
        event = parsing.event(payload)
        state.apply(event)
        store.append(number, payload, event, state)
    return state


def assert_same(state: EngineState, wanted: EngineState) -> None:
    for field in msgspec.structs.fields(EngineState):
        assert getattr(state, field.name) == getattr(wanted, field.name), field.name
    assert list(state.requests) == list(wanted.requests)  # in order of arrival


def record_script(path: Path) -> None:
    """Writes a recording of a scripted run of eighty steps."""
    with FileWriter(path) as writer:
        append(writer, encoded(8, 80), EngineState())


def final_state(path: Path) -> EngineState:
    """The state at the end of a recording."""
    with FileStore(path) as recording:
        return recording.at(recording.last)


def frames_of(path: Path) -> list[FrameLocation]:
    """The data frames of a complete recording, from its index."""
    data = path.read_bytes()
    offset, checksum, _ = struct.unpack("<QI8s", data[-20:])
    return file_format.unpack_index(data[offset + 8 : -20], checksum, max_length=len(data))


def unpacked(path: Path) -> bytes:
    """The bytes of a recording as it lies on the disk, and all that its frames unpack to."""
    data = path.read_bytes()
    contents, at = bytearray(), 0
    while (at := data.find(zstandard.FRAME_HEADER, at)) >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # no frame begins there
            contents += zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        at += 4
    return data + bytes(contents)


def traces(data: bytes, words: list[bytes], ids: list[int]) -> list[bytes]:
    """Those of `words`, or of the bytes of `ids` in either order, that are in `data`."""
    forms = [struct.pack(order, number) for number in ids for order in ("<i", ">i")]
    return [secret for secret in (*words, *forms) if secret in data]
