"""Requests that end early: by the client, by a viewer, by the engine's end."""

import asyncio
import json
from typing import Any

import openai
import pytest

from engine_stub.entrypoints.openai.bridge import AbortedError, Bridge, Completion
from engine_stub.entrypoints.server import EngineServer
from seqtop.sequence import token_inputs
from tests.support.http_engine import ENDLESS, Served, post_by_hand, serve
from tests.support.running import DirectPublisher, MakeEngine, greedy
from tests.support.waiting import SECONDS, wait_until


def test_a_stream_that_is_closed_gives_its_blocks_back(served: Served) -> None:
    stream = served.client.completions.create(prompt="A river", stream=True, n=2, **ENDLESS)
    chunks = [next(stream) for _ in range(4)]
    wait_until(lambda: len(served.running()) == 2)
    stream.close()
    for index in range(2):
        served.wait_until_aborted(f"{chunks[0].id}_parallel_sample_{index}")


@pytest.mark.parametrize("search", [{}, {"use_beam_search": True, "n": 2, "max_tokens": 400}])
def test_a_client_that_does_not_wait_for_its_answer(served: Served, search: dict[str, Any]) -> None:
    asked = {"prompt": "A river", "max_tokens": 1000, "ignore_eos": True, **search}
    body = json.dumps(asked).encode()
    wait_until(lambda: not served.running())  # of the tests before
    with post_by_hand(served, body, len(body)):
        wait_until(served.running)
        request_id = served.running()[0]
    served.wait_until_aborted(request_id)


def test_a_viewer_aborts_and_the_client_is_told(served: Served) -> None:
    stream = served.client.completions.create(prompt="A river", stream=True, **ENDLESS)
    served.session.abort(next(stream).id)
    with pytest.raises(openai.APIError, match="was aborted"):
        list(stream)


def test_a_viewer_aborts_and_the_waiting_client_is_told(served: Served) -> None:
    body = b'{"prompt": "A river", "max_tokens": 1000, "ignore_eos": true}'
    wait_until(lambda: not served.running())  # of the tests before
    with post_by_hand(served, body, len(body)) as client:
        wait_until(served.running)
        served.session.abort(served.running()[0])
        client.settimeout(SECONDS)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503")
    wait_until(lambda: not served.running())


def test_a_stopped_engine_ends_its_streams() -> None:
    with serve("--pace", "100") as running:
        stream = running.client.completions.create(prompt="A river", stream=True, **ENDLESS)
        next(stream)
        running.process.terminate()
        with pytest.raises(openai.APIError, match="was aborted"):
            list(stream)


async def submit(bridge: Bridge, *prompts: list[int]) -> asyncio.Task[Completion]:
    """Puts a request of some prompts into the queue, and returns what waits for its acceptance."""
    task = asyncio.create_task(
        bridge.submit("one", [token_inputs(prompt) for prompt in prompts], greedy(9))
    )
    await asyncio.sleep(0)
    return task


def test_a_request_in_the_queue_of_a_stopped_engine_gets_an_error() -> None:
    async def run() -> None:
        bridge = Bridge()
        task = await submit(bridge, [1])
        bridge.close()
        with pytest.raises(AbortedError, match="the engine has stopped"):
            await asyncio.wait_for(task, SECONDS)

    asyncio.run(run())


def test_a_refused_prompt_takes_the_others_of_its_request_along(make_engine: MakeEngine) -> None:
    engine, bridge = make_engine(), Bridge()

    async def run() -> None:
        task = await submit(bridge, [1, 2, 3], [])
        bridge.serve(EngineServer(engine, DirectPublisher(), sources=[bridge]))
        with pytest.raises(ValueError, match="the prompt holds no tokens"):
            await asyncio.wait_for(task, SECONDS)

    asyncio.run(run())
    assert [group.request_id for group in engine.step().aborted] == ["one-0"]
    assert not engine.has_unfinished_requests()
