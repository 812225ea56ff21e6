"""A correct run of the bundled engine, and for each rule a way to break it.

The run has prefix hits, chunked prefills, preemptions and an abort.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from seqtop.checks import Checker, Finding
from seqtop.sequence import SequenceStatus
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event, RequestArrived, RequestFinished, Step

PREAMBLE = "You are a storyteller who likes rivers, lanterns, bread and old clocks. " * 2
PROMPTS = (PREAMBLE + "Tell me more.", PREAMBLE + "Begin!", "Why? " * 40, "Hello", "One day", "Ah")


class Tape:
    """Collects what is published, as the bytes a viewer would get."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def publish(self, event: Event) -> None:
        self.payloads.append(codec.encode(event))


def events(tape: list[bytes]) -> list[Any]:
    """Fresh objects, for a test to spoil."""
    return [parsing.event(payload) for payload in tape]


def check(run: list[Any], *, starvation_time: float = 60.0) -> list[Finding]:
    checker = Checker(starvation_time=starvation_time)
    findings = [finding for event in run for finding in checker.apply(event)]
    return findings + checker.end()


def steps_of(run: list[Any]) -> list[Step]:
    return [event for event in run if isinstance(event, Step)]


def first_finish(run: list[Any]) -> RequestFinished:
    return next(event for event in run if isinstance(event, RequestFinished))


def decoding(run: list[Any]) -> tuple[Step, int]:
    """A step in the middle of things, and the index of an update in it that decodes."""
    for step in steps_of(run)[20:]:
        for index, update in enumerate(step.sequences):
            if update.top_logprobs and update.status is SequenceStatus.RUNNING:
                return step, index
    raise AssertionError("nothing decodes")


def collide(run: list[Any]) -> None:
    """Two prompts that share blocks turn out to differ, as if their hashes had collided."""
    arrival = next(
        each for each in run if isinstance(each, RequestArrived) and PREAMBLE in (each.prompt or "")
    )
    arrival.prompt_token_ids[0] += 1


def misname_a_block(run: list[Any]) -> None:
    """A block gets a number beyond the pool, consistently."""
    for step in steps_of(run):
        tables = [list_ for update in step.sequences for list_ in (update.new_blocks,)]
        for group in step.execute.seq_group_metadata_list:
            tables += group.block_tables.values()
        tables += [step.uncached_blocks, *(each.blocks for each in step.newly_cached_blocks or ())]
        for table in tables:
            table[:] = [1_000 if block == 5 else block for block in table]
        if step.decodes:
            new_blocks = step.decodes.new_blocks
            new_blocks |= {seq_id: 1_000 for seq_id, block in new_blocks.items() if block == 5}


def leak(run: list[Any]) -> None:
    stats = decoding(run)[0].stats
    stats.num_used_blocks += 1
    stats.num_free_blocks -= 1


def lose_count(run: list[Any]) -> None:
    decoding(run)[0].stats.num_free_blocks += 1


def think_a_free_block_cached(run: list[Any]) -> None:
    stats = decoding(run)[0].stats
    stats.num_cached_blocks += 1
    stats.num_free_blocks -= 1


def shrink_blocks(run: list[Any]) -> None:
    """Blocks of half the size make every table too short."""
    run[0].block_size //= 2


def compute_too_much(run: list[Any]) -> None:
    for step in steps_of(run):
        for update in step.sequences:
            if SequenceStatus.is_finished(update.status):
                update.num_computed_tokens += 1_000
                return


def forget_computed(run: list[Any]) -> None:
    step, index = decoding(run)
    step.sequences[index].num_computed_tokens -= 2


def resurrect(run: list[Any]) -> None:
    _say_more_of_an_ended_sequence(run, status=SequenceStatus.WAITING)


def talk_on(run: list[Any]) -> None:
    _say_more_of_an_ended_sequence(run, new_token_ids=[5], new_logprobs=[-1.0], text_delta="x")


def _say_more_of_an_ended_sequence(run: list[Any], **changes: object) -> None:
    ended = None
    for step in steps_of(run):
        if ended is not None:
            step.sequences.append(
                msgspec.structs.replace(ended, **{"new_token_ids": [], "new_logprobs": [],
                                                  "text_delta": ""} | changes)
            )  # fmt: skip
            return
        ended = next(
            (each for each in step.sequences if SequenceStatus.is_finished(each.status)), None
        )


