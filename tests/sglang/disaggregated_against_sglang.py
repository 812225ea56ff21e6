"""The real queues of disaggregated prefill and decode, and a viewer that is compared at each turn.

The instances are those of SGLang with its own transfer backend `fake`, which moves nothing. Each
poll of a transfer succeeds when the test says so, and so requests stay in the queues.

Run by `make test-sglang`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from stepping import (
    QUEUES,
    SteppedScheduler,
    alone,
    generate,
    make_scheduler,
    page_sizes,
    queued,
    stepped,
)

from tests.support.waiting import SECONDS


class Transfers:
    """Holds the transfers of this process back, as long as the test says so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        from sglang.srt.disaggregation.base.conn import KVPoll
        from sglang.srt.disaggregation.fake.conn import FakeKVReceiver, FakeKVSender

        self.is_held: set[str] = set()
        """Of `bootstrap` and `transfer`."""
        for kind in (FakeKVSender, FakeKVReceiver):
            poll = kind.poll

            def held(this: Any, poll: Any = poll) -> Any:
                result = poll(this)
                if "bootstrap" in self.is_held and result is not KVPoll.Success:
                    return KVPoll.Bootstrapping
                if "transfer" in self.is_held and result is KVPoll.Success:
                    return KVPoll.Transferring
                return result

            patch.setattr(kind, "poll", held)


def shown(engine: SteppedScheduler) -> dict[str, tuple[str, list[int]]]:
    with engine.session.lock:
        state = engine.session.state
        return {
            name: (sequence.engine_status or sequence.status.name, sequence.block_table.copy())
            for name, request in state.requests.items()
            if not request.finish_reason
            for sequence in [state.sequences[request.seq_ids[0]]]
        }


def make_instance(mode: str) -> Any:
    """An instance whose transfers are fake, which the option allows for decode alone."""
    from sglang.srt.disaggregation.utils import TransferBackend

    def fake(_: str) -> TransferBackend:
        return TransferBackend.FAKE

    options: dict[str, Any] = {"disaggregation_transfer_backend": "nixl"}  # which is not imported
    if mode == "decode":
        options = {
            "disaggregation_transfer_backend": "fake",
            "disaggregation_decode_retraction_backup": "cpu_tensor",  # the default needs CUDA
            "num_reserved_decode_tokens": 8,
        }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fake, "FAKE", TransferBackend.FAKE, raising=False)
        patch.setattr("sglang.srt.managers.scheduler.TransferBackend", fake)
        return make_scheduler(
            disaggregation_mode=mode, disable_overlap_schedule=True, max_total_tokens=512, **options
        )


def check(mode: str) -> None:
    scheduler = make_instance(mode)
    seen: set[str] = set()
    with pytest.MonkeyPatch.context() as patch, stepped(scheduler) as engine:
        transfers = Transfers(patch)
        take_input = scheduler.process_input_requests

        def taken(received: list[Any]) -> None:
            """Compares where no step follows before other requests have moved."""
            take_input(received)
            if scheduler.running_batch.reqs or scheduler.waiting_queue or scheduler.chunked_req:
                return
            truth = {
                req.rid: (queue, engine.table(req)) for req, queue in queued(scheduler).items()
            }
            deadline = time.monotonic() + (0.5 if engine.differences else SECONDS / 4)
            while (present := shown(engine)) != truth and time.monotonic() < deadline:
                time.sleep(0.001)
            if present != truth:
                engine.differences.append(f"{present} is shown, {truth} is true")
            seen.update(queue for queue, _ in truth.values())

        scheduler.process_input_requests = taken

        def turns() -> Iterator[list[Any]]:
            for held in ({"bootstrap"}, {"transfer"}, set()):
                transfers.is_held = {"bootstrap", "transfer"} if held else set()
                room = len(engine.spy.reqs)
                yield [
                    generate(
                        scheduler,
                        f"{name}{room}",
                        [5 + i + room for i in range(length)],
                        4,
                        room=room + offset,
                    )
                    for offset, (name, length) in enumerate([("short", 20), ("long", 70)])
                ]
                for _ in range(3):
                    yield []
                transfers.is_held = held & {"transfer"}
                for _ in range(12):
                    yield []
                transfers.is_held = set()
                for _ in range(12):
                    yield []

        engine.run(turns())
        assert len(engine.spy.reqs) == 6
        with engine.session.lock:
            transfers_shown = {
                name: request.transfer_id for name, request in engine.session.state.requests.items()
            }
    rooms = {
        f"{name}{room}": str(room + offset)
        for room in (0, 2, 4)
        for offset, name in enumerate(("short", "long"))
    }
    assert transfers_shown == rooms
    names = {name for name in QUEUES if name.startswith(mode.upper())}
    assert seen >= names - {"DECODE_RETRACTED_QUEUE"}, seen
    print(f"\n{mode}: {engine.num_compared} steps, {len(engine.differences)} differences, {seen}")


@pytest.mark.skipif(len(page_sizes()) == 1, reason="0.5.20 is not compared with its queues")
@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_a_viewer_shows_the_queue_of_each_request(mode: str) -> None:
    alone(check, mode)
