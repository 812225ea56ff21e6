"""The times in metrics and records."""

import pytest

from tests.support.running import Clock, MakeEngine, greedy


def test_times_of_a_request(make_engine: MakeEngine) -> None:
    engine = make_engine(clock=Clock(), max_num_batched_tokens=4, max_num_seqs=1)
    (group,) = engine.add_request("r", [1] * 6, greedy(2))
    metrics = group.metrics
    assert (metrics.arrival_time, metrics.first_scheduled_time) == (1001.0, None)
    first = engine.step()
    assert (first.start_time, first.time) == (1002.0, 1003.0)
    assert metrics.first_scheduled_time == 1002.0
    assert metrics.time_in_queue == 1.0
    # The first chunk samples nothing.
    assert metrics.first_token_time is None
    assert metrics.last_token_time == metrics.arrival_time
    second = engine.step()
    assert metrics.first_token_time == metrics.last_token_time == second.time == 1005.0
    third = engine.step()
    assert third.finished == [group]
    assert metrics.finished_time == metrics.last_token_time == third.time == 1007.0
    assert group.last_token_latency == 2.0
    assert [first.step, second.step, third.step] == [0, 1, 2]


def test_durations_add_up_over_the_steps_a_group_took_part_in(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (long,) = engine.add_request("long", [1] * 5, greedy(4))
    records = [engine.step()]
    (short,) = engine.add_request("short", [2] * 5, greedy(2))
    while engine.has_unfinished_requests():
        records.append(engine.step())
    for group, steps in ((long, records[:4]), (short, records[1:3])):
        for name in ("scheduler_time", "model_forward_time", "model_execute_time"):
            total = sum(getattr(timer, name) for timer in steps)
            assert getattr(group.metrics, name) == pytest.approx(total)
    for record in records:
        assert 0 < record.model_execute_time < record.step_time
        assert record.model_forward_time <= record.model_execute_time
        assert 0 < record.scheduler_time < record.step_time
