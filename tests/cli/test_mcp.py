"""`seqtop mcp`: a client of the protocol starts it, and asks."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import psutil
import pytest

from seqtop import demo
from seqtop.history import FileStore
from seqtop.state import EngineState
from seqtop.state.verdict import of_last_minute, of_whole
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineInfo, Event, RequestArrived
from tests.support.commands import SEQTOP, assert_one_sentence, run_here
from tests.support.forked import start
from tests.support.greedy_runs import record_run
from tests.support.waiting import SECONDS, pauses

mcp = pytest.importorskip("mcp", reason="mcp is not installed")

RUN = str(demo.RECORDED_RUN)
NUM_REQUESTS, BLOCKS = 12, 12
MAX_BYTES = 2_000
FEW_SECONDS = str(3 * SECONDS)


class Asking:
    """A client that has started the server."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def ask(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Returns an answer, whose announced form the client checks."""
        result = await self._client.call_tool(name, arguments)
        (content,) = result.content
        assert not result.is_error, content.text
        assert len(content.text.encode()) <= MAX_BYTES
        assert json.loads(content.text) == result.structured_content
        return dict(result.structured_content)

    async def error(self, name: str, **arguments: Any) -> str:
        """Returns the sentence of an error."""
        result = await self._client.call_tool(name, arguments)
        (content,) = result.content
        assert result.is_error
        return str(content.text)

    async def limits_once(self, condition: Callable[[Any], bool]) -> dict[str, Any]:
        """Returns the first answer or error of `what_limits` for which a condition holds."""
        async with asyncio.timeout(SECONDS):
            for pause in pauses():
                result = await self._client.call_tool("what_limits", {})
                if condition(result):
                    return dict(result.structured_content or {"error": result.content[0].text})
                await asyncio.sleep(pause)
        raise AssertionError  # the pauses have no end


def talk(talking: Callable[[Asking], Awaitable[None]], *arguments: str) -> None:
    """Starts the server for a client, which lists its tools and asks."""

    async def run_client() -> None:
        own = [*SEQTOP[1:], "mcp", *arguments]
        server = mcp.StdioServerParameters(command=sys.executable, args=own)
        async with mcp.Client(mcp.stdio_client(server)) as client:
            tools = (await client.list_tools()).tools
            names = ["what_limits", "explain_request", "what_if", "advise"]
            assert [tool.name for tool in tools] == names
            assert all(tool.annotations.read_only_hint for tool in tools)
            await talking(Asking(client))

    asyncio.run(run_client())


