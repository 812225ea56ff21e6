"""Several iterations a schedule: the same tokens in fewer steps, on blocks accounted for."""

from itertools import pairwise

import pytest

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.latency import Latencies
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event
from tests.support.running import MakeEngine, greedy, run, tokens

NUM_STEPS = 4


def test_a_step_brings_several_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine(num_scheduler_steps=NUM_STEPS)
    (group,), records = run(engine, [[5] * 6], greedy(11))
    counts = [len(record.updates[0].new_token_ids) for record in records if record.updates]
    # The prompt's own step, then as many as are due.
    assert counts == [1, 4, 4, 2]
    steps = [record.execute_model_req for record in records[:4]]
    assert [step.num_steps for step in steps] == [1, 4, 4, 2]
    assert [step.num_lookahead_slots for step in steps] == [0, 3, 3, 1]
    assert [record.num_decode_tokens for record in records[:4]] == [0, 4, 4, 2]
    (alone,), _ = run(make_engine(), [[5] * 6], greedy(11))
    assert tokens([group]) == tokens([alone])
    assert group.first_seq.output_text == alone.first_seq.output_text
    assert group.first_seq.output_logprobs == pytest.approx(alone.first_seq.output_logprobs)
    assert group.first_seq.get_num_computed_tokens() == 6 + 11 - 1


def test_sequences_of_one_step_may_end_at_different_iterations(make_engine: MakeEngine) -> None:
    prompts = [[index + 1] * (3 + index) for index in range(5)]
    params = [greedy(max_tokens) for max_tokens in (1, 2, 3, 6, 9)]
    groups, records = run(make_engine(num_scheduler_steps=NUM_STEPS), prompts, *params)
    expected, _ = run(make_engine(), prompts, *params)
    assert tokens(groups) == tokens(expected)
    second = {update.request_id: len(update.new_token_ids) for update in records[1].updates}
    assert second == {"r1": 1, "r2": 2, "r3": 4, "r4": 4}


def test_tokens_after_a_stop_are_discarded(make_engine: MakeEngine) -> None:
    (free,), _ = run(make_engine(), [[7] * 5], greedy(12))
    stop = free.first_seq.get_output_token_ids()[6]
    params = greedy(12, stop_token_ids=[stop])
    (expected,), _ = run(make_engine(), [[7] * 5], params)
    engine = make_engine(num_scheduler_steps=12)
    (group,), records = run(engine, [[7] * 5], params)
    assert tokens([group]) == tokens([expected])
    assert group.first_seq.status is SequenceStatus.FINISHED_STOPPED
    assert group.first_seq.stop_reason == stop
    assert len(records[1].updates[0].new_token_ids) == group.first_seq.get_output_len() - 1
    assert engine.block_manager.stats.used == 0


def test_seeds_penalties_and_candidates_are_those_of_single_steps(make_engine: MakeEngine) -> None:
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8]]
    params = [
        SamplingParams(seed=3, max_tokens=9, logprobs=2),
        SamplingParams(temperature=0, repetition_penalty=1.7, min_tokens=4, max_tokens=9),
        SamplingParams(n=2, seed=8, top_p=0.9, presence_penalty=0.5, max_tokens=7),
    ]
    ours, _ = run(make_engine(num_scheduler_steps=3), prompts, *params)
    theirs, _ = run(make_engine(), prompts, *params)
    assert tokens(ours) == tokens(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        for one, two in zip(
            mine.first_seq.output_logprobs, other.first_seq.output_logprobs, strict=True
        ):
            assert list(one) == list(two)


def test_beams_and_prompts_go_single_steps_beside(make_engine: MakeEngine) -> None:
    prompts = [[4] * 9, [6] * 7]
    params = [BeamSearchParams(beam_width=3, max_tokens=8), greedy(8, prompt_logprobs=1)]
    ours, records = run(make_engine(num_scheduler_steps=NUM_STEPS), prompts, *params)
    theirs, _ = run(make_engine(), prompts, *params)
    assert tokens(ours) == tokens(theirs)
    assert ours[1].prompt_logprobs == theirs[1].prompt_logprobs
    decodes = [
        record for record in records if record.num_decode_tokens and len(record.scheduled) == 2
    ]
    slots = {
        group.seq_group.request_id: group.num_lookahead_slots
        for record in decodes[:1]
        for group in record.scheduled
    }
    assert slots == {"r0": 0, "r1": 3}
    for record in records:
        if record.num_prefill_tokens:
            assert record.execute_model_req.num_steps == 1


def test_cached_blocks_hold_only_what_was_kept(make_engine: MakeEngine) -> None:
    """A second request takes over blocks that lookahead has filled, and continues alike."""
    engine = make_engine(num_scheduler_steps=8)
    (first,), _ = run(engine, [[2] * 6], greedy(30))
    prompt = first.first_seq.get_token_ids()[:30]
    (second,), _ = run(engine, [list(prompt)], greedy(12))
    assert second.first_seq.data.get_num_cached_tokens() == 28
    assert tokens([second])[0][:6] == tokens([first])[0][24:30]


class Viewer:
    """Reads what is published, and counts latencies."""

    def __init__(self) -> None:
        self.state = EngineState()
        self.latencies = Latencies()

    def publish(self, event: Event) -> None:
        touched = self.state.apply(parsing.event(codec.encode(event)))
        self.latencies.observe(self.state, touched)


def test_viewers_count_every_token_of_a_step(make_engine: MakeEngine) -> None:
    times = iter(range(1_000, 2_000))
    engine = make_engine(num_scheduler_steps=4, clock=lambda: float(next(times)))
    viewer = Viewer()
    steps = StepPublisher(viewer)
    viewer.publish(engine_info(engine, engine_id="test", control=False))
    (group,) = engine.add_request("r", [5] * 6, greedy(11))
    steps.arrived(group)
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())
    request = viewer.state.requests["r"]
    (decode,) = [span for span in request.spans if span.kind == "decode"]
    assert (decode.num_steps, decode.num_tokens) == (3, 10)
    assert request.metrics == group.metrics
    # A gap for each token after the first; together they are the time from first to last.
    itl = viewer.latencies.windows["itl"]
    assert len(itl) == 10
    metrics = group.metrics
    assert itl.mean() == pytest.approx((metrics.last_token_time - metrics.first_token_time) / 10)


def test_viewers_count_what_beams_share_once(make_engine: MakeEngine) -> None:
    times = iter(range(1_000, 2_000))
    engine = make_engine(clock=lambda: float(next(times)))
    viewer = Viewer()
    steps = StepPublisher(viewer)
    viewer.publish(engine_info(engine, engine_id="test", control=False))
    params = BeamSearchParams(beam_width=3, max_tokens=12)
    steps.arrived(engine.add_request("r", [5] * 6, params)[0])
    moments = []
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())
        moments.append(viewer.state.time)
    assert len(viewer.state.requests["r"].seq_ids) == 3
    windows = viewer.latencies.windows
    assert [len(windows[key]) for key in ("queue", "ttft", "tpot", "e2e")] == [1] * 4
    # Three beams of twelve tokens, of which those that were forked off on the way have fewer gaps.
    assert 11 <= len(windows["itl"]) <= 33
    assert windows["itl"].percentile(100) <= max(b - a for a, b in pairwise(moments))
