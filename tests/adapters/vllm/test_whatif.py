"""The driver for vLLM: what it refuses, and its model. `make test-vllm` runs the rest."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seqtop.adapters.vllm.whatif import RecordedModel, VllmScheduler
from seqtop.history.memory_store import MemoryStore
from seqtop.history.step_time import Size
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.whatif.replay import Clock, ReplayOptions, WorkloadReplay
from seqtop.whatif.workload import Answer, read_workload
from seqtop.wire import codec
from tests.support.events import arrival, engine_info, step
from tests.support.recordings import append

SPECS: list[dict[str, Any]] = [{"kind": "FullAttentionSpec", "block_size": 16}]


@pytest.mark.parametrize(
    ("info", "request_fields", "error"),
    [
        ({"scheduler_settings": {"pipeline_parallel_size": 2}}, {}, "pipeline_parallel_size=2"),
        (
            {"scheduler_settings": {"kv_transfer_config.kv_connector": "NixlConnector"}},
            {},
            "kv_connector=NixlConnector",
        ),
        (
            {"scheduler_settings": {"speculative_config.method": "eagle"}},
            {},
            "speculative_config.method=eagle",
        ),
        ({"scheduler_settings": {"data_parallel_size": 4}}, {}, "data_parallel_size=4"),
        ({"scheduler_settings": {"scheduler_cls": "Mine"}}, {}, "scheduler_cls=Mine"),
        ({"kv_cache_specs": []}, {}, "does not describe the engine's KV cache"),
        ({}, {"sampling_params": None}, "req-0 has no sampling parameters"),
        ({}, {"num_encoder_inputs": 1}, "req-0 has images"),
        ({}, {"num_prompt_tokens": 9}, "req-0 has a prompt of embeddings"),
        (
            {},
            {"engine_status": "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"},
            "arrived as WAITING_FOR_STRUCTURED",
        ),
    ],
)
def test_recordings_that_cannot_be_replayed_are_refused_by_name(
    info: dict[str, Any], request_fields: dict[str, Any], error: str
) -> None:
    request = arrival(0)
    request.sampling_params = SamplingParams()
    events = [
        engine_info(**{"engine": "vLLM 0.33.0", "kv_cache_specs": SPECS} | info),
        msgspec.structs.replace(request, **request_fields),
        step(0),
    ]
    store = MemoryStore()
    append(store, [codec.encode(event) for event in events], EngineState())
    workload, options, clock = read_workload(store), ReplayOptions(), Clock()
    replay = WorkloadReplay(workload, options, clock)
    sink: Any = None
    with pytest.raises(ValueError, match=error):
        VllmScheduler(workload, options, replay, clock, sink, "run")


@pytest.mark.parametrize("runner", ["older", "newer"])
def test_the_model_returns_recorded_tokens_when_they_are_due(runner: str) -> None:
    model = RecordedModel({"req-0": Answer([7, 8, 9]), "req-1": Answer([5])})
    for number in range(2):
        request = arrival(number)
        request.num_prompt_tokens = 20
        model.add(request)

    def execute(
        new: dict[str, int], cached: dict[str, int], **resumed: list[int]
    ) -> tuple[list[list[int]], list[str], Size]:
        """Schedules 10 tokens of new requests, 1 of others and all of resumed ones.

        The newer runner gets those as new ones, with the tokens to compute again.
        """
        chunks = {name.replace("_", "-"): len(tokens) for name, tokens in resumed.items()}
        again = {} if runner == "newer" else chunks
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, prompt_token_ids=[0] * 20, num_computed_tokens=start)
                for name, start in new.items()
            ]
            + [
                SimpleNamespace(
                    req_id=name,
                    prompt_token_ids=[0] * 20,
                    prefill_token_ids=[0] * count,
                    num_computed_tokens=0,
                )
                for name, count in (chunks.items() - again.items())
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[*cached, *again],
                num_computed_tokens=[*cached.values(), *(0 for _ in again)],
                resumed_req_ids={*again},
                all_token_ids={name: [0] * count for name, count in again.items()},
            ),
            num_scheduled_tokens={
                **dict.fromkeys(new, 10),
                **{name: 10 if start < 20 else 1 for name, start in cached.items()},
                **chunks,
            },
        )
        return model.execute(output)

    assert execute({"req-0": 0}, {}) == ([[]], [], Size(10, 0))
    assert execute({"req-1": 10}, {"req-0": 10}) == ([[5], [7]], [], Size(20, 0))
    # In flight, a step is scheduled before the token of the one before is processed.
    assert execute({}, {"req-0": 20, "req-1": 20}) == ([[8], []], ["req-1"], Size(0, 2))
    assert execute({}, {}, req_0=[0] * 22) == ([[9]], [], Size(22, 0)), "preempted"
    assert execute({}, {"req-0": 22}) == ([[]], ["req-0"], Size(0, 1))
