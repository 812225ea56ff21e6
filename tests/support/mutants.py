"""A correct run of the bundled engine, and for each rule a way to break it.

The run has prefix hits, chunked prefills, preemptions and an abort.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import (
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.wire import codec, parsing
from seqtop.wire.arrays import Ints
from seqtop.wire.batch import members, metadata_of
from seqtop.wire.messages import (
    CachedBlocks,
    Event,
    NotPublished,
    RequestArrived,
    RequestFinished,
    Step,
)
from seqtop.wire.redaction import redact
from tests.support import events as builders
from tests.support import field_cases
from tests.support.events import engine_info, stats
from tests.support.simulated_scheduler import REMOTE, SimulatedScheduler

PREAMBLE = "You are a storyteller who likes rivers, lanterns, bread and old clocks. " * 2
PROMPTS = (PREAMBLE + "Tell me more.", PREAMBLE + "Begin!", "Why? " * 40, "Hello", "One day", "Ah")

Run: TypeAlias = list[Any]
"""The events of a run, which a mutant changes without regard to their types."""


class PayloadCollector:
    """Collects what is published, as the bytes a viewer would get."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, event: Event) -> None:
        self.payloads.append(codec.encode(event))


def events(payloads: list[bytes]) -> list[Event]:
    """Fresh objects, for a test to damage."""
    return [parsing.event(payload) for payload in payloads]


def check(run: list[Event], **options: Any) -> list[Finding]:
    checker = Checker(**options)
    findings = [finding for event in run for finding in checker.apply(event)]
    return findings + checker.end()


def steps_of(run: Run) -> list[Any]:
    return [event for event in run if isinstance(event, Step)]


def first_finish(run: Run) -> Any:
    return next(event for event in run if isinstance(event, RequestFinished))


def decoding(run: Run) -> tuple[Any, int]:
    """A step in the middle of things, and the index of an update in it that decodes."""
    for step in steps_of(run)[20:]:
        for index, update in enumerate(step.sequences):
            if update.top_logprobs and update.status is None:
                return step, index
    raise AssertionError("nothing decodes")


def collide(run: Run) -> None:
    """Two prompts that share blocks turn out to differ, as if their hashes had collided."""
    arrival = next(
        event
        for event in run
        if isinstance(event, RequestArrived) and PREAMBLE in (event.prompt or "")
    )
    arrival.prompt_token_ids[0] += 1


def misname_a_block(run: Run) -> None:
    """A block gets a number beyond the pool, consistently."""
    for step in steps_of(run):
        tables = [list_ for update in step.sequences for list_ in (update.new_blocks,)]
        for group in step.execute.seq_group_metadata_list:
            tables += group.block_tables.values()
        tables += [
            step.uncached_blocks,
            *(newly_cached_block.blocks for newly_cached_block in step.newly_cached_blocks),
        ]
        for table in tables:
            table[:] = [1_000 if block == 5 else block for block in table]


def leak(run: Run) -> None:
    stats = decoding(run)[0].stats
    stats.num_used_blocks += 1
    stats.num_free_blocks -= 1


def lose_count(run: Run) -> None:
    decoding(run)[0].stats.num_free_blocks += 1


def think_a_free_block_cached(run: Run) -> None:
    stats = decoding(run)[0].stats
    stats.num_cached_blocks += 1
    stats.num_free_blocks -= 1


def shrink_blocks(run: Run) -> None:
    """Smaller blocks make tables too short."""
    run[0].block_size -= 1


def compute_too_much(run: Run) -> None:
    for step in steps_of(run):
        for update in step.sequences:
            if update.status is not None and SequenceStatus.is_finished(update.status):
                update.num_computed_tokens = 1_000
                return


def forget_computed(run: Run) -> None:
    """Tokens are no longer computed after the end of a sequence, so that no chunk continues it."""
    for step in steps_of(run):
        for member in members(step):
            if SequenceStatus.is_finished(member.status) and member.update is not None:
                member.update.num_computed_tokens = member.num_computed_before - 1
                return


def resurrect(run: Run) -> None:
    _say_more_of_an_ended_sequence(run, status=SequenceStatus.WAITING)


