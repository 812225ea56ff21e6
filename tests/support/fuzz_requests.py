"""Mutated requests and commands of viewers, given to a publisher's handler and to an engine."""

from __future__ import annotations

import contextlib
import queue
import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import msgspec
import zmq

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams
from seqtop.transport import request_handler
from seqtop.transport.request_handler import RequestHandler
from seqtop.wire import codec, frames, parsing
from seqtop.wire.messages import (
    Abort,
    Command,
    Refused,
    SnapshotRequest,
    Submit,
    SummaryRequest,
)
from tests.support.checkpoints import make_checkpoint
from tests.support.events import engine_info
from tests.support.fuzz import Feed
from tests.support.mutation import Pool, by_meaning, bytewise, plausible
from tests.support.waiting import MILLISECONDS

_MOST_UNFINISHED = 20
_FIELDS: dict[str, tuple[Any, ...]] = {
    "temperature": (0.0, 0.5, 2.0), "top_p": (0.1, 1.0), "top_k": (-1, 1, 40), "min_p": (0.0, 0.5),
    "max_tokens": (1, 3, None), "min_tokens": (0, 1), "seed": (None, 7), "stop": (None, ["x"], "y"),
    "stop_token_ids": (None, [3]), "logprobs": (None, 0, 3), "prompt_logprobs": (None, 2),
    "presence_penalty": (0.0, 1.0), "frequency_penalty": (0.0, -1.0), "repetition_penalty": (1.0,),
    "logit_bias": (None, {5: 1.0}), "allowed_token_ids": (None, [1, 2]), "n": (1, 2),
    "ignore_eos": (False, True), "detokenize": (False, True), "bad_words": (None, ["x"]),
}  # fmt: skip


class _Requests:
    """A handler with control enabled, and the engine behind it."""

    def __init__(
        self,
        choose: random.Random,
        engine: LLMEngine,
        router: zmq.Socket[bytes],
        viewer: zmq.Socket[bytes],
    ) -> None:
        self._choose, self._engine = choose, engine
        self._router, self._viewer = router, viewer
        self._commands: queue.Queue[tuple[bytes, Submit | Abort]] = queue.Queue(64)
        info = engine_info(control=True)
        self._handler = RequestHandler(
            router, info, None, self._commands, self._snapshot, self._summary, self._pack
        )
        self._pool = Pool([[f"user-{number}" for number in range(9)], list(range(9))])
        self._number = 0

    def _snapshot(self, with_parts: bool) -> Iterator[bytes]:
        yield codec.encode(Refused(error="no state"))

    def _summary(self) -> bytes | None:
        return codec.encode(Refused(error="no summary"))

    def _pack(self, payload: frames.Buffer) -> list[frames.Buffer]:
        return frames.pack("one", 0, payload)

    def feed(self) -> bool:
        self._number += 1
        payload = self._payload()
        try:
            return self._handle(payload)
        except Exception as error:
            raise AssertionError(f"{error!r} from {payload!r}") from error

    def _payload(self) -> bytes:
        choose = self._choose
        command: Command
        match choose.randrange(8):
            case 0:
                command = choose.choice((SnapshotRequest(), SummaryRequest()))
            case 1:
                command = Abort(request_id=choose.choice(self._pool.strs))
            case _:
                names = choose.sample(list(_FIELDS), choose.randint(0, 5))
                given = {name: choose.choice(_FIELDS[name]) for name in names}
                if given.get("temperature", 1.0) == 0.0:
                    given["n"] = 1
                if not given.get("detokenize", True):
                    given["stop"] = None
                params = SamplingParams(**{"max_tokens": 4, **given})
                command = Submit(prompt="once upon " * choose.randint(1, 4), sampling_params=params)
        payload = codec.encode(command)
        match choose.randrange(12):
            case 0:
                return bytewise(choose, payload)
            case 1 | 2:
                return by_meaning(choose, payload)
        return msgspec.msgpack.encode(
            plausible(choose, msgspec.msgpack.decode(payload, strict=False), self._pool, most=1)
        )

    def _handle(self, payload: bytes) -> bool:
        num_parts = 1 if self._choose.random() < 0.95 else self._choose.randint(2, 40)
        self._viewer.send_multipart([b""] * (num_parts - 1) + [payload])
        assert self._router.poll(MILLISECONDS)
        self._handler.read()
        self._handler.invalidate_snapshot()
        self._handler.send_snapshots()
        is_past = not self._commands.empty()
        while not self._commands.empty():
            self._execute(self._commands.get()[1])
        while self._viewer.poll(0):
            reply = parsing.reply(self._viewer.recv_multipart()[-1])
            assert isinstance(reply, Refused)
            is_past |= "cannot be read" not in reply.error
        return is_past

    def _execute(self, command: Submit | Abort) -> None:
        engine = self._engine
        if isinstance(command, Abort):
            engine.abort_request(command.request_id)
        else:
            # A refusal is a `ValueError`; `EngineServer.add` passes its text on.
            with contextlib.suppress(ValueError):
                engine.add_request(
                    f"user-{self._number}",
                    command.prompt,
                    command.sampling_params,
                    priority=command.priority,
                )
        record = engine.step()
        assert not record.errors, record.errors
        if len(engine.seq_groups) > _MOST_UNFINISHED:
            for request_id in list(engine.seq_groups):
                engine.abort_request(request_id)


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A handler and an engine of a tiny model with random weights."""
    with (
        TemporaryDirectory(prefix="sq") as directory,
        patch.multiple(
            request_handler,
            REQUESTS_PER_SECOND=1e12,
            MAX_READING_SHARE=1e12,
            MAX_ENCODING_SHARE=1e12,
            MAX_WALL_SHARE=1e12,
            SECONDS_BETWEEN_SNAPSHOTS=0.0,
        ),
        zmq.Context() as context,
        context.socket(zmq.ROUTER) as router,
        context.socket(zmq.DEALER) as viewer,
    ):
        model = make_checkpoint("llama", Path(directory))
        engine = LLMEngine(
            EngineConfig(model=model, device="cpu", block_size=4, num_gpu_blocks=400)
        )
        router.bind("inproc://requests")
        viewer.connect("inproc://requests")
        yield _Requests(choose, engine, router, viewer).feed
