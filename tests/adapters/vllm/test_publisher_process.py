"""A publisher's process that ends is noticed."""

from types import SimpleNamespace

import msgspec
import pytest

from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.observations import Arrived
from seqtop.adapters.vllm.publisher_process import encode
from seqtop.adapters.vllm.settings import AdapterSettings
from tests.adapters.vllm.test_step_builder import step
from tests.support.fake_vllm import Request, Scheduler, wrapped
from tests.support.waiting import wait_until


def test_publisher_that_dies_is_noticed(
    modules: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.adapters.vllm.publisher_process._CHECK_SECONDS", 0.0)
    scheduler = Scheduler()
    # A folder that is not there cannot be bound.
    attachment = hook.follow(scheduler, AdapterSettings(bind="ipc:///nonexistent/socket"))
    assert attachment is not None

    def noticed() -> bool:
        scheduler.add_request(Request("one-00000000", [1, 2, 3], 1))
        step(scheduler)
        return not attachment.is_attached

    wait_until(noticed)
    assert wrapped(scheduler) == []
    assert "exit status 3" in caplog.text
    assert "seqtop attach" not in caplog.text


def test_what_messagepack_cannot_carry_is_replaced() -> None:
    arrived = Arrived(
        "half \ud800", 1.0, "WAITING", 2**70, 1, [1], {"seed": -(2**70), "stop": ["\udfff"]}
    )
    again = msgspec.msgpack.decode(encode(arrived), type=Arrived)
    assert again.request_id == "half \\ud800"
    assert again.priority == 2**63 - 1
    assert again.sampling_params == {"seed": -(2**63), "stop": ["\\udfff"]}
    assert again.prompt_token_ids == [1]