def talk_on(run: Run) -> None:
    _say_more_of_an_ended_sequence(run, new_token_ids=[5], new_logprobs=[-1.0], text_delta="x")


def _say_more_of_an_ended_sequence(run: list[Event], **changes: Any) -> None:
    ended = None
    for step in steps_of(run):
        if ended is not None:
            step.sequences.append(
                msgspec.structs.replace(ended, **{"new_token_ids": [], "new_logprobs": [],
                                                  "text_delta": ""} | changes)
            )  # fmt: skip
            return
        ended = next(
            (
                update
                for update in step.sequences
                if update.status is not None and SequenceStatus.is_finished(update.status)
            ),
            None,
        )


def name_a_stranger(run: Run) -> None:
    step, index = decoding(run)
    step.sequences.append(msgspec.structs.replace(step.sequences[index], seq_id=999))


def append_twice(run: Run) -> None:
    """A block that one sequence is given goes to another one, too."""
    for step in steps_of(run)[20:]:
        grown = [update for update in step.sequences if update.new_blocks]
        others = [update for update in step.sequences if not update.new_blocks]
        if len(grown) == 1 and others:
            others[0].new_blocks = grown[0].new_blocks
            return
    raise AssertionError("no step appends a block to one of several sequences")


def decode_on(run: Run) -> None:
    """An ended sequence stays in the batch."""
    ended = first_finish(run)
    _put_in_batch(steps_of(run)[-1], ended.request_id, ended.seq_ids[0])


def decode_a_stranger(run: Run) -> None:
    """It decodes beside few others, so that no limit is exceeded."""
    _put_in_batch(steps_of(run)[-1], "req-999", 999)


def _put_in_batch(step: Any, request_id: str, seq_id: int) -> None:
    delta = SequenceDataDelta([], 0.0, 1, SequenceStage.DECODE)
    step.execute.seq_group_metadata_list.append(
        SequenceGroupMetadataDelta({seq_id: delta}, request_id, {}, False, token_chunk_size=1)
    )
    step.stats.num_decode_tokens += 1


def end_before_the_start(run: Run) -> None:
    step, _ = decoding(run)
    step.start_time = step.time + 1.0


def answer_before_asked(run: Run) -> None:
    metrics = first_finish(run).metrics
    metrics.first_token_time = metrics.first_scheduled_time - 1.0


def miscount_the_queue(run: Run) -> None:
    first_finish(run).metrics.time_in_queue += 1.0


def undercount_the_queue(run: Run) -> None:
    first_finish(run).metrics.time_in_queue -= 1.0


def tighten_the_budget(run: Run) -> None:
    run[0].max_num_batched_tokens = 8


def overlook(run: Run) -> None:
    """The request that was last in the queue had really been there before all others."""
    arrival: Any = [event for event in run if isinstance(event, RequestArrived)][-1]
    run.remove(arrival)
    run.insert(1, arrival)
    arrival.arrival_time = arrival.metrics.arrival_time = 1.0


def end_twice(run: Run) -> None:
    """A sequence that has stopped is aborted afterwards."""
    _say_more_of_an_ended_sequence(run, status=SequenceStatus.FINISHED_ABORTED)


def swallow_a_character(run: Run) -> None:
    first_finish(run).text_lengths[0] += 1


def swap_nothing(run: Run) -> None:
    steps_of(run)[0].execute.blocks_to_swap_out.append((3, 0))


def count_backwards(run: Run) -> None:
    steps_of(run)[20].step = 5


def miscount_a_prompt(run: Run) -> None:
    arrival = next(event for event in run if isinstance(event, RequestArrived))
    arrival.num_prompt_tokens += 1


def refuse_a_message(run: Run) -> None:
    """The publisher could not make a message of what its adapter says."""
    time = steps_of(run)[10].time
    reason = "request 'a' has 7 prompt tokens, and had 8"
    place = run.index(steps_of(run)[10]) + 1
    run.insert(place, NotPublished(time=time, num_messages=1, reason=reason))


def take_no_number_of_seconds(run: Run) -> None:
    decoding(run)[0].stats.model_forward_time = float("nan")


