"""Messages of KV-cache events, as vLLM, SGLang and others publish them.

The frames are the topic, the sequence number (8 bytes, big-endian) and a MessagePack payload, which
is a batch of events. Batches and events are arrays (vLLM until 0.2x, SGLang) or maps (later vLLM);
one message may contain both. Fields have only ever been appended. A field that an older publisher
does not send has its default. Additional fields of a newer one are skipped, and unknown kinds of
events are counted by name.

Format: `vllm/distributed/kv_events.py`, `sglang/srt/disaggregation/kv_events.py`.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta, Struct

from seqtop.wire.element_count import check_elements
from seqtop.wire.error_location import describe_error
from seqtop.wire.errors import WireError

MAX_MESSAGE_BYTES: Final = 32 * 2**20
"""The receiving socket refuses larger messages (`ZMQ_MAXMSGSIZE`) before they are decoded."""

MAX_EVENTS: Final = 100_000
MAX_HASHES: Final = 2**18
MAX_TOKENS: Final = 2**22
END_OF_REPLAY: Final = -1
"""The sequence number that ends a replay."""

_NUMBER: Final = struct.Struct(">q")

BlockHash: TypeAlias = int | bytes
_Hash: TypeAlias = int | Annotated[bytes, Meta(max_length=256)]
_Name: TypeAlias = Annotated[str, Meta(max_length=256)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Token: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class BlockStored(Struct, tag=True):
    """Consecutive blocks that can be reused from now on."""

    block_hashes: Annotated[list[_Hash], Meta(max_length=MAX_HASHES)]
    parent_block_hash: _Hash | None
    """The hash of the block before the first of them; None at the start of a prompt."""
    token_ids: Annotated[list[_Token], Meta(max_length=MAX_TOKENS)]
    """The tokens of all these blocks in order, and of further blocks where some were left out."""
    block_size: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    lora_id: _Count | None = None
    medium: _Name | None = None
    """The storage medium, such as `GPU`, `CPU` or `STORAGE`. Older publishers do not send it."""
    lora_name: _Name | None = None
    extra_keys: msgspec.Raw = msgspec.Raw(b"\xc0")
    """Further inputs of the hash. Not decoded."""
    group_idx: _Count | None = None
    """The KV-cache group. The same tokens have the same hash in each group."""
    kv_cache_spec_kind: _Name | None = None
    kv_cache_spec_sliding_window: _Count | None = None
    """The tokens that the layers of the group attend to."""
    locality: _Name | None = None
    """`LOCAL` or `REMOTE`, as seen from the publisher."""
    ownership: _Name | None = None
    """The secondary tier that offloads the blocks."""
    session_id: _Name | None = None
    """The session whose request stored or reused the blocks, which others may share."""
    lookahead_token_ids: msgspec.Raw = msgspec.Raw(b"\xc0")
    """Tokens behind each block that are part of its hash. Not decoded."""


class BlockRemoved(Struct, tag=True):
    """Blocks that lost one copy."""

    block_hashes: Annotated[list[_Hash], Meta(max_length=MAX_HASHES)]
    medium: _Name | None = None
    group_idx: _Count | None = None
    locality: _Name | None = None
    ownership: _Name | None = None


class AllBlocksCleared(Struct, tag=True):
    """The removal of all blocks."""


class _StoredArray(BlockStored, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class UnknownEvent(NamedTuple):
    """An event of an unknown kind."""

    kind: str


KvEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared | UnknownEvent


class EventBatch(NamedTuple):
    """The decoded payload of one message."""

    time: float
    """Seconds since the epoch, by the engine's clock."""
    events: list[KvEvent]
    data_parallel_rank: int | None = None


class KvMessage(NamedTuple):
    """The frames of one message."""

    topic: bytes
    number: int
    payload: bytes


class _Batch(Struct):
    ts: float
    events: Annotated[list[msgspec.Raw], Meta(max_length=MAX_EVENTS)]
    data_parallel_rank: _Count | None = None


class _BatchArray(_Batch, array_like=True):
    pass


class _Kind(Struct):
    type: _Name


class _KindArray(Struct, array_like=True):
    type: _Name


_BATCH = msgspec.msgpack.Decoder(_Batch), msgspec.msgpack.Decoder(_BatchArray)
_KIND = msgspec.msgpack.Decoder(_Kind), msgspec.msgpack.Decoder(_KindArray)
_EVENTS: dict[str, tuple[msgspec.msgpack.Decoder[Any], msgspec.msgpack.Decoder[Any]]] = {
    "BlockStored": (
        msgspec.msgpack.Decoder(BlockStored),
        msgspec.msgpack.Decoder(_StoredArray),
    ),
    "BlockRemoved": (
        msgspec.msgpack.Decoder(BlockRemoved),
        msgspec.msgpack.Decoder(_RemovedArray),
    ),
    "AllBlocksCleared": (
        msgspec.msgpack.Decoder(AllBlocksCleared),
        msgspec.msgpack.Decoder(_ClearedArray),
    ),
}


def unpack(frames: list[bytes]) -> KvMessage:
    """Parses the frames of a live or a replayed message. Older publishers replay without a topic.

    Raises:
        WireError: The frames are not those of a message of KV-cache events.
    """
    topic, number, payload = frames if len(frames) == 3 else _without_topic(frames)
    if len(number) != _NUMBER.size:
        raise WireError(f"the sequence number has {len(number)} bytes instead of 8")
    return KvMessage(topic, _NUMBER.unpack(number)[0], payload)


def replay_request(first: int) -> list[bytes]:
    """Returns the frames that request all messages from number `first` on from a replay socket."""
    return [b"", _NUMBER.pack(first)]


def decode(payload: bytes) -> EventBatch:
    """Decodes the payload of a message.

    Raises:
        WireError: The payload is not a batch of KV-cache events. The message names the event, the
            field and the reason.
    """
    try:
        check_elements(payload)
        batch = _BATCH[_is_array(payload)].decode(payload)
    except Exception as error:
        raise WireError(f"cannot decode a batch of KV events: {_reason(error, payload)}") from error
    events = [_event(raw, index) for index, raw in enumerate(batch.events)]
    return EventBatch(batch.ts, events, batch.data_parallel_rank)


def _event(raw: msgspec.Raw, index: int) -> KvEvent:
    is_array = _is_array(raw)
    what = f"events[{index}]"
    decoder: msgspec.msgpack.Decoder[Any] = _KIND[is_array]
    try:
        name: str = decoder.decode(raw).type
        if name not in _EVENTS:
            return UnknownEvent(name)
        what += f", {name}"
        decoder = _EVENTS[name][is_array]
        event: KvEvent = decoder.decode(raw)
    except Exception as error:
        reason = describe_error(error, decoder.type, raw)
        raise WireError(f"cannot decode a batch of KV events: {what}: {reason}") from error
    return event


def _reason(error: Exception, payload: bytes) -> str:
    return describe_error(error, _BATCH[_is_array(payload)].type, payload)


def _without_topic(frames: list[bytes]) -> list[bytes]:
    if len(frames) != 2:
        raise WireError(f"expected topic, sequence number and payload, got {len(frames)} frames")
    return [b"", *frames]


def _is_array(data: bytes | msgspec.Raw) -> bool:
    first = bytes(memoryview(data)[:1])
    return first in (b"\xdc", b"\xdd") or b"\x90" <= first <= b"\x9f"
