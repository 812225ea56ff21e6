"""The parts of SGLang's requests that become an arrival or an end."""

from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.request import sampling_params
from seqtop.adapters.sglang.requests import arrived, end_of


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ({"type": "stop", "matched": 7}, ("FINISHED_STOPPED", 7)),
        ({"type": "stop", "matched": 1}, ("FINISHED_STOPPED", None)),
        ({"type": "stop", "matched": "END"}, ("FINISHED_STOPPED", "END")),
        ({"type": "stop", "matched": [3, 4]}, ("FINISHED_STOPPED", None)),
        ({"type": "length", "length": 9}, ("FINISHED_LENGTH_CAPPED", None)),
        ({"type": "abort", "message": "timeout"}, ("FINISHED_ABORTED", "timeout")),
        ({"type": "another"}, ("FINISHED_ABORTED", None)),
        (None, ("FINISHED_ABORTED", None)),
    ],
)
def test_the_end_of_a_request(reason: Any, expected: tuple[str, Any]) -> None:
    eos = frozenset({1})
    assert end_of(reason, eos) == expected
    if reason is not None:
        assert end_of(SimpleNamespace(to_json=lambda: reason), eos) == expected


@pytest.mark.parametrize(
    ("times", "arrival"),
    [
        ({"scheduler_recv_time": 40.0, "wait_queue_entry_time": 41.0}, 990.0),
        ({"scheduler_recv_time": 0.0, "wait_queue_entry_time": 45.0}, 995.0),
        ({}, 1_000.0),
        ({"scheduler_recv_time": 60.0}, 1_000.0),  # of another machine's clock
    ],
)
def test_the_arrival_of_a_request(times: dict[str, float], arrival: float) -> None:
    params = SimpleNamespace(
        max_new_tokens=5, temperature=0.5, top_k=1 << 30, stop_strs="END", stop_token_ids={9, 3}
    )
    req = SimpleNamespace(
        origin_input_ids=[4, 5],
        sampling_params=params,
        time_stats=SimpleNamespace(**times),
        bootstrap_room=4711,
        lora_id="0c4d",
    )
    loras = {"0c4d": SimpleNamespace(lora_id="0c4d", lora_name="poems")}
    observed = arrived(req, "a-00000001", "WAITING", 1_000.0, 50.0, has_priority=True, loras=loras)
    assert observed.lora == "poems"
    assert observed.arrival_time == arrival
    assert (observed.prompt_token_ids, observed.priority) == ([4, 5], 0)
    assert observed.transfer_id == "4711"
    shown = sampling_params(observed.sampling_params)
    assert shown is not None
    assert (shown.max_tokens, shown.temperature, shown.top_k) == (5, 0.5, 0)
    assert (shown.stop, shown.stop_token_ids) == (["END"], [3, 9])