def sample_beyond_any_vocabulary(run: Run) -> None:
    """The last token of a sequence, which no metadata repeats."""
    update = next(
        update
        for step in steps_of(run)
        for update in step.sequences
        if update.status is SequenceStatus.FINISHED_LENGTH_CAPPED
    )
    update.new_token_ids[0] = 2**40


def spin(run: Run) -> None:
    """The engine makes 120 empty steps before it begins."""
    first, num = steps_of(run)[0], 120
    for later in steps_of(run):
        later.step += num
    run[run.index(first) : run.index(first)] = [
        msgspec.structs.replace(
            builders.step(number, stats=stats(num_free_blocks=20)),
            start_time=first.start_time,
            time=first.start_time,
        )
        for number in range(num)
    ]


def preempt_thrice_more(run: Run) -> None:
    step = next(step for step in steps_of(run) if step.preemptions)
    step.preemptions += step.preemptions[:1] * 3


def leave_a_prefill(run: Run) -> None:
    """A prefill is not continued, while another request decodes."""
    run[:] = [engine_info(block_size=512), builders.arrival(1), builders.arrival(2)]
    figures = stats(num_used_blocks=2, num_free_blocks=62, num_prefill_tokens=1, num_running=2)
    running = SequenceStatus.RUNNING
    for number in range(150):
        decoded = builders.update(2, running, 3 + number, tokens=[5])
        updates = [decoded]
        if number == 0:
            decoded.new_blocks = [1]
            updates += [builders.update(1, running, 1, blocks=[0])]
        run.append(builders.step(number, sequences=updates, stats=figures))


def compute_again(run: Run) -> None:
    """A prefill computes the same token again and again, while another request decodes."""
    leave_a_prefill(run)
    for step in steps_of(run)[1:]:
        step.sequences.append(builders.update(1, computed=1))


def leave_a_prefill_for_half_a_minute(run: Run) -> None:
    leave_a_prefill(run)
    del run[33:]


def in_blocks_of_four(run: Run, *num_prompt_tokens: int) -> None:
    """Replaces the run by one of requests that share a prompt, in a pool of eight blocks."""
    run[:] = [engine_info(block_size=4, num_gpu_blocks=8)]
    for seq_id, num in enumerate(num_prompt_tokens, 1):
        run.append(
            RequestArrived(
                request_id=f"req-{seq_id}",
                arrival_time=50.0 + seq_id,
                seq_ids=[seq_id],
                num_prompt_tokens=num,
                prompt_token_ids=Ints.of(range(num)),
            )
        )


def share_a_block(run: Run, num_computed_tokens: int) -> None:
    """The second request hits the block of the first."""
    in_blocks_of_four(run, 4, 4)
    running = SequenceStatus.RUNNING
    updates = [
        builders.update(1, running, num_computed_tokens, blocks=[0]),
        builders.update(2, running, 4, cached=4, blocks=[0]),
    ]
    figures = stats(num_used_blocks=1, num_free_blocks=7, num_prefill_tokens=4, num_running=2)
    run.append(builders.step(0, sequences=updates, stats=figures))


def hit_what_is_not_computed(run: Run) -> None:
    share_a_block(run, num_computed_tokens=2)


def preempt_in_vain(run: Run) -> None:
    share_a_block(run, num_computed_tokens=4)
    waiting = builders.update(2, SequenceStatus.WAITING, 0, table=[])
    preemption = builders.preemption("req-2", lost=4, by="req-1")
    figures = stats(num_used_blocks=1, num_free_blocks=7, num_running=1)
    run.append(builders.step(1, sequences=[waiting], preemptions=[preemption], stats=figures))


def hit_what_is_not_cached(run: Run) -> None:
    """The first request has a prefix hit, and the prefix cache is empty."""
    in_blocks_of_four(run, 8)
    update = builders.update(1, SequenceStatus.RUNNING, 8, cached=4, blocks=[0, 1])
    figures = stats(num_used_blocks=2, num_free_blocks=6, num_prefill_tokens=4, num_running=1)
    run.append(builders.step(0, sequences=[update], stats=figures, newly_cached_blocks=[]))


