"""Traces: requests that others recorded or measured, as their arrivals and lengths.

What is read:

- Mooncake's traces, JSON lines, as Dynamo and AIPerf extend them with sessions and delays, and as
  `seqtop.export.mooncake` writes them (https://github.com/kvcache-ai/Mooncake);
- Azure's traces of LLM inference, CSV (https://github.com/Azure/AzurePublicDataset);
- BurstGPT, CSV (https://github.com/HPMLL/BurstGPT);
- conversations in ShareGPT's format, JSON, whose texts a tokenizer has to measure;
- the results of `vllm bench serve --save-detailed`, JSON.
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import shake_128
from typing import Annotated, Final, TypeAlias

import msgspec

from seqtop.process import files
from seqtop.text import format as fmt

MAX_BYTES = 2**30
"""The largest trace that is read."""
FORMATS: Final = (
    "Mooncake or AIPerf (JSON lines), Azure or BurstGPT (CSV), ShareGPT (JSON), or a result of"
    " vllm bench serve --save-detailed (JSON)"
)
"""The formats that are read, for messages."""

_BLOCK_SIZES = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
_MAX_LENGTH: Final = 2**31

Tokenize: TypeAlias = Callable[[str], list[int]]
"""A function that returns the token ids of a text."""
_Length = Annotated[int, msgspec.Meta(ge=0, lt=_MAX_LENGTH)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, lt=1e15)]


class TraceError(Exception):
    """A trace cannot be used; `str()` is a sentence without the file's name."""


class TraceRequest(msgspec.Struct, kw_only=True):
    """A request of a trace. Lengths are tokens, times are seconds."""

    arrival: float | None = None
    """Seconds from the start of the trace; `None` if it follows the one before of its session."""
    delay: float = 0.0
    """Seconds from the end of the one before of its session, if it follows it."""
    input_length: int
    output_length: int
    hash_ids: list[int] | None = None
    """Numbers of the blocks of its prompt, which prompts with the same prefix share."""
    session_id: str = ""
    is_turn: bool = False
    """True if the prompts of its session each begin with the one before and its output."""
    prompt_token_ids: list[int] | None = None
    """The prompt, if its text is known."""
    request_id: str = ""
    priority: int = 0


class Trace(msgspec.Struct, kw_only=True):
    """The requests of a trace, in the order of the file."""

    format: str
    """The name of the format."""
    requests: list[TraceRequest]
    left_out: dict[str, int] = {}
    """Numbers of rows that are no requests, by the reason."""

    def scaled(
        self, *, limit: int | None = None, arrivals: float = 1.0, lengths: float = 1.0
    ) -> Trace:
        """Returns the first `limit` requests, `arrivals` times as fast, `lengths` times as long.

        Numbers of blocks are left as they are: a prompt that is cut shares what is left of it, and
        what a longer one has more is shared with nobody.
        """
        requests = [
            msgspec.structs.replace(
                request,
                arrival=None if request.arrival is None else request.arrival / arrivals,
                delay=request.delay / arrivals,
                input_length=max(round(request.input_length * lengths), 1),
                output_length=max(round(request.output_length * lengths), 1),
            )
            for request in self.requests[:limit]
        ]
        return msgspec.structs.replace(self, requests=requests)

    def fitting(self, max_model_len: int) -> Trace:
        """Returns the requests that fit `max_model_len` tokens, and counts the others.

        What follows a request that does not fit in its session is left out, too.
        """
        requests: list[TraceRequest] = []
        cut: set[str] = set()
        left_out = dict(self.left_out)
        reason = f"longer than {max_model_len:,} tokens"
        for request in self.requests:
            is_cut = bool(request.session_id) and request.session_id in cut
            if is_cut or request.input_length + request.output_length > max_model_len:
                cut.add(request.session_id)
                left_out[reason] = left_out.get(reason, 0) + 1
            else:
                requests.append(request)
        return msgspec.structs.replace(self, requests=requests, left_out=left_out)


