"""Observations of vLLM as messages of the protocol."""

from types import SimpleNamespace
from typing import Any

from seqtop.adapters.observations import Arrived
from seqtop.adapters.translate import Translator, engine_info
from seqtop.adapters.vllm.engine_description import describe
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.fake_vllm import Scheduler


def test_fields_that_v1_lacks_are_unknown(modules: SimpleNamespace) -> None:
    started, _ = describe(Scheduler(num_gpu_blocks=17), PublisherSettings(bind="ipc:///e"))
    info = engine_info(started, redacted=True)
    assert info.engine == f"vLLM {modules.vllm.__version__}"
    assert (info.num_gpu_blocks, info.num_cpu_blocks) == (17, None)
    assert info.num_reserved_blocks == 1
    assert info.redacted
    assert engine_info(started).incarnation != info.incarnation
    assert info.scheduler_settings == {
        "policy": "fcfs",
        "watermark": 0.01,
        "scheduler_cls": "Scheduler",
        "speculative_config.method": "ngram",
        "speculative_config.num_speculative_tokens": 3,
    }


def test_each_arrival_gets_a_sequence_of_its_own(modules: SimpleNamespace) -> None:
    started, _ = describe(Scheduler(), PublisherSettings(bind="ipc:///e"))
    translator = Translator(started)
    arrivals: list[Any] = []
    for name in ("one-0a1b2c3d", "two-0a1b2c3d"):
        observation = Arrived(name, 5.0, "WAITING", 0, 3, [1, 2, 3], {"max_tokens": 7})
        arrivals += translator.events(observation)
    assert [arrival.request_id for arrival in arrivals] == ["one", "two"]
    assert [arrival.seq_ids for arrival in arrivals] == [[0], [1]]
    assert arrivals[0].arrival_time == 5.0
    assert arrivals[0].prompt is None, "there is no tokenizer"
    assert arrivals[0].sampling_params.max_tokens == 7
