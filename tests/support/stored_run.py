"""The run in the stored recording: everything that an engine can say, in a few steps.

The second start is of an engine without `SequenceGroupMetadata`, whose requests have names and
texts that must not be written as they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from seqtop.history import FileWriter
from seqtop.sequence import Logprob, RequestMetrics, SamplingParams, SequenceStatus
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import (
    CachedBlocks,
    Chunk,
    CudaGraph,
    EngineStopped,
    Event,
    PrefixMiss,
    RequestFinished,
    StreamingUpdate,
)
from tests.support import events
from tests.support.random_engine import RandomEngine

START = 1_800_000_000.0
FORMULA, HOSTILE = "-2+3+cmd|' /C calc'!A0", '=HYPERLINK("http://x")\r\n\x1b]52;c;AAAA\x07'
RUNNING, WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING


def second_start() -> Iterator[Event]:
    yield events.engine_info(
        engine_id="other",
        incarnation="two",
        start_time=START,
        num_reserved_blocks=1,
        queue_order="fcfs",
        data_parallel_rank=3,
        kv_cache_groups=["FullAttentionSpec", "SlidingWindowSpec"],
        not_available={"why": "it has no queue"},
        max_loras=2,
        max_num_encoder_input_tokens=64,
        encoder_cache_size=128,
        scheduler_settings={"policy": "fcfs", "watermark": 0.1},
    )
    for number, name in enumerate((FORMULA, "session", "one of two"), start=1):
        arrival = events.arrival(number)
        arrival.request_id, arrival.arrival_time = name, START + number
        arrival.prompt = HOSTILE if number == 1 else "Tell me."
        arrival.lora, arrival.parent_request_id = ("poems", "both") if number == 3 else ("", "")
        arrival.sampling_params = SamplingParams(max_tokens=9, logprobs=1)
        yield arrival

    def step(number: int, **fields: Any) -> Event:
        begin = START + 10.0 + number
        return events.step(number, start_time=begin, time=begin + 0.5, execute=None, **fields)

    yield step(
        0,
        sequences=[
            events.update(
                seq_id,
                request_id=name,
                chunk=Chunk(num_tokens=3, num_computed_tokens=0, is_prompt=True),
                tokens=[7],
                text="a ",
                logprobs=[-0.5],
                blocks=[seq_id],
                group_block_tables=[[seq_id + 10]],
                top_logprobs=[{7: Logprob(-0.5, 1, "a "), 8: Logprob(-1.5, 2, None)}],
                cached=1,
                num_external_tokens=1,
                prefix_misses=[PrefixMiss(cause="evicted", num_tokens=2, step=0, request_id="x")],
            )
            for seq_id, name in ((1, FORMULA), (2, "session"))
        ],
        stats=events.stats(
            num_running=2,
            num_waiting=1,
            num_used_blocks=2,
            num_free_blocks=61,
            num_prefill_tokens=6,
            num_used_loras=1,
            cuda_graph=CudaGraph(mode="FULL", num_tokens=6, num_padded_tokens=8),
            num_encoder_tokens=12,
            num_used_encoder_slots=24,
        ),
        wait_reasons=[events.wait_reason("one of two", "lora_slots")],
        newly_cached_blocks=[CachedBlocks(request_id="session", seq_id=2, position=0, blocks=[2])],
    )
    yield step(
        1,
        sequences=[
            events.update(2, WAITING, 0, table=[]),
            events.update(
                1,
                request_id=FORMULA,
                chunk=Chunk(num_tokens=3, num_computed_tokens=3),
                drafted=2,
                accepted=1,
                tokens=[7, 9],
                text="b",
                logprobs=[-0.5, -0.25],
                status=SequenceStatus.FINISHED_STOPPED,
                computed=5,
                stop_reason="b",
                table=[],
            ),
        ],
        stats=events.stats(num_waiting=2, num_decode_tokens=3, num_preemptions=1),
        preemptions=[events.preemption("session", lost=3, by=FORMULA)],
        uncached_blocks=[2],
    )
    yield RequestFinished(
        request_id=FORMULA,
        time=START + 12.0,
        status=SequenceStatus.FINISHED_STOPPED,
        metrics=RequestMetrics(
            arrival_time=START + 1.0,
            last_token_time=START + 11.5,
            first_scheduled_time=START + 10.0,
            first_token_time=START + 10.5,
            time_in_queue=9.0,
            finished_time=START + 12.0,
        ),
        text_lengths=[3],
    )
    yield StreamingUpdate(
        request_id="session",
        time=START + 13.0,
        num_computed_tokens=0,
        num_prompt_tokens=6,
        prompt="Tell me more.",
    )
    yield EngineStopped(time=START + 14.0, reason="maintenance", failed=True)


MISSED = 20
"""The number of the message of the first start that is missing, so that a snapshot replaces it."""


def scripts() -> dict[str, list[Event]]:
    """Returns the events of each start, by its incarnation."""
    first = RandomEngine(96, 24, load=5, num_blocks=8, prompt=(4, 50), output=(2, 16))
    return {"one": list(first), "two": list(second_start())}


def write_run(path: Path) -> None:
    """Writes the recording of both starts."""
    with FileWriter(path, overwrite=True) as writer:
        for incarnation, script in scripts().items():
            state = EngineState(max_finished=3)
            if incarnation == "two":
                writer.restore(incarnation, -1, state)
            for number, event in enumerate(script):
                payload = codec.encode(event)
                received = parsing.event(payload)
                state.apply(received)
                if (incarnation, number) == ("one", MISSED):
                    writer.restore(incarnation, number, state)
                else:
                    writer.append(number, payload, received, state)