class _MooncakeRow(msgspec.Struct):
    """A line of a Mooncake trace. Times are milliseconds."""

    input_length: _Length
    output_length: _Length
    timestamp: _Milliseconds | None = None
    delay: _Milliseconds | None = None
    hash_ids: list[int] | None = None
    request_id: str = ""
    session_id: str | int | None = None
    priority: int = 0


class _BenchResult(msgspec.Struct):
    """The part of a result of `vllm bench serve --save-detailed` that is read. Times: seconds."""

    input_lens: list[_Length]
    output_lens: list[_Length]
    start_times: list[float] | None = None
    request_rate: float | str = "inf"


class _ShareGptTurn(msgspec.Struct):
    """A turn of a conversation."""

    value: str
    speaker: str = msgspec.field(name="from")


class _ShareGpt(msgspec.Struct):
    """A conversation."""

    conversations: list[_ShareGptTurn]
    id: str | int = ""


def read(
    path: str, *, tokenize: Tokenize | None = None, request_rate: float | None = None
) -> Trace:
    """Reads a trace.

    Args:
        path: The file, which may be compressed by gzip.
        tokenize: Measures texts; `None` if there is no tokenizer.
        request_rate: Requests per second, at exponential distances, for a trace without times.

    Raises:
        TraceError: It is no trace.
        OSError: The file cannot be read.
    """
    try:
        data = files.decompressed(files.read(path, MAX_BYTES + 1), MAX_BYTES)
    except ValueError as error:
        raise TraceError(f"it {error}") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"it is no text in UTF-8; what is read is {FORMATS}") from error
    trace = _parse(text, tokenize)
    if not trace.requests:
        raise TraceError("it has no requests")
    return _with_arrivals(trace, request_rate)


def _parse(text: str, tokenize: Tokenize | None) -> Trace:
    start = text.lstrip()[:1]
    try:
        if start == "[":
            return _share_gpt(text, tokenize)
        if start == "{":
            return _bench(text) if '"input_lens"' in text else _mooncake(text)
        return _table(text)
    except RecursionError:
        raise TraceError("it is nested too deeply") from None


def _mooncake(text: str) -> Trace:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    requests: list[TraceRequest] = []
    left_out: Counter[str] = Counter()
    before: dict[str, TraceRequest] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise TraceError(f"line {number} is no request of a trace: {error}") from error
        if not row.input_length or not row.output_length:
            left_out["without a prompt or an output"] += 1
            continue
        session = "" if row.session_id is None else str(row.session_id)
        earlier = before.get(session) if session else None
        # `seqtop.export.mooncake` gives whole prompts with their sessions and times.
        follows = earlier is not None and row.timestamp is None
        is_turn = follows and row.hash_ids is None
        request = TraceRequest(
            arrival=None if row.timestamp is None else row.timestamp / 1e3,
            delay=(row.delay or 0.0) / 1e3,
            input_length=row.input_length,
            output_length=row.output_length,
            hash_ids=row.hash_ids,
            session_id=session,
            is_turn=is_turn,
            request_id=row.request_id,
            priority=row.priority,
        )
        if is_turn and earlier is not None:
            # AIPerf gives the length of what is new in a turn, which follows the whole history.
            earlier.is_turn = True
            request.input_length += earlier.input_length + earlier.output_length
        requests.append(request)
        if session:
            before[session] = request
    return Trace(format="Mooncake", requests=requests, left_out=dict(left_out))


def _table(text: str) -> Trace:
    try:
        rows = csv.reader(io.StringIO(text, newline=""), strict=True)
        header = [name.strip().lower() for name in next(rows, [])]
        read_row = _row_reader(header)
        requests: list[TraceRequest] = []
        left_out: Counter[str] = Counter()
        for row in rows:
            if not row:
                continue
            try:
                request = read_row(dict(zip(header, row, strict=True)))
            except ValueError as error:
                raise TraceError(
                    f"line {rows.line_num} is no request of a trace: {error}"
                ) from error
            if request.input_length and request.output_length:
                requests.append(request)
            else:
                left_out["without a prompt or an output"] += 1
    except csv.Error as error:
        raise TraceError(f"line {rows.line_num} is no CSV: {error}") from error
    first = min((request.arrival or 0.0 for request in requests), default=0.0)
    for request in requests:
        request.arrival = (request.arrival or 0.0) - first
    name = "Azure" if read_row is _azure else "BurstGPT"
    return Trace(format=name, requests=requests, left_out=dict(left_out))


