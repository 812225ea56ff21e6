"""``/v1/embeddings``, asked for by the openai client, against the engine's own vectors."""

import base64
import struct
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from seqtop.sequence import PoolingParams
from seqtop.state import RequestState
from tests.support.http_engine import HTTP, MODEL, Served, serve
from tests.support.waiting import SECONDS, wait_until

TEXTS = ["The lantern", "A fox by the river", "Bread."]
CONTEXT = 1024


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve("--pooling-type", "MEAN", "--max-num-batched-tokens", "64") as running:
        yield running


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    engine = LLMEngine(EngineConfig(device="cpu", pooling_type="MEAN", num_gpu_blocks=64))
    return [group.pooled_data.tolist() for group in engine.generate(TEXTS, PoolingParams())]


def test_several_texts(served: Served, expected: list[list[float]]) -> None:
    answer = served.client.embeddings.create(model=MODEL, input=TEXTS)  # in base64, by default
    assert [embedding.index for embedding in answer.data] == [0, 1, 2]
    got = torch.tensor([embedding.embedding for embedding in answer.data])
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-5, rtol=0)
    assert answer.model == MODEL
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 3 * len(TEXTS)


def test_formats_and_kinds_of_input_agree(served: Served, expected: list[list[float]]) -> None:
    create = served.client.embeddings.create
    floats = create(model=MODEL, input=TEXTS[0], encoding_format="float").data[0].embedding
    torch.testing.assert_close(torch.tensor(floats), torch.tensor(expected[0]), atol=1e-5, rtol=0)
    raw = HTTP.post(
        f"{served.url}/v1/embeddings", json={"input": [TEXTS[0]], "encoding_format": "base64"}
    ).json()
    packed = base64.b64decode(raw["data"][0]["embedding"])
    assert list(struct.unpack(f"<{len(floats)}f", packed)) == floats
    tokens = create(model=MODEL, input=[40, 41, 42]).data
    lists = create(model=MODEL, input=[[40, 41, 42], [5]]).data
    assert [len(tokens), len(lists)] == [1, 2]
    torch.testing.assert_close(
        torch.tensor(lists[0].embedding), torch.tensor(tokens[0].embedding), atol=1e-6, rtol=0
    )


def test_fewer_dimensions_and_a_full_context(served: Served) -> None:
    answer = served.client.embeddings.create(model=MODEL, input=[[7] * CONTEXT], dimensions=16)
    vector = torch.tensor(answer.data[0].embedding)
    assert vector.shape == (16,)
    assert vector.norm().item() == pytest.approx(1, abs=1e-5)


def test_requests_are_seen(served: Served) -> None:
    served.client.embeddings.create(model=MODEL, input="seen by viewers", dimensions=3)

    def seen() -> list[RequestState]:
        with served.session.lock:
            requests = [*served.session.state.requests.values()]
        return [request for request in requests if request.prompt == "seen by viewers"]

    wait_until(seen)  # viewers see it a little later
    (request,) = seen()
    assert request.pooling_params == PoolingParams(dimensions=3)
    wait_until(lambda: served.request(request.request_id).finish_reason == "stop")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"input": []}, "input"),
        ({"input": ["a", 4]}, "a list of one of these"),
        ({"input": ["a", [4]]}, "a list of one of these"),
        ({"input": ["a", [2048]], "dimensions": 0}, "a list of one of these"),
        ({"input": "a", "dimensions": 257}, "dimensions must be from 1 to 256"),
        ({"input": [[1], [2048]]}, "outside the vocabulary"),
        ({"input": ""}, None),
        ({"input": [[]]}, "no tokens"),
        ({"input": [[1] * (CONTEXT + 1)]}, "at most 1024"),
        ({"input": ["a"] * 2049}, "2048 is the most"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    served: Served, given: dict[str, Any], words: str | None
) -> None:
    answer = HTTP.post(f"{served.url}/v1/embeddings", json=given, timeout=SECONDS)
    if words is None:
        assert answer.status_code == 200  # the model puts a token before each text
        return
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_another_model(served: Served) -> None:
    with pytest.raises(openai.NotFoundError):
        served.client.embeddings.create(model="other", input="x")
