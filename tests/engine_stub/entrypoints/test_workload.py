"""The demo's workload is deterministic and endless, and shows everything at its start."""

from itertools import islice, pairwise
from pathlib import Path

import msgspec

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.workload import DemoRequest, arrivals
from seqtop.sequence import SamplingParams


def test_requests_come_in_the_order_of_ticks_with_names_of_their_own() -> None:
    requests = list(islice(arrivals(), 2_000))  # the file has fewer
    assert all(before.tick <= after.tick for before, after in pairwise(requests))
    assert len({request.request_id for request in requests}) == len(requests)


def test_requests_that_come_again_are_sampled_with_other_seeds(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    requests = [
        DemoRequest(2, "typed", 1, "Once", max_tokens=7, seed=40),
        DemoRequest(9, "beams", 1, "Hello", max_tokens=8, beam_width=2),
        DemoRequest(9, "typed", 2, "Twice", max_tokens=9, seed=50),
    ]
    path.write_bytes(msgspec.json.Encoder().encode_lines(requests))
    come = list(islice(arrivals(path), 7))
    assert [(arrival.tick, arrival.request_id, arrival.prompt) for arrival in come] == [
        (2, "typed-1", "Once"),
        (9, "beams-1", "Hello"),
        (9, "typed-2", "Twice"),
        (161, "typed-3", "Once"),
        (168, "beams-3", "Hello"),
        (168, "typed-4", "Twice"),
        (320, "typed-5", "Once"),
    ]
    assert come[1].params == come[4].params == BeamSearchParams(beam_width=2, max_tokens=8)
    samplings = [arrival.params for arrival in come]
    seeds = [params.seed for params in samplings if isinstance(params, SamplingParams)]
    assert seeds == [40, 50, 41, 51, 42]


def test_all_kinds_of_requests_come_within_the_first_seconds() -> None:
    early = [arrival for arrival in islice(arrivals(), 30) if arrival.tick < 150]
    kinds = {arrival.request_id.partition("-")[0] for arrival in early}
    assert kinds == {"typed", "shared", "long", "beams"}
    assert any(isinstance(arrival.params, BeamSearchParams) for arrival in early)