def cache_a_part_of_a_block(run: Run) -> None:
    """A block is in the prefix cache when all but one of its tokens are computed."""
    share_a_block(run, num_computed_tokens=4)
    (step,) = steps_of(run)
    step.sequences[0].num_computed_tokens = step.sequences[1].num_computed_tokens = 3
    step.sequences[1].num_cached_tokens = None
    step.newly_cached_blocks = [
        CachedBlocks(request_id="req-1", seq_id=1, position=0, blocks=[0]),
    ]


def share_across_adapters(run: Run) -> None:
    share_a_block(run, num_computed_tokens=4)
    run[1].lora = "pirate"


def forget_a_host_block(run: Run) -> None:
    """A request that was swapped out is aborted, and its host block is not freed."""
    in_blocks_of_four(run, 4)
    run[0].num_cpu_blocks = 8
    running = builders.update(1, SequenceStatus.RUNNING, 4, blocks=[0])
    figures = stats(num_used_blocks=1, num_free_blocks=7, num_free_cpu_blocks=8)
    run.append(builders.step(0, sequences=[running], stats=figures))
    swapped, aborted = (
        builders.update(1, status, table=[])
        for status in (SequenceStatus.SWAPPED, SequenceStatus.FINISHED_ABORTED)
    )
    preemption = builders.preemption("req-1", mode="swap")
    figures = stats(num_free_blocks=8, num_free_cpu_blocks=7)
    out = builders.step(1, sequences=[swapped], stats=figures, preemptions=[preemption])
    out.execute.blocks_to_swap_out.append((0, 5))
    run += [out, *(builders.step(2 + n, sequences=[aborted], stats=figures) for n in range(2))]


def sample_one_more(run: Run) -> None:
    for event in run:
        if isinstance(event, RequestArrived) and event.sampling_params is not None:
            event.sampling_params.max_tokens = 89


def skip_tokens(run: Run) -> None:
    """A chunk begins one token late, and ends where it should."""
    step, index = decoding(run)
    seq_id = step.sequences[index].seq_id
    (member,) = (member for member in members(step) if member.seq_id == seq_id)
    step.sequences[index].num_computed_tokens = member.num_computed_tokens
    group = metadata_of(step, member.request_id)
    group.seq_data_delta[seq_id].new_num_computed_tokens += 1


def append_to_the_metadata_twice(run: Run) -> None:
    step, index = decoding(run)
    seq_id = step.sequences[index].seq_id
    (member,) = (member for member in members(step) if member.seq_id == seq_id)
    data = metadata_of(step, member.request_id).seq_data_delta[seq_id]
    data.new_output_token_ids *= 2


def lose_a_token(run: Run) -> None:
    decoding(run)[0].stats.num_decode_tokens -= 1


def serve_the_lower_priority(run: Run) -> None:
    (preemption, *_) = (own for step in steps_of(run) for own in step.preemptions)
    arrival = next(
        event
        for event in run
        if isinstance(event, RequestArrived) and event.request_id == preemption.for_request_id
    )
    arrival.priority = 1


