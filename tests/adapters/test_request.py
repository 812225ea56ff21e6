"""Names, statuses and sampling parameters of V1's requests."""

import pytest

from seqtop.adapters.observations import Arrived, CurrentRequest, RequestEnded
from seqtop.adapters.request import (
    Names,
    PublishedRequest,
    end_status,
    engine_status,
    sampling_params,
)
from seqtop.sequence import SequenceStatus
from seqtop.sequence.names import MAX_NAME_LENGTH


def test_names_are_the_users_own_and_never_given_twice() -> None:
    names = Names(has_random_suffix=True)
    assert names.of("cmpl-12-0-0a1b2c3d") == "cmpl-12-0"
    assert names.of("cmpl-12-0-99999999") == "cmpl-12-0-99999999"
    assert names.of("no suffix here") == "no suffix here"
    plain = Names(has_random_suffix=False)
    ids = ["x-0a1b2c3d", "x-0a1b2c3d", "x-0a1b2c3d-2", "x-0a1b2c3d", "x-0a1b2c3d"]
    given = [plain.of(request_id) for request_id in ids]
    assert given[:2] == ["x-0a1b2c3d", "x-0a1b2c3d-2"]
    assert len({*given}) == len(given)


def test_names_that_viewers_would_refuse_are_shortened_and_still_differ() -> None:
    names = Names(has_random_suffix=True)
    long = "x" * 2 * MAX_NAME_LENGTH
    ids = [f"{long}-0a1b2c3d", f"{long}-99999999", f"{long}y-0a1b2c3d", long[:MAX_NAME_LENGTH]]
    given = [names.of(request_id) for request_id in ids]
    assert [len(name) for name in given] == [MAX_NAME_LENGTH] * 4
    assert len({*given}) == 4
    assert given[3] == ids[3]


@pytest.mark.parametrize(
    ("texts", "min_tokens", "found"),
    [
        (["so far", ", no", "t this"], 0, None),
        (["so far <st", "op> and"], 0, "<stop>"),
        (["a. b <stop>"], 0, ". b"),
        (["<stop>", " more"], 1, None),
        (["<stop>", " more", " <stop>"], 1, "<stop>"),
        ([], 0, None),
    ],
)
@pytest.mark.parametrize("status", ["FINISHED_ABORTED", "FINISHED_LENGTH_CAPPED"])
def test_an_end_after_a_stop_string_that_the_scheduler_does_not_know_is_a_stop(
    texts: list[str], min_tokens: int, found: str | None, status: str
) -> None:
    params = sampling_params({"stop": ["<stop>", ". b"], "min_tokens": min_tokens})
    arrived = Arrived("one", 1.0, "WAITING", 0, 3, [1, 2, 3], None)
    for is_stopped_outside in (True, False):
        request = PublishedRequest.of(
            arrived, 0, "one", params, is_stopped_outside=is_stopped_outside
        )
        for text in texts:
            request.num_output_tokens += 1
            request.add_text(text)
        reason = request.end(RequestEnded("one", status, None, 4, 2.0))
        expected = found if is_stopped_outside else None
        shown = "FINISHED_STOPPED" if expected else status
        assert (request.status.name, reason, request.end_time) == (shown, expected, 2.0)


def test_an_end_at_a_stop_token_has_its_own_reason() -> None:
    params = sampling_params({"stop": ["<stop>"]})
    arrived = Arrived("one", 1.0, "WAITING", 0, 3, [1, 2, 3], None)
    request = PublishedRequest.of(arrived, 0, "one", params, is_stopped_outside=True)
    request.num_output_tokens = 9
    request.add_text("<stop>")
    assert request.end(RequestEnded("one", "FINISHED_STOPPED", 7, 4, 2.0)) == 7


def test_statuses_of_v1() -> None:
    assert end_status("FINISHED_LENGTH_CAPPED") is SequenceStatus.FINISHED_LENGTH_CAPPED
    assert end_status("FINISHED_ERROR") is SequenceStatus.FINISHED_ABORTED
    assert engine_status("FINISHED_ERROR") == "FINISHED_ERROR"
    assert engine_status("FINISHED_STOPPED") == engine_status("RUNNING") == ""
    assert engine_status("WAITING_FOR_REMOTE_KVS") == "WAITING_FOR_REMOTE_KVS"


def test_sampling_parameters_that_we_refuse_are_left_out() -> None:
    params = sampling_params({"temperature": 0.5, "max_tokens": 7, "seed": None})
    assert params is not None
    assert (params.temperature, params.max_tokens, params.seed) == (0.5, 7, None)
    assert sampling_params({"top_p": 7.0}) is None


@pytest.mark.parametrize(
    ("output", "computed", "is_prefill"), [(0, 0, True), (0, 3, True), (2, 3, True), (2, 4, False)]
)
def test_a_running_request_decodes_once_all_but_its_last_token_are_computed(
    output: int, computed: int, is_prefill: bool
) -> None:
    arrived = Arrived("one", 5.0, "WAITING", 0, 3, [1, 2, 3], None)
    request = PublishedRequest.of(arrived, 0, "one", None)
    request.set_current(
        CurrentRequest(arrived, computed, [7] * output, ([1],), is_running=True, was_scheduled=True)
    )
    assert request.is_prefill is is_prefill
