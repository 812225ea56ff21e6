"""The workload of a trace, whose prompts and outputs are made up."""

from __future__ import annotations

from functools import partial

from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.whatif.traces import Trace, TraceTokens, block_size_of, followers, names
from seqtop.whatif.workload import Answer, Workload, WorkloadRequest
from seqtop.wire.messages import EngineInfo, RequestArrived

_VOCAB_SIZE = 1_000
"""The tokens that prompts are made of: enough that no two blocks are equal by chance."""


def trace_workload(trace: Trace, info: EngineInfo) -> Workload:
    """Returns a workload with the arrivals and lengths of a trace, for an engine.

    Args:
        trace: The trace, whose requests fit the engine's `max_model_len`.
        info: The engine.

    Raises:
        TraceError: The numbers of blocks do not fit the lengths.
    """
    tokens = TraceTokens(_VOCAB_SIZE, block_size_of(trace.requests, info.block_size))
    ids = [*names(trace.requests)]
    follow = followers(trace.requests)
    requests: dict[str, WorkloadRequest] = {}
    for place, own in enumerate(trace.requests):
        output = tokens.output(own, place) if own.is_turn else [0] * own.output_length
        before = follow.get(place)
        arrival = RequestArrived(
            request_id=ids[place],
            arrival_time=info.start_time + (own.arrival or 0.0),
            seq_ids=[place],
            num_prompt_tokens=own.input_length,
            priority=own.priority,
            sampling_params=SamplingParams(
                temperature=0.0, max_tokens=own.output_length, ignore_eos=True
            ),
        )
        requests[ids[place]] = WorkloadRequest(
            arrival,
            Answer(token_ids=output, logprobs=[0.0] * own.output_length, is_whole=True),
            status=SequenceStatus.FINISHED_LENGTH_CAPPED,
            joined_at=arrival.arrival_time,
            follows=None if before is None else ids[before],
            delay=own.delay,
            make_prompt=partial(tokens.prompt, own, place),
        )
    return Workload(info, requests)
