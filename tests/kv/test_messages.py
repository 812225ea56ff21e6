"""Messages of KV-cache events are read in every layout, and no other bytes do any harm."""

from typing import Any

import msgspec
import pytest

from seqtop.kv import messages
from seqtop.kv.messages import AllBlocksCleared, BlockRemoved, BlockStored, UnknownEvent
from seqtop.wire.errors import WireError
from tests.support.kv_publisher import batch, cleared, removed, stored

NEW_FIELDS: dict[str, Any] = {
    "medium": "GPU",
    "lora_name": "poems",
    "extra_keys": [["poems"], None],
    "group_idx": 1,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": 512,
    "locality": "LOCAL",
    "ownership": "disk",
    "session_id": "chat",
    "lookahead_token_ids": [[1], [2]],
    "something": {"newer": [1]},
}


@pytest.mark.parametrize("batch_as_map", [False, True])
@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("hashes", [[1, 2**64 - 1], [-5, 7], [b"\x01" * 32, b"\xff" * 32]])
def test_both_layouts_old_and_new_fields(
    hashes: list[int | bytes], as_map: bool, batch_as_map: bool
) -> None:
    payload = batch(
        stored(hashes, as_map=as_map),
        stored(hashes, hashes[0], as_map=as_map, **NEW_FIELDS),
        removed(hashes, as_map=as_map),
        removed(hashes, as_map=as_map, medium="CPU", group_idx=1, locality="REMOTE"),
        cleared(as_map=as_map),
        as_map=batch_as_map,
        time=12.5,
        rank=3,
    )
    time, (old, new, gone, gone_too, all_gone), rank = messages.decode(payload)
    assert (time, rank) == (12.5, 3)
    assert isinstance(old, BlockStored)
    assert (old.block_hashes, old.parent_block_hash, old.block_size) == (hashes, None, 4)
    assert old.token_ids == list(range(100, 108))
    assert (old.medium, old.lora_name, old.group_idx) == (None, None, None)
    assert isinstance(new, BlockStored)
    assert (new.parent_block_hash, new.medium, new.lora_name) == (hashes[0], "GPU", "poems")
    assert (new.group_idx, new.kv_cache_spec_kind) == (1, "full_attention")
    assert (new.kv_cache_spec_sliding_window, new.session_id) == (512, "chat")
    assert (new.locality, new.ownership) == ("LOCAL", "disk")
    assert isinstance(gone, BlockRemoved)
    assert (gone.block_hashes, gone.medium) == (hashes, None)
    assert isinstance(gone_too, BlockRemoved)
    assert (gone_too.medium, gone_too.group_idx) == ("CPU", 1)
    assert isinstance(all_gone, AllBlocksCleared)


def test_a_batch_without_a_rank_as_sglang_sends_it() -> None:
    assert messages.decode(msgspec.msgpack.encode([1.0, []])).data_parallel_rank is None


@pytest.mark.parametrize("event", [["BlockMoved", 1, 2], {"type": "BlockMoved", "to": 3}])
def test_events_of_kinds_yet_to_come_are_passed_over(event: object) -> None:
    _, (unknown, known), _ = messages.decode(batch(event, cleared()))
    assert unknown == UnknownEvent("BlockMoved")
    assert isinstance(known, AllBlocksCleared)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b"", ["batch"]),
        (b"\xc1", ["batch"]),
        (batch(stored([1]), 5), ["events[1]"]),
        (batch(stored(["x"])), ["events[0], BlockStored", "block_hashes[0]", "str"]),
        (batch(stored([1], "x")), ["parent_block_hash"]),
        (batch(stored([1], size=0)), ["block_size", ">= 1"]),
        (batch(stored([1], size=0, as_map=True)), ["block_size", ">= 1"]),
        (batch(["BlockStored", [1], None, [2**64 - 1], 1, None]), ["token_ids[0]"]),
        (batch(["BlockStored", [1], None]), ["BlockStored", "length"]),
        (batch({"type": "BlockStored", "block_hashes": []}), ["parent_block_hash"]),
        (batch(stored([1], medium=7)), ["medium", "int"]),
        (batch(stored([1], medium="x" * 300)), ["medium", "256"]),
        (batch(removed([b"x" * 300])), ["block_hashes[0]", "256"]),
        (batch(rank="one"), ["data_parallel_rank", "str"]),
        (msgspec.msgpack.encode({"ts": "noon", "events": []}), ["ts", "str"]),
        (msgspec.msgpack.encode([1.0, [None] * 100_001]), ["events", "100000"]),
    ],
)
def test_wrong_fields_are_named(payload: bytes, words: list[str]) -> None:
    with pytest.raises(WireError) as error:
        messages.decode(payload)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    "frames", [[], [b""], [b"", b"short", b""], [b"", b"12345678", b"", b"check"]]
)
def test_foreign_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        messages.unpack(frames)


def test_deep_nesting_is_refused_or_passed_over() -> None:
    with pytest.raises(WireError):
        messages.decode(b"\x91" * 100_000)
    deep = b"\x93\xcb" + b"\0" * 8 + b"\x91" + b"\x92\xa3New" + b"\x91" * 50_000 + b"\xc0\xc0"
    with pytest.raises(WireError):
        messages.decode(deep)
