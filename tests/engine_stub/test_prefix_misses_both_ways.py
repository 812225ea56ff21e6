"""The causes derived from the events of the pool equal those from the manager's own lookups."""

import random
from collections import Counter
from itertools import groupby

import pytest

from engine_stub.entrypoints.publishing import StepPublisher
from engine_stub.step_record import StepRecord
from seqtop.publish.prefix_history import PrefixHistory
from seqtop.sequence import LoRARequest
from seqtop.wire.messages import Event, PrefixMiss, RequestArrived, Step
from tests.support.random_runs import RandomRun

ADAPTERS = (None, None, LoRARequest("poems", 1, "/poems"), LoRARequest("songs", 2, "/songs"))


class Old:
    """The derivation that was in `StepPublisher`."""

    def __init__(self) -> None:
        self._history = PrefixHistory()
        self.request_ids: dict[int, str] = {}

    def misses(self, record: StepRecord) -> dict[int, list[PrefixMiss]]:
        for group in (*record.ignored, *record.aborted):
            for seq in group.seqs:
                self.request_ids.pop(seq.seq_id, None)
        changes, history, request_ids = record.cache_changes, self._history, self.request_ids
        misses: dict[int, list[PrefixMiss]] = {}
        num_removed = 0

        def evict_up_to(end: int) -> None:
            nonlocal num_removed
            for _, block_hash, seq_id in changes.removed[num_removed:end]:
                history.evict(record.step, request_ids.get(seq_id), block_hash)
            num_removed = end

        groups = groupby(changes.lookups, key=lambda lookup: request_ids[lookup.seq_id])
        for request_id, lookups in groups:
            of_group = list(lookups)
            evict_up_to(of_group[0].num_removed)
            causes = history.look_up(
                record.step, request_id, [admission.lookup for admission in of_group]
            )
            misses |= zip((admission.seq_id for admission in of_group), causes, strict=True)
        evict_up_to(len(changes.removed))
        for update in record.updates:
            if update.parent_seq_id is not None:
                request_ids[update.seq.seq_id] = update.request_id
        for _, block_hash, token_hash, seq_id, _ in changes.stored:
            history.store(record.step, request_ids[seq_id], block_hash, token_hash)
        for update in record.updates:
            if update.is_removed:
                request_ids.pop(update.seq.seq_id, None)
        for group in record.finished:
            for seq in group.seqs:
                request_ids.pop(seq.seq_id, None)
        return misses


class BothWays(RandomRun):
    """A random run, some of whose requests have adapters."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.old = Old()
        self.seen: Counter[str] = Counter()
        self._adapters = random.Random(seed)

    def publish(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            group = self.engine.seq_groups[event.request_id]
            for seq in group.seqs:
                seq.lora_request = self._adapters.choice(ADAPTERS)
                self.old.request_ids[seq.seq_id] = event.request_id
        elif isinstance(event, Step):
            self.published = event

    def _step(self, steps: StepPublisher) -> None:
        record = self.engine.step()
        self.num_steps += 1
        self._step_start = record.start_time
        expected = self.old.misses(record)
        steps.stepped(record)
        of_step = {update.seq.seq_id for update in record.updates}
        misses = {
            update.seq_id: update.prefix_misses
            for update in self.published.sequences
            if update.prefix_misses is not None
        }
        self.seen["lookups"] += len(expected)
        self.seen["events"] += len(record.cache_events)
        assert misses.keys() == expected.keys() & of_step
        for seq_id, of_seq in misses.items():
            assert by_token(of_seq) == by_token(expected[seq_id])
            self.seen.update(miss.cause for miss in of_seq)


def by_token(misses: list[PrefixMiss]) -> list[tuple[object, ...]]:
    # The new derivation names the last request with the same tokens also after their eviction.
    return [
        (miss.cause, miss.step, None if miss.cause == "extra_keys" else miss.request_id)
        for miss in misses
        for _ in range(miss.num_tokens)
    ]


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_both_derivations_agree(start: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(start, start + 50):
        run = BothWays(seed)
        for _ in run.steps(run):
            pass
        seen += run.seen
    assert {"new_tokens", "evicted", "not_stored", "extra_keys", "partial_block"} <= seen.keys()