def _row_reader(header: Sequence[str]) -> Callable[[Mapping[str, str]], TraceRequest]:
    if {"timestamp", "contexttokens", "generatedtokens"} <= {*header}:
        return _azure
    if {"timestamp", "request tokens", "response tokens"} <= {*header}:
        return _burst_gpt
    raise TraceError(f"it is no trace that is known; what is read is {FORMATS}")


def _azure(row: Mapping[str, str]) -> TraceRequest:
    # There are seven decimals of a second, of which Python takes six.
    text, _, fraction = row["timestamp"].strip().partition(".")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    digits = fraction.partition("+")[0].rstrip("Z")
    return TraceRequest(
        arrival=moment.timestamp() + (float(f"0.{digits}") if digits else 0.0),
        input_length=_count(row["contexttokens"]),
        output_length=_count(row["generatedtokens"]),
    )


def _burst_gpt(row: Mapping[str, str]) -> TraceRequest:
    arrival = float(row["timestamp"])
    if not math.isfinite(arrival):
        raise ValueError(f"{row['timestamp']!r} is no time")
    return TraceRequest(
        arrival=arrival,
        input_length=_count(row["request tokens"]),
        output_length=_count(row["response tokens"]),
    )


def _count(text: str) -> int:
    count = int(text)
    if not 0 <= count < _MAX_LENGTH:
        raise ValueError(f"{count:,} is no number of tokens")
    return count


def _share_gpt(text: str, tokenize: Tokenize | None) -> Trace:
    try:
        conversations = msgspec.json.decode(text, type=list[_ShareGpt])
    except msgspec.MsgspecError as error:
        raise TraceError(f"it has no conversations as ShareGPT's: {error}") from error
    if tokenize is None:
        raise TraceError("it has texts, whose length depends on a tokenizer: --tokenizer names one")
    requests: list[TraceRequest] = []
    for number, conversation in enumerate(conversations):
        history: list[int] = []
        session = f"{number}-{conversation.id}"
        for turn in conversation.conversations:
            tokens = tokenize(turn.value)
            if turn.speaker in ("gpt", "chatgpt", "assistant", "bing", "bard") and history:
                requests.append(
                    TraceRequest(
                        input_length=len(history),
                        output_length=max(len(tokens), 1),
                        prompt_token_ids=history[:],
                        session_id=session,
                    )
                )
            history += tokens
    return Trace(format="ShareGPT", requests=requests)


def _bench(text: str) -> Trace:
    try:
        result = msgspec.json.decode(text, type=_BenchResult)
        rate = float(result.request_rate)
    except (msgspec.MsgspecError, ValueError) as error:
        raise TraceError(f"it is no result of vllm bench serve --save-detailed: {error}") from error
    times: Sequence[float | None] = result.start_times or [None] * len(result.input_lens)
    try:
        rows = [*zip(times, result.input_lens, result.output_lens, strict=True)]
    except ValueError as error:
        raise TraceError("its input_lens, output_lens and start_times are not as many") from error
    first = min((time for time in times if time is not None), default=0.0)
    requests = [
        TraceRequest(
            arrival=None if time is None else time - first,
            input_length=given,
            output_length=got,
        )
        for time, given, got in rows
        if given and got
    ]
    failed = len(rows) - len(requests)
    left_out = {"without a prompt or an output": failed} if failed else {}
    trace = Trace(format="vllm bench serve", requests=requests, left_out=left_out)
    if result.start_times is None and rate > 0:
        _draw_arrivals(trace.requests, rate)
    return trace


