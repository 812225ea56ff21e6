"""The scheduler's choices of requests and blocks, and the record of the step about them."""

import gc
import re
import weakref
from pathlib import Path
from typing import Any, get_args

import pytest

from engine_stub.config import EngineConfig, PreemptionVictim
from engine_stub.core.beam_search import replace_seqs
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.scheduler import Scheduler, SchedulerOutputs
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.step_record import AdmissionBlocked, PreemptionRecord, StepRecord
from seqtop.sequence import (
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
    token_inputs,
)
from seqtop.wire.messages import PreemptionMode, WaitCause
from tests.support.running import MakeEngine, drain, greedy

POLICIES = Path(__file__).parents[3] / "docs" / "policies"
IMPORT = "from engine_stub.core.policy import SchedulingPolicy"


def ran(record: StepRecord) -> dict[str, int]:
    """Computed tokens by request."""
    return {group.seq_group.request_id: group.num_batched_tokens for group in record.scheduled}


def test_decodes_come_before_prefills_in_one_budget(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=10, max_num_seqs=4)
    engine.add_request("a", [1] * 6, greedy(9))
    engine.add_request("b", [2] * 25, greedy(9))
    assert ran(engine.step()) == {"a": 6, "b": 4}
    record = engine.step()
    assert ran(record) == {"b": 9, "a": 1}
    assert (record.num_prefill_tokens, record.num_decode_tokens) == (9, 1)
    assert record.token_budget == 10
    metadata = record.execute_model_req.seq_group_metadata_list
    assert [sent.do_sample for sent in metadata] == [False, True]
    assert [sent.token_chunk_size for sent in metadata] == [9, 1]
    engine.step()
    record = engine.step()
    assert ran(record) == {"b": 3, "a": 1}
    assert [group.is_prompt for group in record.scheduled] == [True, False]
    assert [
        metadata.do_sample for metadata in record.execute_model_req.seq_group_metadata_list
    ] == [
        True,
        True,
    ]
    assert ran(engine.step()) == {"a": 1, "b": 1}