def assert_no_text(prompts: Iterable[str | None], answers: Iterable[dict[str, Any]]) -> None:
    known = [prompt.strip()[:12] for prompt in prompts if prompt]
    assert len(known) > 2
    for answer in answers:
        assert not [prompt for prompt in known if prompt in str(answer)]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recording of few requests, with prompts: each setting that advice tries is a replay."""

    def add_a_prompt(event: Event) -> Event:
        if isinstance(event, RequestArrived):
            event.prompt = f"{event.request_id}, once upon a time"
        return event

    path = tmp_path_factory.mktemp("mcp") / "run.seqtop"
    record_run(path, add_a_prompt, num_requests=NUM_REQUESTS, num_gpu_blocks=BLOCKS)
    return str(path)


def test_a_recording_is_asked(recording: str, capsys: pytest.CaptureFixture[str]) -> None:
    answers: list[dict[str, Any]] = []

    async def talking(client: Asking) -> None:
        answers.extend(
            [
                await client.ask("what_limits"),
                await client.ask("explain_request", request="req-5"),
                await client.ask("what_if", settings=["num_gpu_blocks=+50%"]),
                await client.ask("advise", objectives="ttft=60"),
            ]
        )
        sentence = await client.error("explain_request", request="req")
        assert sentence.startswith("no request 'req' is recorded; similar ids: req-")

    talk(talking, recording, "--time-limit", FEW_SECONDS)
    limits, explained, predicted, advised = answers
    with FileStore(recording) as whole:
        state = whole.at(whole.last)
    assert limits["whole_run"]["sentence"] == of_whole(state).sentence
    assert limits["last_minute"]["sentence"] == of_last_minute(state).sentence
    wanted = json.loads(run_here(capsys, "explain", recording, "req-5", "--json").stdout)
    assert explained["ttft_seconds"] == pytest.approx(wanted["ttft_seconds"], rel=1e-3)
    arguments = ("whatif", recording, "--set", "num_gpu_blocks=+50%", "--json")
    wanted = json.loads(run_here(capsys, *arguments).stdout)
    assert predicted["is_proven"]
    assert predicted["decisions"]["num_preemptions"] == [
        wanted["basis"]["recorded"]["num_preemptions"],
        *(wanted[run]["figures"]["num_preemptions"] for run in ("unchanged", "predicted")),
    ]
    recorded, unchanged, more = predicted["decisions"]["num_preemptions"]
    assert recorded == unchanged > more
    assert advised["recorded_goodput_share"] == 1.0
    assert advised["settings"] == {}
    assert_no_text((request.prompt for request in state.requests.values()), answers)


def has_ended_all(result: Any) -> bool:
    if result.is_error:
        return False
    return bool(result.structured_content["figures"]["num_finished_requests"] == NUM_REQUESTS)


def test_an_engine_that_starts_later_is_asked_until_it_is_gone(
    endpoint: str, recording: str
) -> None:
    with FileStore(recording) as whole:
        state = whole.at(whole.last)
        events = [event for _, event in whole.events(whole.first, whole.last)]
    ended = state.requests["req-5"]
    assert ended.metrics.finished_time is not None
    e2e = ended.metrics.finished_time - ended.metrics.arrival_time

    async def talking(client: Asking) -> None:
        assert "no engine answered at" in await client.error("what_limits")
        info, *others = events
        assert isinstance(info, EngineInfo)
        with MessagePublisher(endpoint, info, EngineState()) as engine:
            await client.limits_once(lambda result: not result.is_error)
            for event in others:
                assert event is not None
                engine.publish(event)
            limits = await client.limits_once(has_ended_all)
            answers = [
                limits,
                explained := await client.ask("explain_request", request="req-5"),
                predicted := await client.ask(
                    "what_if", settings=["num_gpu_blocks=+50%"], anyway=True
                ),
                advised := await client.ask("advise", objectives="ttft=60", anyway=True),
            ]
        assert limits["is_live"]
        assert limits["source"] == endpoint
        assert explained["e2e_seconds"] == pytest.approx(e2e, rel=1e-3)
        assert predicted["settings"] == {"num_gpu_blocks": [BLOCKS, BLOCKS * 3 // 2]}
        assert predicted["columns"] == ["recorded", "model", "predicted"]
        assert advised["num_settings_tried"] > 10
        assert_no_text((request.prompt for request in state.requests.values()), answers)

        gone = await client.limits_once(lambda result: result.is_error)
        assert "is gone" in gone["error"]
        past = await client.ask("explain_request", request="req-5")
        assert past["e2e_seconds"] == explained["e2e_seconds"]

    talk(talking, endpoint, "--time-limit", FEW_SECONDS, "--timeout", "1")


def test_it_ends_with_its_input_and_listens_on_no_network() -> None:
    with start([*SEQTOP, "mcp", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "a test", "version": "1"},
            },
        }
        server.stdin.write(json.dumps(hello).encode() + b"\n")
        server.stdin.flush()
        reply = json.loads(server.stdout.readline())
        assert reply["result"]["serverInfo"]["name"] == "seqtop"
        assert psutil.Process(server.pid).net_connections("inet") == []
        server.stdin.close()
        assert server.wait(SECONDS) == 0
        assert server.stdout.read() == b""


def test_wrong_usage_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert_one_sentence(run_here(capsys, "mcp", "nowhere.seqtop"), 2, "nowhere.seqtop")
    assert_one_sentence(run_here(capsys, "mcp", __file__), 2, "is not a seqtop recording")