def _with_arrivals(trace: Trace, request_rate: float | None) -> Trace:
    """Returns the trace with a time for each request that follows no other one.

    Raises:
        TraceError: The times are not known.
    """
    seen: set[str] = set()
    without: list[TraceRequest] = []
    for request in trace.requests:
        follows = bool(request.session_id) and request.session_id in seen
        seen.add(request.session_id)
        if request.arrival is None and not follows:
            without.append(request)
    if without and request_rate is None:
        raise TraceError(
            f"{fmt.plural(len(without), 'request')} of it have no time of arrival: --request-rate"
            " gives the requests per second"
        )
    if without and request_rate is not None:
        _draw_arrivals(without, request_rate)
    return trace


def _draw_arrivals(requests: Iterable[TraceRequest], rate: float) -> None:
    """Gives requests arrivals at exponential distances, as `vllm bench serve` does."""
    draw, now = random.Random(0), 0.0
    for request in requests:
        request.arrival = now
        now += draw.expovariate(rate) if math.isfinite(rate) else 0.0


def block_size_of(requests: Iterable[TraceRequest], preferred: int) -> int:
    """Returns the tokens per block of a trace, which does not say it.

    Args:
        requests: The requests.
        preferred: The block size to return if it fits.

    Raises:
        TraceError: The numbers of blocks do not fit the lengths with any block size.
    """
    counts = {
        (request.input_length, len(request.hash_ids)) for request in requests if request.hash_ids
    }
    for size in (preferred, *_BLOCK_SIZES):
        # Some writers number the last block of a prompt also if it is not full.
        if all(count in (length // size, -(-length // size)) for length, count in counts):
            return size
    raise TraceError("the numbers of hash_ids and the input_lengths fit no block size")


_NUM_BYTES = 256
"""The values of a byte."""


class TraceTokens:
    """The tokens of a trace's requests, made up so that prompts share what the trace says.

    Args:
        vocab_size: The number of tokens to draw from.
        block_size: Tokens per block of the trace, see `block_size_of`.
    """

    def __init__(self, vocab_size: int, block_size: int) -> None:
        self._tokens = range(vocab_size)
        self._block_size = block_size

    def prompt(self, request: TraceRequest, number: int) -> list[int]:
        """Returns the prompt of a request.

        Args:
            request: The request.
            number: Its place in the trace, from which follows what it shares with nobody.
        """
        if request.prompt_token_ids is not None:
            return request.prompt_token_ids[: request.input_length]
        if request.is_turn:
            return self._drawn(f"session {request.session_id}", request.input_length)
        prompt: list[int] = []
        for block in request.hash_ids or ():
            prompt += self._drawn(f"block {block}", self._block_size)
        missing = max(request.input_length - len(prompt), 0)
        prompt += self._drawn(f"request {number}", missing)
        return prompt[: request.input_length]

    def output(self, request: TraceRequest, number: int) -> list[int]:
        """Returns the output, with which the prompt of the next request of its session goes on."""
        if request.is_turn:
            total = request.input_length + request.output_length
            return self._drawn(f"session {request.session_id}", total)[request.input_length :]
        return self._drawn(f"output {number}", request.output_length)

    def _drawn(self, seed: str, count: int) -> list[int]:
        """Returns tokens of which the first ones are the same whatever `count` is."""
        if len(self._tokens) < _NUM_BYTES:
            return random.Random(seed).choices(self._tokens, k=count)
        return [*shake_128(seed.encode()).digest(count)]  # a hundred times as fast


def names(requests: Sequence[TraceRequest]) -> Iterator[str]:
    """Yields an id for each request that no other one has."""
    taken: set[str] = set()
    for number, request in enumerate(requests, 1):
        name = request.request_id[:200] or f"request-{number}"
        if name in taken:
            name = f"{name}-{number}"
        taken.add(name)
        yield name


def followers(requests: Sequence[TraceRequest]) -> dict[int, int]:
    """Returns the places of requests that arrive after the end of another one, with its place."""
    last: dict[str, int] = {}
    found: dict[int, int] = {}
    for place, request in enumerate(requests):
        if request.session_id:
            if request.arrival is None and request.session_id in last:
                found[place] = last[request.session_id]
            last[request.session_id] = place
    return found
