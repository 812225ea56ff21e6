"""Traces of others: their formats, and requests that share what the trace says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from seqtop.whatif import traces
from seqtop.whatif.trace_options import read_trace
from seqtop.whatif.trace_workload import trace_workload
from seqtop.whatif.traces import Trace, TraceError, TraceTokens
from tests.support.events import engine_info

ROW = {"timestamp": 0, "input_length": 20, "output_length": 5}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def read(folder: Path, content: str | bytes, **options: Any) -> Trace:
    path = folder / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return traces.read(str(path), **options)


MOONCAKE = lines(
    {"timestamp": 0, "input_length": 600, "output_length": 50, "hash_ids": [0, 1]},
    {"timestamp": 1500, "input_length": 700, "output_length": 40, "hash_ids": [0, 2]},
    {"timestamp": 2000, "input_length": 700, "output_length": 0, "hash_ids": [0, 3]},
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:05.4799600,3180,8\n"
)
BURST_GPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "45,GPT-4,1087,0,1087,API log\n"
    "118,ChatGPT,417,276,693,Conversation log\n"
)
BENCH = json.dumps(
    {"request_rate": "inf", "input_lens": [7, 9, 5], "output_lens": [3, 4, 0]}, indent=1
)


@pytest.mark.parametrize(
    ("content", "name", "rows", "left_out"),
    [
        (MOONCAKE, "Mooncake", [(0.0, 600, 50), (1.5, 700, 40)], 1),
        (AZURE, "Azure", [(0.0, 4808, 10), (1.5, 3180, 8)], 0),
        (BURST_GPT, "BurstGPT", [(0.0, 472, 18), (113.0, 417, 276)], 1),
        (BENCH, "vllm bench serve", [(0.0, 7, 3), (0.0, 9, 4)], 1),
    ],
)
def test_each_format_has_its_arrivals_and_lengths(
    tmp_path: Path, content: str, name: str, rows: list[tuple[float, int, int]], left_out: int
) -> None:
    for form in (content, "\ufeff" + content, gzip.compress(content.encode())):
        trace = read(tmp_path, form)
        assert trace.format == name
        found = [(own.arrival, own.input_length, own.output_length) for own in trace.requests]
        assert found == [(pytest.approx(time), given, got) for time, given, got in rows]
        assert sum(trace.left_out.values()) == left_out


def test_the_turns_of_a_session_follow_each_other(tmp_path: Path) -> None:
    turn = {"session_id": "a", "input_length": 100, "output_length": 10}
    trace = read(
        tmp_path, lines({**turn, "timestamp": 0}, {**ROW, "timestamp": 5}, {**turn, "delay": 250})
    )
    first, other, second = trace.requests
    assert (second.arrival, second.delay) == (None, 0.25)
    assert [own.is_turn for own in trace.requests] == [True, False, True]
    assert second.input_length == 100 + 10 + 100  # the whole history, and what is new
    assert traces.followers(trace.requests) == {2: 0}
    tokens = TraceTokens(1000, 16)
    history = tokens.prompt(first, 0) + tokens.output(first, 0)
    assert [len(tokens.output(own, place)) for place, own in enumerate(trace.requests)] == [
        10,
        5,
        10,
    ]
    assert tokens.prompt(second, 2)[: len(history)] == history
    assert len(tokens.prompt(second, 2)) == second.input_length
    assert tokens.prompt(other, 1)[:5] != history[:5]


def test_conversations_are_measured_by_a_tokenizer(tmp_path: Path) -> None:
    conversation = [
        {"from": "human", "value": "a b c"},
        {"from": "gpt", "value": "d e"},
        {"from": "human", "value": "f"},
        {"from": "gpt", "value": "g h i"},
        {"from": "human", "value": "never answered"},
    ]
    content = json.dumps([{"id": "x", "conversations": conversation}])

    def tokenize(text: str) -> list[int]:
        return [*map(ord, text.split())] if len(text) < 8 else [0]

    trace = read(tmp_path, content, tokenize=tokenize, request_rate=2.0)
    assert [own.prompt_token_ids for own in trace.requests] == [
        [*map(ord, "abc")],
        [*map(ord, "abcdef")],
    ]
    assert [own.output_length for own in trace.requests] == [2, 3]
    assert [own.arrival for own in trace.requests] == [0.0, None]
    with pytest.raises(TraceError, match="--tokenizer"):
        read(tmp_path, content)
    with pytest.raises(TraceError, match="1 request of it have no time of arrival: --request-rate"):
        read(tmp_path, content, tokenize=tokenize)


def test_prompts_share_the_blocks_that_the_trace_numbers(tmp_path: Path) -> None:
    first, second = read(tmp_path, MOONCAKE).requests
    size = traces.block_size_of([first, second], 16)
    assert size == 512
    tokens = TraceTokens(1000, size)
    one, two = tokens.prompt(first, 0), tokens.prompt(second, 1)
    assert one[:512] == two[:512]
    assert one[512:] != two[512:600]
    assert (len(one), len(two)) == (600, 700)


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        ([(100, 7), (16, 1)], 16),
        ([(100, 6), (40, 2)], 16),  # without the blocks that are not full
        ([(6755, 14), (7319, 15), (2287, 5)], 512),  # Mooncake's own
        ([(5, 0)], 16),
    ],
)
def test_the_block_size_is_derived_from_the_lengths(
    counts: list[tuple[int, int]], size: int
) -> None:
    rows = [
        traces.TraceRequest(input_length=length, output_length=1, hash_ids=[*range(count)])
        for length, count in counts
    ]
    assert traces.block_size_of(rows, 16) == size


def test_a_trace_is_scaled_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, MOONCAKE).scaled(arrivals=3.0, lengths=0.5)
    assert [own.arrival for own in trace.requests] == [0.0, 0.5]
    assert [own.input_length for own in trace.requests] == [300, 350]
    assert len(trace.scaled(limit=1).requests) == 1
    turn = {"session_id": "a", "input_length": 8, "output_length": 2}
    turns = read(tmp_path, lines({**turn, "timestamp": 0}, {**turn, "delay": 1_000}))
    assert [own.delay for own in turns.scaled(arrivals=4.0).requests] == [0.0, 0.25]
    fitting = trace.fitting(340)
    assert len(fitting.requests) == 1
    assert fitting.left_out == {"without a prompt or an output": 1, "longer than 340 tokens": 1}


def test_turns_after_one_that_does_not_fit_are_left_out(tmp_path: Path) -> None:
    turn = {"session_id": "a", "input_length": 100, "output_length": 10}
    trace = read(tmp_path, lines({**turn, "timestamp": 0}, {**turn, "delay": 1}, ROW))
    assert len(trace.fitting(150).requests) == 2
    assert len(trace.fitting(109).requests) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it is no trace that is known; what is read is Mooncake or AIPerf"),
        ("{}\n", "line 1 is no request of a trace: Object missing required field `input_length`"),
        (lines({**ROW, "timestamp": -1}), "line 1 is no request of a trace"),
        (lines(ROW, {**ROW, "hash_ids": ["a"]}), "line 2 is no request of a trace"),
        (lines({**ROW, "output_length": 0}), "it has no requests"),
        ("[" * 100_000, "ShareGPT"),
        ("a,b\n1,2\n", "it is no trace that is known"),
        (b"\xff\xfe\x00", "it is no text in UTF-8"),
        (b"\x1f\x8bno", "it cannot be decompressed"),
        (AZURE + "2023-11-16 18:17:05,1\n", "line 4 is no request of a trace"),
        (AZURE + "yesterday,1,1\n", "line 4 is no request of a trace"),
        (BURST_GPT + "nan,x,1,1,2,y\n", "line 5 is no request of a trace: 'nan' is no time"),
        (BURST_GPT + "1,x,-1,1,2,y\n", "line 5 is no request of a trace: -1 is no number"),
        ('{"input_lens": [1], "output_lens": []}', "are not as many"),
        ('{"input_lens": [1], "output_lens": [1], "request_rate": "x"}', "no result of vllm bench"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(TraceError, match=words):
        read(tmp_path, content)


def test_blocks_that_fit_no_size_are_named(tmp_path: Path) -> None:
    rows = read(tmp_path, lines({**ROW, "hash_ids": [*range(30)]})).requests
    with pytest.raises(TraceError, match="fit no block size"):
        traces.block_size_of(rows, 16)


def test_every_request_has_an_id_of_its_own(tmp_path: Path) -> None:
    named = {**ROW, "request_id": "a"}
    rows = read(tmp_path, lines(named, named, ROW)).requests
    assert [*traces.names(rows)] == ["a", "a-2", "request-3"]


def test_texts_need_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text('[{"conversations": [{"from": "human", "value": "a"}]}]')
    with pytest.raises(TraceError, match="depends on a tokenizer: --tokenizer names one"):
        read_trace(str(path), tokenizer=None)


def test_a_workload_has_the_arrivals_and_the_sessions_of_its_trace(tmp_path: Path) -> None:
    """Times are those after the start of the engine, at 1 s."""
    turn = {"session_id": "a", "input_length": 8, "output_length": 2}
    rows = {**turn, "timestamp": 0}, {**ROW, "timestamp": 2_500}, {**turn, "delay": 250}
    requests = trace_workload(read(tmp_path, lines(*rows)), engine_info()).requests
    first, other, second = requests.values()
    assert (first.arrival.arrival_time, other.arrival.arrival_time) == (1.0, 3.5)
    assert [own.lag for own in requests.values()] == [0.0] * 3
    assert (second.follows, second.delay) == (first.arrival.request_id, 0.25)
    assert (first.follows, other.follows) == (None, None)
    assert all(own.answer.is_whole and not own.is_cut for own in requests.values())
    prompt = first.prompt_token_ids() + first.answer.token_ids
    assert second.prompt_token_ids()[: len(prompt)] == prompt


@pytest.mark.parametrize(
    ("content", "arrivals"),
    [
        (AZURE.replace("2023-11-16 18:17:03.9799600", "2023-11-16 20:17:04+02:00"), [0.0, 1.47996]),
        (BURST_GPT.replace("\n5,", "\n0,"), [0.0, 118.0]),
        (
            json.dumps({**json.loads(BENCH), "start_times": [50.5, 50.0, 51.0]}),
            [0.5, 0.0],
        ),
    ],
)  # fmt: skip
def test_arrivals_are_counted_from_the_first_one(
    tmp_path: Path, content: str, arrivals: list[float]
) -> None:
    found = [own.arrival for own in read(tmp_path, content).requests]
    assert found == pytest.approx(arrivals)


@pytest.mark.parametrize(
    ("rate", "is_known"), [(0.5, True), (1.0, True), ("inf", True), (0, False)]
)
def test_a_benchmark_has_the_arrivals_of_its_rate(
    tmp_path: Path, rate: float | str, is_known: bool
) -> None:
    content = json.dumps({"request_rate": rate, "input_lens": [7, 9], "output_lens": [3, 4]})
    if not is_known:
        with pytest.raises(TraceError, match="2 requests of it have no time of arrival"):
            read(tmp_path, content)
        return
    first, second = (own.arrival for own in read(tmp_path, content).requests)
    assert first == 0.0
    assert second is not None
    assert (second > 0) is (rate != "inf")