def wait_for_free_blocks(run: Run) -> None:
    """A request decodes, and another one waits for blocks of which most are free."""
    in_blocks_of_four(run, 3, 3)
    run[0].num_gpu_blocks = 64
    running = SequenceStatus.RUNNING
    for number in range(40):
        decoded = builders.update(1, running, 3 + number, tokens=[5])
        held = -(-(3 + number) // 4)
        decoded.new_blocks = [held - 1] if number == 0 or (3 + number) % 4 == 1 else []
        figures = stats(
            num_used_blocks=held, num_free_blocks=64 - held, num_decode_tokens=1, num_running=1
        )
        reason = builders.wait_reason("req-2", "no_blocks")
        run.append(builders.step(number, sequences=[decoded], stats=figures, wait_reasons=[reason]))


def wait_for_each_other(run: Run) -> None:
    """The first request misses a block, and the second one, which waits too, has six of eight."""
    in_blocks_of_four(run, 12, 24)
    holds = builders.update(2, SequenceStatus.WAITING, table=[*range(6)])
    figures = stats(num_used_blocks=6, num_free_blocks=2, num_waiting=2)
    reason = builders.wait_reason("req-1", "no_blocks", 1)
    run += [
        builders.step(
            number, sequences=[holds] * (number == 0), stats=figures, wait_reasons=[reason]
        )
        for number in range(4)
    ]


def ask_too_much(run: Run) -> None:
    """A request of nine blocks waits in a pool of eight."""
    in_blocks_of_four(run, 33)
    run += [
        builders.step(number, stats=stats(num_free_blocks=8, num_waiting=1)) for number in range(4)
    ]


def count_hits_twice(run: Run) -> None:
    """The prefix cache has more hits than were looked up, from a step on."""
    step = decoding(run)[0]
    for later in steps_of(run):
        if later.step >= step.step:
            later.stats.prefix_cache_hits = later.stats.prefix_cache_queries + 1


def free_too_often(run: Run) -> None:
    """The number of used blocks is negative."""
    figures = decoding(run)[0].stats
    figures.num_free_blocks += figures.num_used_blocks + 5
    figures.num_used_blocks = -5


def forget_preemptions(run: Run) -> None:
    """The engine counts its preemptions from 0 again."""
    last = max(step.stats.num_preemptions for step in steps_of(run))
    first = next(step for step in steps_of(run) if step.stats.num_preemptions == last)
    for step in steps_of(run):
        if step.step > first.step:
            step.stats.num_preemptions -= last


def replace_by(make: Callable[[], list[Event]]) -> Callable[[Run], None]:
    def mutate(run: Run) -> None:
        run[:] = make()

    return mutate


def load_for_ever(run: Run) -> None:
    """A load has no end, while others are served."""
    simulated = SimulatedScheduler()
    simulated.add("lost", 100, 10, status=REMOTE)
    while simulated.now < 1_032.0:
        simulated.add(f"r{simulated.num_ids}", 30, 10)
        simulated.steps(20)
    run[:] = simulated.events


def never_send(run: Run) -> None:
    """A request has ended, and keeps its blocks while others are served."""
    simulated = SimulatedScheduler()
    simulated.add("sent", 100, 2, keeps_blocks=True)
    while simulated.now < 1_022.0:
        simulated.add(f"r{simulated.num_ids}", 30, 10)
        simulated.steps(20)
    run[:] = simulated.events


def repeat_a_token(run: Run) -> None:
    simulated = SimulatedScheduler(max_num_seqs=2)
    vars(simulated)["sample"] = lambda request: 7
    simulated.add("loop", 20, 1_100)
    simulated.run_out()
    run[:] = simulated.events


def skip_every_second_batch(run: Run) -> None:
    """Requests wait, and every second step has no batch."""
    simulated = SimulatedScheduler(max_num_seqs=4)
    vars(simulated)["may_run"] = lambda request: simulated.number % 2 == 0
    for number in range(20):
        simulated.add(f"r{number}", 30, 300)
    while simulated.now < 1_011.0:
        simulated.step()
    run[:] = simulated.events


def ask_too_little(run: Run) -> None:
    """Prompts are shorter than a block of the prefix cache."""
    simulated = SimulatedScheduler(block_size=256, enable_prefix_caching=True)
    for number in range(25):
        simulated.add(f"r{number}", 100 + number, 4)
        simulated.steps(3)
    simulated.run_out()
    run[:] = simulated.events


Mutant: TypeAlias = tuple[str, Callable[[list[Event]], None]]
"""The name of a rule, and a function that breaks a run so that this rule alone finds it."""

BLOCK_MUTANTS: list[Mutant] = [
    ("block-shared", collide),
    ("block-range", misname_a_block),
    ("block-leak", leak),
    ("pool-sum", lose_count),
    ("cache-sum", think_a_free_block_cached),
    ("swap-map", swap_nothing),
    ("hit-before-computed", hit_what_is_not_computed),
    ("preempt-gains-nothing", preempt_in_vain),
    ("block-shared", append_twice),
    ("block-shared", share_across_adapters),
    ("host-leak", forget_a_host_block),
    ("hit-not-cached", hit_what_is_not_cached),
    ("cached-before-computed", cache_a_part_of_a_block),
]
FIGURE_MUTANTS: list[Mutant] = [
    ("impossible-figure", count_hits_twice),
    ("impossible-figure", free_too_often),
    ("impossible-figure", forget_preemptions),
    ("impossible-figure", miscount_a_prompt),
    ("stale-table", replace_by(field_cases.window_table)),
]
LIMIT_MUTANTS: list[Mutant] = [
    ("wait-limit", load_for_ever),
    ("blocks-after-end", never_send),
    ("priority-wait", replace_by(field_cases.priority_waits)),
    ("repetition", repeat_a_token),
    ("recomputes", replace_by(field_cases.pool_is_oversubscribed)),
    ("empty-steps", skip_every_second_batch),
    ("cache-in-vain", ask_too_little),
]
LIFECYCLE_MUTANTS: list[Mutant] = [
    ("table-short", shrink_blocks),
    ("computed-beyond", compute_too_much),
    ("computed-back", forget_computed),
    ("transition", resurrect),
    ("transition", end_twice),
    ("late-token", talk_on),
    ("unknown", name_a_stranger),
    ("text-length", swallow_a_character),
    ("late-token", decode_on),
    ("unknown", decode_a_stranger),
    ("max-tokens", sample_one_more),
    ("chunk-start", skip_tokens),
    ("output-differs", append_to_the_metadata_twice),
]
SCHEDULING_MUTANTS: list[Mutant] = [
    ("budget", tighten_the_budget),
    ("token-sum", lose_a_token),
    ("priority-inversion", serve_the_lower_priority),
]
LIVENESS_MUTANTS: list[Mutant] = [
    ("no-progress", spin),
    ("deadlock", wait_for_each_other),
    ("never-fits", ask_too_much),
    ("overtaken", overlook),
    ("thrash", preempt_thrice_more),
    ("stalled", compute_again),
    ("orphan", leave_a_prefill_for_half_a_minute),
    ("wait-reason", wait_for_free_blocks),
]
MESSAGE_MUTANTS: list[Mutant] = [
    ("step-number", count_backwards),
    ("not-finite", take_no_number_of_seconds),
    ("id-range", sample_beyond_any_vocabulary),
    ("not-published", refuse_a_message),
]
TIME_MUTANTS: list[Mutant] = [
    ("time-order", end_before_the_start),
    ("queue-time", miscount_the_queue),
    ("queue-time", undercount_the_queue),
    ("time-order", answer_before_asked),
]
MUTANTS = (
    BLOCK_MUTANTS
    + FIGURE_MUTANTS
    + LIMIT_MUTANTS
    + LIFECYCLE_MUTANTS
    + LIVENESS_MUTANTS
    + MESSAGE_MUTANTS
    + SCHEDULING_MUTANTS
    + TIME_MUTANTS
)


NEED_TEXT = (
    collide,
    append_to_the_metadata_twice,
    sample_beyond_any_vocabulary,
    swallow_a_character,
    repeat_a_token,
    miscount_a_prompt,
)
"""The mutants that differ from a correct run in tokens or text alone, which redaction removes."""


def mutated(payloads: list[bytes], rule: str) -> list[Event]:
    """The run with the first of a rule's mutants."""
    run = events(payloads)
    next(mutate for name, mutate in MUTANTS if name == rule)(run)
    return run


def assert_found(payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]) -> None:
    """Assert that a mutant of the run is found by its rule alone, and so when it is redacted."""
    run, again = events(payloads), events(payloads)
    mutate(run)
    mutate(again)
    thresholds = Thresholds(overtaken_requests=3, overtaken_seconds=0.05, empty_seconds=1e-9)
    findings = check(run, thresholds=thresholds)
    redacted = check([redact(event) for event in again], thresholds=thresholds)
    assert redacted == ([] if mutate in NEED_TEXT else findings)
    # One that is passed over has no source of progress, if the engine took long enough to show it.
    others = {"orphan"} if rule == "overtaken" else set()
    assert {finding.rule for finding in findings} - others == {rule}
    assert all(finding.message for finding in findings)
