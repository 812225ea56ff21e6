"""Measures the bytes of a decode step of 256 sequences with 512 blocks each.

The figure is the mean of sixteen steps of the bundled engine as a subscriber receives them; in
these each sequence gets one more block. The peer is the `ExecuteModelRequest` of the same step as
vLLM encodes it, with tables of 512 blocks. (The engine publishes only the blocks appended to a
table, so the length of the tables makes no difference.)
"""

from __future__ import annotations

import msgspec
import zmq

from benchmarks import running
from benchmarks.figure import Figure, Findings, Growth, Limit
from benchmarks.published import Published, published
from seqtop.sequence import ExecuteModelRequest
from seqtop.wire import codec, frames, parsing
from seqtop.wire.messages import Step

TITLE = "Bytes of a decode step"
MAX_SHARE = 0.1
NUM_BLOCKS = 512
SIZES = (3, 26, 256)
STEPS = 16
POOL = 65_536
"""The size of the pool in vLLM's tables: no block number takes more than three bytes."""


def measure(*, tiny: bool = False) -> Findings:
    points: list[tuple[float, float]] = []
    for size in SIZES[:1] if tiny else SIZES:
        with published(size) as scene:
            ours, theirs = _bytes(scene, size)
        points.append((size, ours))
    figure = Figure(
        what=f"{size} sequences × {NUM_BLOCKS} blocks",
        measured=f"payload, mean of {STEPS} steps",
        value=ours,
        unit="bytes",
        peer="vLLM's deltas with their tables",
        peer_value=theirs,
        ratio=ours / theirs,
        ratio_unit="%",
        ratio_limit=Limit(MAX_SHARE),
    )
    growth = [Growth("bytes of a step", "sequences", "bytes", points, limit=1.05)]
    return Findings([figure], [] if tiny else growth)


def _bytes(scene: Published, size: int) -> tuple[float, float]:
    """Returns the mean bytes of a step as published, and as vLLM encodes it."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        socket.connect(scene.endpoint)
        frames.unpack(socket.recv_multipart())  # the welcome message
        while socket.poll(100):  # messages that were still queued
            socket.recv_multipart()
        theirs = 0
        for _ in range(STEPS):
            record = scene.engine.step()
            theirs += len(codec.encode(with_tables(record.execute_model_req, size)))
            scene.link.stepped(record)
        ours, num_steps = 0, 0
        while num_steps < STEPS:
            frame = frames.unpack(socket.recv_multipart())
            assert isinstance(frame, frames.Frame)
            if isinstance(parsing.event(frame.payload), Step):
                ours += len(frame.payload)
                num_steps += 1
    return ours / STEPS, theirs / STEPS


def with_tables(request: ExecuteModelRequest, size: int) -> ExecuteModelRequest:
    """Returns the request with tables of `NUM_BLOCKS` blocks of a pool of `POOL`."""
    return request.clone(
        [
            msgspec.structs.replace(
                group,
                block_tables={
                    seq_id: [
                        ((seq_id % size) * NUM_BLOCKS + index) % POOL for index in range(NUM_BLOCKS)
                    ]
                    for seq_id in group.block_tables
                },
            )
            for group in request.seq_group_metadata_list
        ]
    )


if __name__ == "__main__":
    running.alone(measure)
