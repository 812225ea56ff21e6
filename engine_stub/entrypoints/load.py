"""Workloads in the Mooncake format as a load for the engine.

A row is a request with the time of its arrival, its lengths, and numbers of the blocks of its
prompt. The tokens of a block are made up from its number, so that prompts share the prefixes that
those of the workload shared. `seqtop.export.mooncake` writes the format; the traces of Mooncake,
Dynamo and AIPerf have it, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from seqtop.process import files
from seqtop.sequence import SamplingParams

if TYPE_CHECKING:
    from engine_stub.entrypoints.server import EngineServer
    from engine_stub.step_record import StepRecord

MAX_BYTES = 2**28
"""The largest workload that is read."""
_MAX_NAME = 200
_BLOCK_SIZES = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)

_Length = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class LoadError(Exception):
    """A workload cannot be run; `str()` is a sentence without the file's name."""


class LoadRow(msgspec.Struct):
    """A request of a workload. Lengths are tokens."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, lt=1e13)]
    """Milliseconds from the start of the workload."""
    input_length: _Length
    output_length: _Length
    hash_ids: list[int] | None = None
    request_id: str = ""
    priority: int = 0


def read(path: str) -> list[LoadRow]:
    """Reads a workload, a JSON object per line; returns its rows in the order of their arrivals.

    Raises:
        LoadError: It is no such workload.
        OSError: The file cannot be read.
    """
    data = files.read(path, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise LoadError(f"it is larger than {MAX_BYTES >> 20:,} MiB")
    decoder = msgspec.json.Decoder(LoadRow)
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            try:
                rows.append(decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise LoadError(f"line {number} is no request of a workload: {error}") from error
    if not rows:
        raise LoadError("it has no requests")
    return sorted(rows, key=lambda row: row.timestamp)


def block_size_of(rows: Sequence[LoadRow], preferred: int) -> int:
    """Returns the tokens per block of a workload, which does not say it.

    Args:
        rows: The workload.
        preferred: The block size to return if it fits.

    Raises:
        LoadError: The numbers of blocks do not fit the lengths with any block size.
    """
    counts = {(row.input_length, len(row.hash_ids)) for row in rows if row.hash_ids}
    for size in (preferred, *_BLOCK_SIZES):
        # Some writers number the last block of a prompt also if it is not full.
        if all(count in (length // size, -(-length // size)) for length, count in counts):
            return size
    raise LoadError("the numbers of hash_ids and the input_lengths fit no block size")


class LoadSource:
    """Adds the requests of a workload when they are due, and is a `RequestSource`.

    Args:
        rows: The workload, in the order of the arrivals.
        max_model_len: The most tokens of a prompt and its output.
        vocab_size: The tokens of the model.
        block_size: Tokens per block of the engine, which the workload's may differ from.
        clock: The engine's clock, epoch seconds.

    Raises:
        LoadError: The engine cannot run the workload.
    """

    def __init__(
        self,
        rows: Sequence[LoadRow],
        *,
        max_model_len: int,
        vocab_size: int,
        block_size: int,
        clock: Callable[[], float],
    ) -> None:
        for row in rows:
            if row.input_length + row.output_length > max_model_len:
                raise LoadError(
                    f"a request of {row.input_length:,} + {row.output_length:,} tokens does not fit"
                    f" the engine's max_model_len of {max_model_len:,}"
                )
        self._block_size = block_size_of(rows, block_size)
        self._rows = rows
        self._tokens = range(vocab_size)
        self._clock = clock
        self._next = 0
        self._start: float | None = None
        self._names: set[str] = set()

    def serve(self, server: EngineServer) -> None:
        """Adds the requests that are due. Their times count from the first call."""
        now = self._clock()
        if self._start is None:
            self._start = now
        while self._next < len(self._rows):
            row = self._rows[self._next]
            due = self._start + row.timestamp / 1e3
            if due > now:
                return
            self._next += 1
            params = SamplingParams(temperature=0.0, max_tokens=row.output_length, ignore_eos=True)
            prompt = self._prompt(row)
            server.add(self._name(row), prompt, params, row.priority, arrival_time=due)

    def stepped(self, record: StepRecord) -> None:
        """Does nothing: a workload does not wait for results."""

    def _name(self, row: LoadRow) -> str:
        name = row.request_id[:_MAX_NAME] or f"load-{self._next}"
        if name in self._names:
            name = f"{name}-{self._next}"
        self._names.add(name)
        return name

    def _prompt(self, row: LoadRow) -> list[int]:
        """Returns the tokens of a prompt; those of a block depend on its number only."""
        prompt: list[int] = []
        for number in row.hash_ids or ():
            prompt += random.Random(f"block {number}").choices(self._tokens, k=self._block_size)
        # What has no number is shared with nobody.
        missing = max(row.input_length - len(prompt), 0)
        prompt += random.Random(f"row {self._next}").choices(self._tokens, k=missing)
        return prompt[: row.input_length]
