"""The demo's workload is deterministic, and shows everything at its start."""

from itertools import islice, pairwise

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.workload import arrivals


def test_a_seed_determines_the_requests() -> None:
    first, again, other = (list(islice(arrivals(seed), 80)) for seed in (3, 3, 4))
    assert [(each.tick, each.request_id, each.prompt) for each in first] == [
        (each.tick, each.request_id, each.prompt) for each in again
    ]
    assert [each.prompt for each in first] != [each.prompt for each in other]


def test_requests_come_in_the_order_of_ticks_with_names_of_their_own() -> None:
    requests = list(islice(arrivals(), 200))
    assert all(before.tick <= after.tick for before, after in pairwise(requests))
    assert len({each.request_id for each in requests}) == len(requests)


def test_all_kinds_of_requests_come_within_the_first_seconds() -> None:
    early = [each for each in islice(arrivals(), 30) if each.tick < 150]
    kinds = {each.request_id.partition("-")[0] for each in early}
    assert kinds == {"typed", "shared", "long", "beams"}
    assert any(isinstance(each.params, BeamSearchParams) for each in early)
