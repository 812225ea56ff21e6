"""Between the HTTP thread, where clients wait, and the engine's, which waits for nobody.

The HTTP thread puts submissions and aborts into a queue that the engine's thread empties before
each step; what a step brings a request goes into that request's own queue on the event loop.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.server import EngineServer
from engine_stub.processing.input_processor import Params, Prompt
from engine_stub.step_record import StepRecord
from seqtop.sequence import Logprob, PoolingParams, Sequence, SequenceStatus


class AbortedError(Exception):
    """The request was ended before it was finished, by a viewer or with the engine."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step brought one of a request's samples.

    Attributes:
        index: Which of the `n` samples, or of a search's outputs, best first.
        logprobs: For each of `token_ids`, candidates by token id, the sampled one first.
        finish_reason: "stop", "length" or "abort" in a sample's last piece, else None.
        pooled: The prompt's vector, of a request that pools.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str | None
    pooled: list[float] | None = None


class Completion:
    """One request, from its submission on. Made and used on the event loop's thread."""

    def __init__(
        self,
        bridge: Bridge,
        request_id: str,
        prompt: Prompt,
        params: Params,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.params = params
        self.accepted: Future[int] = Future()
        """Comes to hold the number of prompt tokens, or the `ValueError` of a refusal."""
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece] = asyncio.Queue()
        self._num_unfinished = _num_outputs(params)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what the steps bring until all samples are finished; to be iterated once.

        Raises:
            AbortedError: Somebody else ended the request.
        """
        while self._num_unfinished:
            piece = await self._pieces.get()
            if piece.finish_reason is not None:
                self._num_unfinished -= 1
            if piece.finish_reason == "abort":
                raise AbortedError(f"request {self.request_id} was aborted")
            yield piece

    def close(self) -> None:
        """Have the engine abort what is unfinished; its blocks are free in the next step."""
        if self._num_unfinished:
            self._bridge.abort(self.request_id)

    def deliver(self, piece: Piece) -> None:
        """Hand over `piece`; the one method for the engine's thread."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


class Bridge:
    """A `FrontDoor` of the engine's server on one side, `submit` and `abort` on the other."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Completion | str] = queue.SimpleQueue()
        # Of the engine's thread, by the id of the group that runs these outputs of a request.
        self._outputs: dict[str, tuple[Completion, range]] = {}

    async def submit(
        self, request_id: str, prompt: Prompt, params: Params
    ) -> tuple[Completion, int]:
        """Submit a request; returns it and its number of prompt tokens once it waits its turn.

        Raises:
            ValueError: The engine refuses it, see `LLMEngine.add_request`.
        """
        completion = Completion(self, request_id, prompt, params)
        self._inbox.put(completion)
        return completion, await asyncio.wrap_future(completion.accepted)

    def abort(self, request_id: str) -> None:
        self._inbox.put(request_id)

    # For the engine's thread.

    def serve(self, server: EngineServer) -> None:
        """Hand what clients asked for since the last call to the engine."""
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, Completion):
                self._add(server, command)
            else:
                server.abort(command)

    def stepped(self, record: StepRecord) -> None:
        """Deliver what a step brought."""
        for update in record.updates:
            if update.new_token_ids and update.request_id in self._outputs:
                completion, indices = self._outputs[update.request_id]
                if isinstance(completion.params, BeamSearchParams):
                    continue  # which of them are outputs is known when the search is over
                completion.deliver(
                    Piece(
                        indices[0],
                        update.text_delta,
                        update.new_token_ids,
                        update.new_logprobs,
                        SequenceStatus.get_finished_reason(update.seq.status),
                    )
                )
        for group in record.finished:
            if group.pooled_data is not None:
                self._end(group.request_id, "stop", group.pooled_data.tolist())
            if ended := self._outputs.pop(group.request_id, None):
                completion, indices = ended
                if isinstance(completion.params, BeamSearchParams):
                    for index, seq in zip(indices, group.seqs, strict=True):
                        completion.deliver(_whole(index, seq))
        # These ended between steps, so no update tells of it.
        for group in (*record.ignored, *record.aborted):
            self._end(group.request_id, SequenceStatus.get_finished_reason(group.first_seq.status))

    def close(self) -> None:
        """End every request that is under way or waits in the queue: no step will follow."""
        while not self._inbox.empty():
            command = self._inbox.get()
            if isinstance(command, Completion) and command.accepted.set_running_or_notify_cancel():
                command.accepted.set_exception(AbortedError("the engine has stopped"))
        for request_id in list(self._outputs):
            self._end(request_id, "abort")

    def _add(self, server: EngineServer, completion: Completion) -> None:
        if not completion.accepted.set_running_or_notify_cancel():
            return  # the client has gone before its turn came
        try:
            groups = server.add(completion.request_id, completion.prompt, completion.params)
        except ValueError as error:
            completion.accepted.set_exception(error)
            return
        num_each = _num_outputs(completion.params) // len(groups)
        for index, group in enumerate(groups):
            self._outputs[group.request_id] = completion, range(index, index + num_each)
        completion.accepted.set_result(groups[0].first_seq.get_prompt_len())

    def _end(
        self, group_id: str, finish_reason: str | None, pooled: list[float] | None = None
    ) -> None:
        if group_id in self._outputs:
            completion, indices = self._outputs.pop(group_id)
            for index in indices:
                completion.deliver(Piece(index, "", [], [], finish_reason, pooled))


def _num_outputs(params: Params) -> int:
    """How many outputs a request ends up with."""
    if isinstance(params, BeamSearchParams):
        return params.beam_width
    return 1 if isinstance(params, PoolingParams) else params.n


def _whole(index: int, seq: Sequence) -> Piece:
    """One output of a search."""
    return Piece(
        index,
        seq.output_text,
        list(seq.get_output_token_ids()),
        seq.output_logprobs,
        SequenceStatus.get_finished_reason(seq.status),
    )
