"""Block accounting: every block has one state, shared ones are counted, the oldest goes first."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine_stub.core.block_manager import BlockManager
from engine_stub.step_record import BlockRemoved, BlockStored, PrefixQueried, TableChanges
from seqtop.sequence import LoRARequest, Sequence, token_inputs

BLOCK_SIZE = 4


def make_seq(seq_id: int, token_ids: list[int], lora: LoRARequest | None = None) -> Sequence:
    return Sequence(seq_id, token_inputs(token_ids), BLOCK_SIZE, lora_request=lora)


def make_manager(num_blocks: int, *, caching: bool = True) -> BlockManager:
    return BlockManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=caching)


def allocate(manager: BlockManager, seq: Sequence) -> int:
    """Place and allocate; returns the number of blocks found in the cache."""
    computed = manager.get_computed_blocks([seq])
    assert manager.num_missing_blocks(computed.num_required_blocks) == 0
    manager.allocate_slots([seq], computed)
    manager.check()
    return len(computed.blocks)


def compute(manager: BlockManager, seq: Sequence) -> None:
    seq.data.update_num_computed_tokens(seq.data.get_num_uncomputed_tokens())
    manager.cache_blocks(seq)
    manager.check()


def can_append(manager: BlockManager, seq: Sequence) -> bool:
    return manager.num_blocks_to_append([seq]) <= manager.num_available


def append(seq: Sequence, token_id: int) -> None:
    seq.data.append_token_id(token_id, -1.0)


def test_forks_share_blocks_until_one_writes() -> None:
    manager = make_manager(8)
    parent, child = make_seq(0, [1] * 6), make_seq(1, [1] * 6)
    allocate(manager, parent)
    compute(manager, parent)
    child.data.update_num_computed_tokens(6)
    manager.begin_step()
    manager.fork(parent, child)
    assert manager.table_changes == TableChanges(replaced={1: [0, 1]})
    assert (manager.stats.used, manager.get_block_table(child)) == (2, [0, 1])
    for seq in (parent, child):
        append(seq, 5)
    manager.begin_step()
    assert manager.num_blocks_to_append([parent, child]) == 1
    assert manager.append_slots([parent, child]) == [(1, 2)], "the first to write has a copy"
    assert manager.get_block_table(parent) == [0, 2]
    assert manager.get_block_table(child) == [0, 1]
    assert manager.table_changes == TableChanges(replaced={0: [0, 2]})
    manager.check()
    for seq in (parent, child):
        for token_id in (6, 7):
            append(seq, token_id)
    manager.begin_step()
    assert manager.append_slots([parent, child]) == []
    assert manager.table_changes == TableChanges(appended={0: [3], 1: [4]})


def test_adapters_do_not_share_blocks() -> None:
    manager = make_manager(16)
    lora = LoRARequest("l", 1, "/l")
    num_hits = []
    for seq_id, adapter in enumerate((None, lora, lora, None)):
        seq = make_seq(seq_id, [1] * 9, adapter)
        num_hits.append(allocate(manager, seq))
        compute(manager, seq)
    assert num_hits == [0, 0, 2, 2]


def test_the_least_recently_used_is_evicted_and_last_blocks_first() -> None:
    manager = make_manager(6)
    old, new = make_seq(0, [1] * 9), make_seq(1, [2] * 9)
    for seq in (old, new):
        allocate(manager, seq)
        compute(manager, seq)
        manager.free(seq)
    assert manager.stats.cached == 4
    assert manager.stats.free == 2
    # Three blocks: both free ones, then the second block of the older prefix.
    other = make_seq(2, [3] * 12)
    allocate(manager, other)
    manager.free(other)
    assert len(manager.get_computed_blocks([make_seq(3, [1] * 9)]).blocks) == 1
    assert len(manager.get_computed_blocks([make_seq(4, [2] * 9)]).blocks) == 2
    # Finding the older one has made it the newer.
    revived = make_seq(5, [1] * 5)
    assert allocate(manager, revived) == 1
    manager.free(revived)
    allocate(manager, make_seq(6, [4] * 20))
    assert len(manager.get_computed_blocks([make_seq(7, [1] * 9)]).blocks) == 1
    assert len(manager.get_computed_blocks([make_seq(8, [2] * 9)]).blocks) == 0


def test_blocks_revived_for_a_placement_are_not_counted_as_available() -> None:
    manager = make_manager(4)
    seq = make_seq(0, [1] * 9)
    allocate(manager, seq)
    compute(manager, seq)
    manager.free(seq)
    computed = manager.get_computed_blocks([make_seq(1, [1] * 8 + [2] * 9)])
    assert (len(computed.blocks), computed.num_new_blocks, computed.num_unused_blocks) == (2, 3, 2)
    assert manager.num_missing_blocks(computed.num_required_blocks) == 1
    assert manager.num_missing_blocks(computed.num_required_blocks, reserve=2) == 3


def test_a_sequence_that_is_computed_again_looks_its_output_up_too() -> None:
    manager = make_manager(8)
    seq = make_seq(0, [1] * 6)
    allocate(manager, seq)
    compute(manager, seq)
    append(seq, 2)
    manager.free(seq)
    seq.reset_state_for_recompute()
    assert allocate(manager, seq) == 1
    assert (manager.stats.prefix_queries, manager.stats.prefix_hits) == (6 + 7, 4)


def test_without_prefix_caching_nothing_is_kept() -> None:
    manager = make_manager(4, caching=False)
    for seq_id in (0, 1):
        seq = make_seq(seq_id, [1] * 9)
        assert allocate(manager, seq) == 0
        compute(manager, seq)
        assert manager.get_computed_block_nums([seq]) is None
        manager.free(seq)
        manager.check()
    assert manager.stats.cached == 0
    assert manager.stats.prefix_queries == 0


def test_only_blocks_with_computed_tokens_are_swapped() -> None:
    manager = BlockManager(8, BLOCK_SIZE, enable_prefix_caching=False, num_cpu_blocks=2)
    seq = make_seq(0, [1] * 10)
    allocate(manager, seq)
    seq.data.update_num_computed_tokens(5)
    assert manager.can_swap_out([seq])
    assert [source for source, _ in manager.swap_out([seq])] == [0, 1]
    manager.check()
    assert len(manager.swap_in([seq])) == 2
    manager.check()


def make_fork(manager: BlockManager, parent: Sequence, seq_id: int) -> Sequence:
    child = parent.fork(seq_id)
    manager.fork(parent, child)
    return child


@pytest.mark.parametrize("caching", [False, True])
def test_sequences_of_a_group_share_their_equal_full_blocks(caching: bool) -> None:
    manager = make_manager(9, caching=caching)
    seqs = [make_seq(0, [1] * 8 + [2] * 3), make_seq(1, [1] * 8 + [2] * 3)]
    computed = manager.get_computed_blocks(seqs)
    assert (computed.blocks, computed.num_new_blocks) == ([], 4)
    manager.allocate_slots(seqs, computed)
    manager.check()
    assert [manager.get_block_table(seq) for seq in seqs] == [[0, 1, 2], [0, 1, 3]]
    assert manager.stats.used == 4
    assert manager.stats.prefix_queries == (22 if caching else 0)
    for seq in seqs:
        compute(manager, seq)
    again = [make_seq(2, [1] * 8 + [3] * 4), make_seq(3, [1] * 8 + [4] * 4)]
    computed = manager.get_computed_blocks(again)
    assert computed.blocks == ([0, 1] if caching else [])
    assert computed.num_new_blocks == (2 if caching else 4)
    assert computed.num_required_blocks == computed.num_new_blocks, "the hits are in use already"
    manager.allocate_slots(again, computed)
    manager.check()
    assert manager.stats.used == (6 if caching else 8)
    assert manager.stats.prefix_hits == (16 if caching else 0)


def test_a_group_finds_what_all_its_sequences_begin_with() -> None:
    manager = make_manager(9)
    first = make_seq(0, [1] * 9)
    allocate(manager, first)
    compute(manager, first)
    seqs = [make_seq(1, [1] * 10), make_seq(2, [1] * 4 + [2] * 6)]
    assert manager.get_computed_blocks(seqs).blocks == [0]
    assert manager.get_computed_blocks(seqs, use_cache=False).blocks == []
    assert manager.get_computed_blocks(seqs, use_cache=False).num_new_blocks == 5


def test_forks_of_forks_are_copied_for_all_writers_but_one() -> None:
    manager = make_manager(8)
    parent = make_seq(0, [1] * 6)
    allocate(manager, parent)
    compute(manager, parent)
    seqs = [parent, make_fork(manager, parent, 1), make_fork(manager, parent, 2)]
    assert manager.get_computed_block_nums(seqs) == [0]
    for seq in seqs:
        append(seq, seq.seq_id)
    assert manager.num_blocks_to_append(seqs) == 2
    assert manager.append_slots(seqs) == [(1, 2), (1, 3)]
    assert manager.num_blocks_to_append(seqs) == 0
    manager.check()
    for seq in seqs:
        append(seq, 9)
        compute(manager, seq)
    assert manager.get_computed_block_nums(seqs) == [0]
    assert manager.get_computed_block_nums(seqs[:2]) == [0]
    tables = [[0, 2], [0, 3], [0, 1]]
    assert [manager.get_computed_block_nums([seq]) for seq in seqs] == tables
    stored = [event for event in manager.take_events() if isinstance(event, BlockStored)]
    assert [(event.seq_id, event.position, event.block) for event in stored] == [
        (0, 0, 0),
        (0, 1, 2),
        (1, 1, 3),
        (2, 1, 1),
    ]


def test_a_second_look_at_the_cache_finds_no_more() -> None:
    manager = make_manager(8)
    first = make_seq(0, [1] * 8)
    allocate(manager, first)
    compute(manager, first)
    seqs = [make_seq(1, [1] * 8), make_seq(2, [1] * 8)]
    for _ in range(2):  # the first one hashes also the last block
        assert manager.get_computed_blocks(seqs).blocks == [0]


def test_slots_ahead_stay_for_later_tokens() -> None:
    manager = make_manager(4)
    seq = make_seq(0, [1] * 6)
    allocate(manager, seq)
    compute(manager, seq)
    append(seq, 1)
    needed = [manager.num_blocks_to_append([seq], num_slots) for num_slots in (0, 1, 2, 5, 6)]
    assert needed == [0, 0, 1, 1, 2]
    manager.begin_step()
    assert manager.append_slots([seq], 2) == []
    assert manager.table_changes == TableChanges(appended={0: [2]})
    for _ in range(5):
        append(seq, 1)
        assert manager.have_slots([seq])
        assert manager.num_blocks_to_append([seq]) == 0
    append(seq, 1)
    assert not manager.have_slots([seq])
    assert manager.num_blocks_to_append([seq]) == 1


def test_a_fork_takes_the_slots_that_its_parent_had_alone() -> None:
    manager = make_manager(4)
    parent = make_seq(0, [1])
    allocate(manager, parent)
    manager.append_slots([parent])
    compute(manager, parent)
    assert manager.have_slots([parent])
    child = make_fork(manager, parent, 1)
    assert not manager.have_slots([parent])
    assert not manager.have_slots([child])


@pytest.mark.parametrize(("num_tokens", "num_more"), [(6, 1), (7, 1), (8, 2)])
def test_a_shared_block_is_swapped_once(num_tokens: int, num_more: int) -> None:
    """Forks of 6 or 7 tokens write to a block that they share, and those of 8 to new ones."""
    manager = BlockManager(5, BLOCK_SIZE, enable_prefix_caching=True, num_cpu_blocks=2)
    parent = make_seq(0, [1] * num_tokens)
    allocate(manager, parent)
    compute(manager, parent)
    seqs = [parent, make_fork(manager, parent, 1)]
    for seq in seqs:
        append(seq, 1)
    assert manager.can_swap_out(seqs)
    assert manager.swap_out(seqs) == [(0, 0), (1, 1)]
    manager.check()
    assert [manager.get_block_table(seq) for seq in seqs] == [[], []]
    assert (manager.stats.used, manager.stats.total_cpu, manager.stats.free_cpu) == (0, 2, 0)
    assert manager.num_to_swap_in(seqs) == 2 + num_more
    manager.begin_step()
    assert manager.swap_in(seqs) == [(0, 2), (1, 3)]
    manager.check()
    assert manager.table_changes == TableChanges(replaced={0: [2, 3], 1: [2, 3]})
    assert manager.num_blocks_to_append(seqs) == num_more
    assert not manager.have_slots(seqs)
    manager.append_slots(seqs)
    manager.check()
    assert (manager.stats.used, manager.stats.free_cpu) == (2 + num_more, 2)


def test_blocks_that_the_host_has_no_room_for_cannot_be_swapped() -> None:
    manager = BlockManager(5, BLOCK_SIZE, enable_prefix_caching=False, num_cpu_blocks=2)
    seq = make_seq(0, [1] * 9)
    allocate(manager, seq)
    for num_tokens, is_possible in ((8, True), (1, False)):
        seq.data.update_num_computed_tokens(num_tokens)
        assert manager.can_swap_out([seq]) == is_possible


def test_a_swapped_sequence_can_be_freed() -> None:
    manager = BlockManager(5, BLOCK_SIZE, enable_prefix_caching=False, num_cpu_blocks=3)
    parent = make_seq(0, [1] * 9)
    allocate(manager, parent)
    compute(manager, parent)
    child = make_fork(manager, parent, 1)
    manager.swap_out([parent, child])
    manager.free(parent)
    manager.check()
    assert manager.stats.free_cpu == 0
    manager.free(child)
    manager.check()
    assert manager.stats.free_cpu == 3
    assert manager.stats.free == 5


@pytest.mark.parametrize("use_cache", [False, True])
def test_events_are_in_order_and_name_the_blocks_that_a_lookup_missed(use_cache: bool) -> None:
    manager = make_manager(7)
    lora = LoRARequest("l", 1, "/l")
    first = make_seq(0, [1] * 13, lora)
    allocate(manager, first)
    compute(manager, first)
    manager.free(first)
    query, *stored = manager.take_events()
    assert isinstance(query, PrefixQueried)
    hashes = query.missed[0]
    assert query == PrefixQueried([0], 13, 0, [hashes], use_cache=True)
    assert len({*hashes}) == 3
    assert stored == [BlockStored(index, hashes[index], 0, index) for index in range(3)]
    plain, other = make_seq(1, [1] * 17), make_seq(2, [1] * 5, lora)
    allocate(manager, plain)
    manager.allocate_slots([other], manager.get_computed_blocks([other], use_cache=use_cache))
    manager.check()
    of_plain, removed, of_other, *more_removed = manager.take_events()
    assert isinstance(of_plain, PrefixQueried)
    assert of_plain == PrefixQueried([1], 17, 0, of_plain.missed, use_cache=True)
    assert len({*of_plain.missed[0]} - {*hashes}) == 4
    assert removed == BlockRemoved(2, hashes[2], 1)
    num_hits = 1 if use_cache else 0
    assert of_other == PrefixQueried([2], 5, num_hits, [hashes[num_hits:1]], use_cache)
    assert more_removed == [
        BlockRemoved(block, hashes[block], 2) for block in ([1] if use_cache else [1, 0])
    ]
    assert manager.take_events() == []


def test_freeing_twice_or_never_allocated_changes_nothing() -> None:
    manager = make_manager(4)
    seq = make_seq(0, [1] * 5)
    manager.free(seq)
    allocate(manager, seq)
    manager.free(seq)
    manager.free(seq)
    manager.check()
    assert manager.stats.free == 4


@pytest.mark.parametrize("damage", ["lost", "miscounted", "two states"])
def test_check_notices_damage(damage: str) -> None:
    manager = make_manager(4)
    allocate(manager, make_seq(0, [1] * 5))
    if damage == "lost":
        manager.device.get_new_blocks(1, 0)
    elif damage == "miscounted":
        manager.device.touch([0])
    else:
        manager.device.free_blocks([0])
    with pytest.raises(AssertionError):
        manager.check()


class Blocks(RuleBasedStateMachine):
    """Sequences that start alike come, grow and go in a small pool."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = make_manager(12)
        self.seqs: list[Sequence] = []
        self.num_made = 0
        self.cached: dict[int, bytes] = {}
        """The blocks that the events of the manager add up to."""

    @rule(
        start=st.sampled_from([[1] * 8, [1] * 4 + [2] * 4, []]),
        rest=st.lists(st.integers(1, 2), min_size=1, max_size=12),
    )
    def admit(self, start: list[int], rest: list[int]) -> None:
        seq = make_seq(self.num_made, start + rest)
        self.num_made += 1
        computed = self.manager.get_computed_blocks([seq])
        assert len(computed.blocks) + computed.num_new_blocks == seq.n_blocks
        if self.manager.num_missing_blocks(computed.num_required_blocks):
            self.manager.free(seq)
            return
        self.manager.allocate_slots([seq], computed)
        assert len(self.manager.get_block_table(seq)) == seq.n_blocks
        # Cached tokens count as computed once the first chunk has run.
        seq.data.update_num_computed_tokens(len(computed.blocks) * BLOCK_SIZE)
        self.seqs.append(seq)

    @precondition(lambda self: self.seqs)
    @rule(pick=st.integers(0), num_tokens=st.integers(1, 9))
    def compute(self, pick: int, num_tokens: int) -> None:
        seq = self.seqs[pick % len(self.seqs)]
        uncomputed = seq.data.get_num_uncomputed_tokens()
        seq.data.update_num_computed_tokens(min(num_tokens, uncomputed))
        self.manager.cache_blocks(seq)

    @precondition(lambda self: self.seqs)
    @rule(pick=st.integers(0), token_id=st.integers(1, 2))
    def grow(self, pick: int, token_id: int) -> None:
        seq = self.seqs[pick % len(self.seqs)]
        if self.manager.num_available:
            append(seq, token_id)
            self.manager.append_slots([seq])

    @precondition(lambda self: self.seqs)
    @rule(pick=st.integers(0))
    def leave(self, pick: int) -> None:
        self.manager.free(self.seqs.pop(pick % len(self.seqs)))

    @invariant()
    def blocks_add_up(self) -> None:
        self.manager.check()
        stats = self.manager.stats
        assert stats.used + stats.cached + stats.free == stats.total

    @invariant()
    def events_of_the_cache_add_up(self) -> None:
        for event in self.manager.take_events():
            match event:
                case BlockStored(block=block, block_hash=block_hash):
                    assert block not in self.cached
                    assert block_hash not in self.cached.values()
                    self.cached[block] = block_hash
                case BlockRemoved(block=block, block_hash=block_hash):
                    assert self.cached.pop(block) == block_hash
        stored = self.manager.stored_blocks()
        assert self.cached == {event.block: event.block_hash for event in stored}

    @invariant()
    def shared_blocks_hold_the_same_tokens(self) -> None:
        content: dict[int, list[int]] = {}
        for seq in self.seqs:
            num_full = seq.get_num_computed_tokens() // BLOCK_SIZE
            table = self.manager.get_block_table(seq)
            for index, block in enumerate(table):
                prefix = seq.get_token_ids()[: (index + 1) * BLOCK_SIZE]
                if block in content:
                    assert index < num_full
                    assert content[block] == prefix
                content[block] = prefix


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