def name_a_stranger(run: list[Any]) -> None:
    step, index = decoding(run)
    step.sequences.append(msgspec.structs.replace(step.sequences[index], seq_id=999))


def append_twice(run: list[Any]) -> None:
    """A block that one sequence is given goes to another one, too, told in columns."""
    columns = next(
        step.decodes
        for step in steps_of(run)[20:]
        if step.decodes and len(step.decodes.seq_ids) > len(step.decodes.new_blocks) == 1
    )
    ((seq_id, block),) = columns.new_blocks.items()
    columns.new_blocks[next(each for each in columns.seq_ids if each != seq_id)] = block


def decode_on(run: list[Any]) -> None:
    """An ended sequence stays in the columns."""
    ended = first_finish(run).seq_ids[0]
    step = next(each for each in steps_of(run)[::-1] if each.decodes)
    assert step.decodes is not None
    assert ended not in step.decodes.seq_ids
    _put_in_columns(step, ended)


def decode_a_stranger(run: list[Any]) -> None:
    _put_in_columns(next(each for each in steps_of(run) if each.decodes), 999)


def _put_in_columns(step: Step, seq_id: int) -> None:
    assert step.decodes is not None
    step.decodes.seq_ids.append(seq_id)
    step.decodes.new_token_ids.append(1)
    step.decodes.new_logprobs.append(-1.0)
    step.decodes.text_deltas.append("x")


def end_before_the_start(run: list[Any]) -> None:
    step, _ = decoding(run)
    step.start_time = step.time + 1.0


def answer_before_asked(run: list[Any]) -> None:
    metrics = first_finish(run).metrics
    assert metrics.first_scheduled_time is not None
    metrics.first_token_time = metrics.first_scheduled_time - 1.0


def miscount_the_queue(run: list[Any]) -> None:
    metrics = first_finish(run).metrics
    assert metrics.time_in_queue is not None
    metrics.time_in_queue += 1.0


def tighten_the_budget(run: list[Any]) -> None:
    run[0].max_num_batched_tokens = 8


def overlook(run: list[Any]) -> None:
    """The request that was last in the queue had really been there before all others."""
    arrival = [each for each in run if isinstance(each, RequestArrived)][-1]
    run.remove(arrival)
    run.insert(1, arrival)
    assert arrival.metrics is not None
    arrival.arrival_time = arrival.metrics.arrival_time = 1.0


def swallow_a_character(run: list[Any]) -> None:
    first_finish(run).text_lengths[0] += 1


def swap_nothing(run: list[Any]) -> None:
    steps_of(run)[0].execute.blocks_to_swap_out.append((3, 0))


Mutant: TypeAlias = tuple[str, Callable[[list[Any]], None]]
"""The name of a rule, and a function that breaks a run so that this rule alone finds it."""

BLOCK_MUTANTS: list[Mutant] = [
    ("block-shared", collide),
    ("block-range", misname_a_block),
    ("block-leak", leak),
    ("pool-sum", lose_count),
    ("cache-sum", think_a_free_block_cached),
    ("swap-map", swap_nothing),
    ("block-shared", append_twice),
]
LIFECYCLE_MUTANTS: list[Mutant] = [
    ("table-short", shrink_blocks),
    ("computed-beyond", compute_too_much),
    ("computed-back", forget_computed),
    ("transition", resurrect),
    ("late-token", talk_on),
    ("unknown", name_a_stranger),
    ("text-length", swallow_a_character),
    ("late-token", decode_on),
    ("unknown", decode_a_stranger),
]
SCHEDULING_MUTANTS: list[Mutant] = [
    ("budget", tighten_the_budget),
    ("starvation", overlook),
]
TIME_MUTANTS: list[Mutant] = [
    ("time-order", end_before_the_start),
    ("queue-time", miscount_the_queue),
    ("time-order", answer_before_asked),
]
MUTANTS = BLOCK_MUTANTS + LIFECYCLE_MUTANTS + SCHEDULING_MUTANTS + TIME_MUTANTS


def assert_found(tape: list[bytes], rule: str, mutate: Callable[[list[Any]], None]) -> None:
    """Assert that a mutant of the run is found by its rule alone."""
    run = events(tape)
    mutate(run)
    findings = check(run, starvation_time=0.05)
    assert {finding.rule for finding in findings} == {rule}
    assert all(finding.message for finding in findings)