def test_a_prefix_hit_is_part_of_the_first_chunk_but_not_of_the_budget(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(max_num_batched_tokens=16, max_num_seqs=4)
    engine.add_request("a", [1] * 13, greedy(2))
    drain(engine)
    engine.add_request("b", [1] * 12 + [2] * 20, greedy(2))
    record = engine.step()
    (sent,) = record.execute_model_req.seq_group_metadata_list
    assert sent.token_chunk_size == 12 + 16
    assert sent.computed_block_nums == sent.block_tables[1][:3]
    assert sent.seq_data[1].get_num_cached_tokens() == 12
    assert ran(record) == {"b": 16}
    assert record.num_prefill_tokens == 16
    assert record.scheduled[0].seq_group.first_seq.get_num_computed_tokens() == 28


class TrackedId(str):
    """A request id to which there can be weak references."""

    __slots__ = ("__weakref__",)


def test_a_scheduler_forgets_what_has_finished() -> None:
    name = TrackedId("a")
    reference, group = weakref.ref(name), make_group(name, [1], 8)
    scheduler = make_scheduler(group)
    del name
    assert scheduler.schedule().scheduled
    scheduler.abort_seq_group(group)
    assert scheduler.schedule().execute_model_req.finished_requests_ids == ["a"]
    del group
    gc.collect()
    assert reference() is None


def test_the_head_waits_for_a_sequence_slot(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_seqs=1)
    engine.add_request("a", [1] * 5, greedy(2))
    engine.add_request("b", [2] * 5, greedy(2))
    engine.add_request("c", [3] * 5, greedy(2))
    record = engine.step()
    assert record.admission_blocked == AdmissionBlocked("b", "seq_limit", 1)
    assert (record.num_running, record.num_waiting) == (1, 2)
    engine.step()
    assert ran(engine.step()) == {"b": 5}


def test_the_head_waits_for_budget(make_engine: MakeEngine) -> None:
    engine = make_engine(max_num_batched_tokens=8, max_num_seqs=4)
    engine.add_request("a", [1] * 8, greedy(2))
    engine.add_request("b", [2] * 5, greedy(2))
    assert engine.step().admission_blocked == AdmissionBlocked("b", "token_budget", 1)
    assert engine.step().admission_blocked is None

    engine = make_engine(
        max_num_batched_tokens=16, max_num_seqs=4, max_model_len=16, enable_chunked_prefill=False
    )
    engine.add_request("a", [1] * 12, greedy(2))
    engine.add_request("b", [2] * 9, greedy(2))
    assert engine.step().admission_blocked == AdmissionBlocked("b", "token_budget", 5)


def test_the_head_waits_for_blocks(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=8)
    engine.add_request("a", [1] * 20, greedy(4))
    engine.add_request("b", [2] * 19, greedy(4))
    record = engine.step()
    assert record.admission_blocked == AdmissionBlocked("b", "no_blocks", 2)
    assert (record.blocks.used, record.blocks.free) == (5, 3)
    records = drain(engine)
    assert [ran(record) for record in records[3:5]] == [{"b": 19}, {"b": 1}]


def test_a_step_that_preempts_admits_nobody(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=6, enable_prefix_caching=False)
    engine.add_request("high", [1] * 12, greedy(4), priority=0)
    engine.add_request("low", [2] * 12, greedy(4), priority=1)
    engine.step()
    engine.add_request("small", [3] * 3, greedy(4), priority=0)
    record = engine.step()
    assert [preemption.request_id for preemption in record.preemptions] == ["low"]
    assert record.admission_blocked == AdmissionBlocked("small", "no_blocks", 0)
    assert "small" in ran(engine.step())


def test_a_step_that_preempts_swaps_nobody_in(make_engine: MakeEngine) -> None:
    engine = make_engine(
        num_gpu_blocks=8,
        enable_prefix_caching=False,
        preemption_mode="swap",
        preemption_victim="largest",
    )
    for request_id, length in (("grows", 12), ("swapped", 9), ("makes-way", 8)):
        engine.add_request(request_id, [1] * length, greedy(20))
    records = [engine.step() for _ in range(6)]
    preempted = [[preemption.request_id for preemption in record.preemptions] for record in records]
    assert preempted == [[], ["swapped"], [], [], [], ["makes-way"]]
    assert records[5].admission_blocked == AdmissionBlocked("swapped", "no_blocks", 0)
    assert "swapped" in ran(engine.step())


def test_an_admission_leaves_blocks_for_those_who_run(make_engine: MakeEngine) -> None:
    settings = {"num_gpu_blocks": 100, "block_size": 2, "max_num_batched_tokens": 512}
    engine = make_engine(**settings)
    engine.add_request("a", [1] * 20, greedy(2))
    engine.add_request("b", [2] * 180, greedy(2))
    record = engine.step()
    assert record.blocks.free == 90
    assert record.admission_blocked == AdmissionBlocked("b", "no_blocks", 1)
    # With no group running, there is none to leave them for.
    engine = make_engine(**settings)
    engine.add_request("b", [2] * 199, greedy(1))
    assert engine.step().blocks.total == 100
    assert not engine.scheduler.waiting


def test_lower_priority_numbers_go_first_and_higher_ones_are_preempted(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(max_num_seqs=1)
    for request_id, priority in (("late", 5), ("first", 0), ("second", 0), ("vip", -1)):
        engine.add_request(request_id, [1] * 4, greedy(2), priority=priority)
    order = [group.request_id for record in drain(engine) for group in record.finished]
    assert order == ["vip", "first", "second", "late"]

    engine = make_engine(num_gpu_blocks=6, enable_prefix_caching=False)
    engine.add_request("low", [1] * 12, greedy(4), priority=1)
    engine.add_request("high", [2] * 12, greedy(4), priority=0)
    engine.step()
    assert [preemption.request_id for preemption in engine.step().preemptions] == ["low"]


@pytest.mark.parametrize(("length", "ignored"), [(31, False), (32, True), (200, True)])
def test_prompts_that_leave_no_room_are_ignored_at_once(
    make_engine: MakeEngine, length: int, ignored: bool
) -> None:
    engine = make_engine(max_model_len=32)
    engine.add_request("other", [1] * 5, greedy(3))
    (group,) = engine.add_request("r", [2] * length, greedy(3))
    assert group.is_finished() == ignored
    record = engine.step()
    assert [group.request_id for group in record.ignored] == (["r"] if ignored else [])
    assert ("r" in ran(record)) != ignored
    drain(engine)
    if ignored:
        assert group.first_seq.status is SequenceStatus.FINISHED_IGNORED
        assert group.metrics.finished_time is not None
        assert group.metrics.first_scheduled_time is None
    else:
        assert group.first_seq.status is SequenceStatus.FINISHED_LENGTH_CAPPED
        assert group.first_seq.get_output_len() == 1


def test_a_prefill_for_which_no_token_is_left_waits_a_step() -> None:
    """A group of two samples that is computed again takes all that a fork has left."""
    forks = make_group("forks", [1], 1)
    groups = forks, make_group("again", [2, 3], 40), make_group("last", [4], 40)
    scheduler = make_scheduler(
        *groups, num_gpu_blocks=64, max_num_seqs=5, max_num_batched_tokens=6, max_model_len=64
    )
    outputs = scheduler.schedule()
    assert planned(outputs) == {"forks": (1, 1, True), "again": (2, 4, True), "last": (1, 1, True)}
    compute(outputs)
    parent = forks.first_seq
    child = parent.fork(9)
    scheduler.fork_seq(parent, child)
    replace_seqs(forks, [parent, child])
    assert planned(scheduler.schedule()) == {"forks": (1, 2, False), "again": (2, 4, True)}
    scheduler.block_manager.check()


def make_group(name: str, seq_ids: list[int], length: int, priority: int = 0) -> SequenceGroup:
    """A group of sequences that have no block in common."""
    seqs = [Sequence(seq_id, token_inputs([seq_id] * length), 4) for seq_id in seq_ids]
    params = SamplingParams(n=len(seqs), max_tokens=40)
    return SequenceGroup(name, seqs, 0.0, sampling_params=params, priority=priority)


def make_scheduler(*groups: SequenceGroup, **settings: Any) -> Scheduler:
    defaults: dict[str, Any] = {
        "block_size": 4,
        "num_gpu_blocks": 40,
        "num_cpu_blocks": 0,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 32,
        "enable_chunked_prefill": True,
    }
    config = EngineConfig(**(defaults | settings))
    assert config.num_gpu_blocks is not None
    manager = BlockManager(
        config.num_gpu_blocks, 4, enable_prefix_caching=False, num_cpu_blocks=config.num_cpu_blocks
    )
    scheduler = Scheduler(config, manager)
    for group in groups:
        scheduler.add_seq_group(group)
    return scheduler


def compute(outputs: SchedulerOutputs) -> None:
    """Do what an engine does to a step of a scheduler: a token for each complete sequence."""
    for group in outputs.scheduled:
        group.seq_group.update_num_computed_tokens(group.token_chunk_size)
        for seq in unfinished_seqs(group.seq_group):
            if seq.data.get_num_uncomputed_tokens() == 0:
                seq.data.append_token_id(1, -1.0)


def finish(scheduler: Scheduler, group: SequenceGroup) -> None:
    for seq in group.seqs:
        seq.status = SequenceStatus.FINISHED_STOPPED
    scheduler.finish_seq_group(group)


def planned(outputs: SchedulerOutputs) -> dict[str, tuple[int, int, bool]]:
    """By request: the tokens of each sequence, those of all of them, and whether in prefill."""
    return {
        group.seq_group.request_id: (
            group.token_chunk_size,
            group.num_batched_tokens,
            group.is_prompt,
        )
        for group in outputs.scheduled
    }


@pytest.mark.parametrize(("num_cpu_blocks", "mode"), [(4, "swap"), (3, "recompute")])
def test_a_group_of_several_is_swapped_if_the_host_has_room(
    num_cpu_blocks: int, mode: PreemptionMode
) -> None:
    first, pair = make_group("first", [1], 8), make_group("pair", [2, 3], 8)
    scheduler = make_scheduler(first, pair, num_gpu_blocks=6, num_cpu_blocks=num_cpu_blocks)
    outputs = scheduler.schedule()
    assert planned(outputs) == {"first": (8, 8, True), "pair": (8, 16, True)}
    assert scheduler.num_running_seqs == 3
    compute(outputs)
    outputs = scheduler.schedule()
    is_swap = mode == "swap"
    (preemption,) = outputs.preemptions
    assert preemption == PreemptionRecord("pair", mode, [2, 3], 0 if is_swap else 16, "first")
    assert planned(outputs) == {"first": (1, 1, False)}
    assert (outputs.num_prefill_tokens, outputs.num_decode_tokens) == (0, 1)
    assert outputs.admission_blocked == AdmissionBlocked("pair", "no_blocks", 3)
    expected = SequenceStatus.SWAPPED if is_swap else SequenceStatus.WAITING
    assert [seq.status for seq in pair.seqs] == [expected] * 2
    assert [len(scheduler.waiting), len(scheduler.swapped)] == ([0, 1] if is_swap else [1, 0])
    assert scheduler.num_running_seqs == 1
    swapped_out = outputs.execute_model_req.blocks_to_swap_out
    assert len(swapped_out) == (4 if is_swap else 0)
    scheduler.block_manager.check()
    compute(outputs)
    finish(scheduler, first)
    assert scheduler.num_running_seqs == 0
    assert scheduler.has_work()
    late = make_group("late", [4], 1)
    scheduler.add_seq_group(late)
    outputs = scheduler.schedule()
    assert planned(outputs) == {"pair": (1, 2, False) if is_swap else (9, 18, True)}
    assert outputs.admission_blocked == AdmissionBlocked("late", "no_blocks", 1)
    request = outputs.execute_model_req
    assert request.finished_requests_ids == ["first"]
    assert request.running_queue_size == 1
    (sent,) = request.seq_group_metadata_list
    assert isinstance(sent, SequenceGroupMetadataDelta if is_swap else SequenceGroupMetadata)
    assert [host for host, _ in request.blocks_to_swap_in] == [host for _, host in swapped_out]
    assert request.blocks_to_swap_out == []
    assert [seq.status for seq in pair.seqs] == [SequenceStatus.RUNNING] * 2
    scheduler.block_manager.check()
    compute(outputs)
    for group in (pair, late):
        finish(scheduler, group)
    assert scheduler.has_work(), "the worker gets a report of it"
    outputs = scheduler.schedule()
    assert outputs.execute_model_req.finished_requests_ids == ["pair", "late"]
    assert outputs.execute_model_req.blocks_to_swap_in == []
    assert not scheduler.has_work()


@pytest.mark.parametrize(
    ("num_tokens", "cause", "num_missing"), [(23, "token_budget", 1), (22, "no_blocks", 6)]
)
def test_a_swapped_group_waits_for_a_token_of_each_sequence(
    num_tokens: int, cause: WaitCause, num_missing: int
) -> None:
    first, pair = make_group("first", [1], 8), make_group("pair", [2, 3], 8)
    scheduler = make_scheduler(
        first, pair, num_gpu_blocks=6, num_cpu_blocks=4, max_num_batched_tokens=24
    )
    for _ in range(2):
        compute(scheduler.schedule())
    finish(scheduler, first)
    scheduler.add_seq_group(make_group("urgent", [4], num_tokens, priority=-1))
    outputs = scheduler.schedule()
    assert planned(outputs) == {"urgent": (num_tokens, num_tokens, True)}
    assert outputs.admission_blocked == AdmissionBlocked("pair", cause, num_missing)


def test_sequences_in_prefill_together_are_not_swapped() -> None:
    first, pair = make_group("first", [1], 4), make_group("pair", [2, 3], 8)
    scheduler = make_scheduler(
        first, pair, num_gpu_blocks=5, num_cpu_blocks=9, max_num_batched_tokens=9
    )
    outputs = scheduler.schedule()
    assert planned(outputs) == {"first": (4, 4, True), "pair": (2, 4, True)}
    compute(outputs)
    (preemption,) = scheduler.schedule().preemptions
    assert (preemption.mode, preemption.num_lost_tokens) == ("recompute", 4)


VICTIMS = {"last": [("e", "large"), ("d", "a")], "largest": [("d", "large")]}
"""The groups that each policy preempts in the test below, and for which.

Of two that are largest, the later; never the one in need, though it is larger still.
"""


@pytest.mark.parametrize("policy", get_args(PreemptionVictim))
def test_the_victim_is_one_behind(policy: str) -> None:
    assert policy in VICTIMS, f"add to VICTIMS which groups the policy {policy!r} preempts here"
    assert preempted_in(preemption_victim=policy) == VICTIMS[policy]


def preempted_in(**settings: str) -> list[tuple[str, str]]:
    """Victims, each with the group in need, of six groups whose blocks run out."""
    lengths = {"large": 16, "a": 4, "b": 7, "c": 11, "d": 11, "e": 3}
    groups = [make_group(name, [i], length) for i, (name, length) in enumerate(lengths.items())]
    scheduler = make_scheduler(*groups, num_gpu_blocks=14, **settings)
    compute(scheduler.schedule())
    outputs = scheduler.schedule()
    preempted = [
        (preemption.request_id, preemption.for_request_id) for preemption in outputs.preemptions
    ]
    assert all(victim != in_need for victim, in_need in preempted)
    assert set(planned(outputs)) == set(lengths) - {victim for victim, _ in preempted}
    return preempted


def test_a_policy_of_one_s_own_sets_the_order() -> None:
    lengths = {"long": 12, "short": 4, "middle": 8, "urgent": 15}
    scheduler = make_scheduler(
        *(
            make_group(name, [i], length, priority=-(name == "urgent"))
            for i, (name, length) in enumerate(lengths.items())
        ),
        max_num_seqs=3,
        scheduling_policy=str(POLICIES / "shortest_prompt_first.py"),
    )
    outputs = scheduler.schedule()
    assert [*planned(outputs)] == ["urgent", "short", "middle"]
    assert outputs.admission_blocked == AdmissionBlocked("long", "seq_limit", 1)


@pytest.mark.parametrize(
    ("policy", "victims"),
    [
        ("least_computed_first", [("e", "large"), ("b", "a")]),
        ("cost_aware_victim", [("e", "large"), ("d", "a")]),
    ],
)
def test_a_policy_of_one_s_own_chooses_the_victim(
    policy: str, victims: list[tuple[str, str]]
) -> None:
    path = str(POLICIES / f"{policy}.py")
    assert preempted_in(scheduling_policy=path) == victims


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        ("x = 1", "has 0 subclasses of SchedulingPolicy, not one"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("class (", "cannot be loaded: SyntaxError"),
        (f"{IMPORT}\nclass A(SchedulingPolicy): ...\nclass B(SchedulingPolicy): ...", "has 2 "),
    ],
)
def test_a_file_without_one_policy_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "own.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"the policy {path} {words}")):
        make_scheduler(scheduling_policy=str(path))


@pytest.mark.parametrize(
    ("budget", "chunked", "plan", "num_missing"),
    [
        (8, True, None, 1),
        (9, True, (1, 2, True), 0),
        (12, True, (2, 4, True), 0),
        (22, False, None, 1),
        (23, False, (8, 16, True), 0),
    ],
)
def test_sequences_of_a_group_share_the_budget(
    budget: int, chunked: bool, plan: tuple[int, int, bool] | None, num_missing: int
) -> None:
    scheduler = make_scheduler(
        make_group("first", [1], 7),
        make_group("pair", [2, 3], 8),
        max_num_batched_tokens=budget,
        max_model_len=8,
        enable_chunked_prefill=chunked,
    )
    outputs = scheduler.schedule()
    assert planned(outputs) == {"first": (7, 7, True)} | ({"pair": plan} if plan else {})
    assert outputs.num_prefill_tokens == 7 + (plan[1] if plan else 0)
    assert outputs.admission_blocked == (
        AdmissionBlocked("pair", "token_budget", num_missing) if num_missing else None
    )


def test_prefills_under_way_share_the_budget_in_order() -> None:
    groups = make_group("pair", [1, 2], 8), make_group("single", [3], 20)
    scheduler = make_scheduler(*groups, max_num_batched_tokens=9)
    plans = []
    for _ in range(4):
        outputs = scheduler.schedule()
        plans.append(planned(outputs))
        compute(outputs)
    assert plans == [
        {"pair": (4, 8, True), "single": (1, 1, True)},
        {"pair": (4, 8, True), "single": (1, 1, True)},
        {"single": (7, 7, True), "pair": (1, 2, False)},
        {"single": (7, 7, True), "pair": (1, 2, False)},
    ]


def test_each_sequence_of_a_group_takes_a_slot() -> None:
    groups = [make_group("a", [1], 1), make_group("b", [2, 3], 1), make_group("c", [4, 5], 1)]
    scheduler = make_scheduler(*groups, max_num_seqs=4)
    for _ in range(2):
        outputs = scheduler.schedule()
        assert set(planned(outputs)) == {"a", "b"}
        assert outputs.admission_blocked == AdmissionBlocked("c", "seq_limit", 1)
        compute(outputs)
    finish(scheduler, groups[0])
    outputs = scheduler.schedule()
    assert set(planned(outputs)) == {"b", "c"}
    assert outputs.admission_blocked is None


def test_a_prompt_whose_logprobs_are_wanted_is_computed_whole(make_engine: MakeEngine) -> None:
    engine = make_engine()
    for request_id, more in (("a", {}), ("b", {"prompt_logprobs": 1}), ("c", {})):
        engine.add_request(request_id, [1] * 13, greedy(1, **more))
        num_tokens = ran(engine.step())[request_id]
        assert num_tokens == (1 if request_id == "c" else 13)


@pytest.mark.parametrize(("state", "num_steps"), [("waiting", 0), ("running", 1), ("swapped", 2)])
def test_an_abort_in_any_queue_frees_everything(state: str, num_steps: int) -> None:
    first, pair = make_group("first", [1], 8), make_group("pair", [2, 3], 8)
    scheduler = make_scheduler(first, pair, num_gpu_blocks=6, num_cpu_blocks=4)
    for _ in range(num_steps):
        compute(scheduler.schedule())
    assert pair in getattr(scheduler, state)
    scheduler.abort_seq_group(pair)
    assert [seq.status for seq in pair.seqs] == [SequenceStatus.FINISHED_ABORTED] * 2
    assert pair not in [*scheduler.waiting, *scheduler.running, *scheduler.swapped]
    outputs = scheduler.schedule()
    assert set(planned(outputs)) == {"first"}
    assert outputs.execute_model_req.finished_requests_ids == ["pair"]
    scheduler.block_manager.check()
    stats = scheduler.block_manager.stats
    assert (stats.used, stats.free_cpu) == (2 if state == "waiting" else 3, 4)
