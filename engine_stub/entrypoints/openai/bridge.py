"""The bridge between the HTTP thread and the engine's thread.

The HTTP thread puts submissions and aborts into a queue that the engine's thread empties before
each step. The results of a step go into a queue of each request on the event loop. The engine's
thread never waits.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass

from engine_stub.core.beam_search import BeamSearchParams
from engine_stub.entrypoints.openai.metrics import EngineMetrics
from engine_stub.entrypoints.server import EngineServer
from engine_stub.processing.input_processor import Params
from engine_stub.step_record import StepRecord
from seqtop.sequence import (
    Logprob,
    PoolingParams,
    PromptLogprobs,
    Sequence,
    SequenceGroup,
    SequenceStatus,
    TokenInputs,
)


class AbortedError(Exception):
    """The request was aborted by a viewer, or because the engine stopped."""


class FailedError(AbortedError):
    """The engine failed on the request, and aborted it."""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """The results of one step for one sample of a request.

    Attributes:
        index: The number of the sample among those of all prompts, one prompt after another; of a
            beam search's outputs, best first.
        text: The new text.
        token_ids: The new tokens.
        logprobs: For each of `token_ids`, candidates by token id, the sampled one first.
        finish_reason: "stop", "length" or "abort" in a sample's last piece, else None.
        pooled: The prompt's vector, for a request with pooling parameters.
        error: The error that ended the request, if there was one.
        prompt_logprobs: Those of the prompt, in a sample's first piece if they were requested.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]]
    finish_reason: str | None
    pooled: list[float] | None = None
    error: str | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion:
    """A submitted request. To be used on the event loop's thread, but for `deliver`.

    Attributes:
        num_outputs: The number of outputs of each prompt.
        prompts: By id, the requests to the engine: one for each prompt.
        accepted: Resolves to None, or to the `ValueError` of a refusal.
    """

    def __init__(
        self,
        bridge: Bridge,
        request_id: str,
        prompts: list[TokenInputs],
        params: Params,
    ) -> None:
        self.request_id = request_id
        self.prompts = (
            {request_id: prompts[0]}
            if len(prompts) == 1
            else {f"{request_id}-{index}": prompt for index, prompt in enumerate(prompts)}
        )
        self.params = params
        self.num_outputs = _num_outputs(params)
        self.accepted: Future[None] = Future()
        self._bridge = bridge
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[OutputDelta] = asyncio.Queue()
        self._num_unfinished = len(prompts) * self.num_outputs

    async def pieces(self) -> AsyncIterator[OutputDelta]:
        """Yields the results of steps until all samples are finished; to be iterated once.

        Raises:
            AbortedError: The request was aborted.
            FailedError: The engine failed on it.
        """
        while self._num_unfinished:
            piece = await self._pieces.get()
            if piece.error is not None:
                raise FailedError(f"request {self.request_id} failed: {piece.error}")
            if piece.finish_reason is not None:
                self._num_unfinished -= 1
            if piece.finish_reason == "abort":
                raise AbortedError(f"request {self.request_id} was aborted")
            yield piece

    def close(self) -> None:
        """Aborts the request if it is unfinished."""
        if self._num_unfinished:
            for request_id in self.prompts:
                self._bridge.abort(request_id)

    def deliver(self, piece: OutputDelta) -> None:
        """Enqueues `piece`; called on the engine's thread."""
        self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)


@dataclass(frozen=True, slots=True)
class _Output:
    """The request of a group, and the numbers of its samples."""

    completion: Completion
    indices: range
    group: SequenceGroup


class Bridge:
    """A `RequestSource` for the engine's thread, with `submit` and `abort` for the HTTP thread.

    Attributes:
        metrics: The figures of all steps so far.
    """

    def __init__(self) -> None:
        self.metrics = EngineMetrics()
        self._commands: queue.SimpleQueue[Completion | str] = queue.SimpleQueue()
        # By the id of a group; engine's thread only.
        self._outputs: dict[str, _Output] = {}

    async def submit(
        self, request_id: str, prompts: list[TokenInputs], params: Params
    ) -> Completion:
        """Submits a request, and waits until the engine has accepted all of its prompts.

        Raises:
            ValueError: The engine refuses a prompt; see `LLMEngine.add_request`.
            AbortedError: The engine has stopped.
        """
        completion = Completion(self, request_id, prompts, params)
        self._commands.put(completion)
        await asyncio.wrap_future(completion.accepted)
        return completion

    def abort(self, request_id: str) -> None:
        """Aborts a request before the next step."""
        self._commands.put(request_id)

    # --- For the engine's thread

    def serve(self, server: EngineServer) -> None:
        """Passes the requests and aborts since the last call to the engine."""
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, Completion):
                self._add(server, command)
            else:
                server.abort(command)

    def stepped(self, record: StepRecord) -> None:
        """Counts a step, and delivers its results."""
        # Before the results, so that who has an answer finds it counted.
        self.metrics.stepped(record)
        for update in record.updates:
            if update.new_token_ids and update.request_id in self._outputs:
                output = self._outputs[update.request_id]
                if isinstance(output.completion.params, BeamSearchParams):
                    continue  # its outputs are known only at the end of the search
                is_first = update.seq.get_output_len() == len(update.new_token_ids)
                output.completion.deliver(
                    OutputDelta(
                        output.indices[0],
                        update.text_delta,
                        update.new_token_ids,
                        update.new_logprobs,
                        SequenceStatus.get_finished_reason(update.seq.status),
                        prompt_logprobs=output.group.prompt_logprobs if is_first else None,
                    )
                )
        for request_id, error in record.errors.items():
            self._end(request_id, "abort", error=error)
        for group in record.finished:
            if group.pooled_data is not None:
                self._end(group.request_id, "stop", group.pooled_data.tolist())
            ended = self._outputs.pop(group.request_id, None)
            if ended and isinstance(ended.completion.params, BeamSearchParams):
                for index, seq in zip(ended.indices, group.seqs, strict=True):
                    ended.completion.deliver(_search_output(index, seq))
        # These ended between steps, so that the step has no update for them.
        for group in (*record.ignored, *record.aborted):
            self._end(group.request_id, SequenceStatus.get_finished_reason(group.first_seq.status))

    def close(self) -> None:
        """Ends all requests with an error, because no step will follow."""
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, Completion) and command.accepted.set_running_or_notify_cancel():
                command.accepted.set_exception(AbortedError("the engine has stopped"))
        for request_id in list(self._outputs):
            self._end(request_id, "abort")

    def _add(self, server: EngineServer, completion: Completion) -> None:
        if not completion.accepted.set_running_or_notify_cancel():
            return  # the client has disconnected
        added: dict[str, list[SequenceGroup]] = {}
        try:
            for request_id, prompt in completion.prompts.items():
                added[request_id] = server.add(request_id, prompt, completion.params)
        except ValueError as error:
            for request_id in added:
                server.abort(request_id)
            completion.accepted.set_exception(error)
            return
        index = 0
        for groups in added.values():
            num_each = completion.num_outputs // len(groups)
            for group in groups:
                indices = range(index, index + num_each)
                self._outputs[group.request_id] = _Output(completion, indices, group)
                index += num_each
        completion.accepted.set_result(None)

    def _end(
        self,
        group_id: str,
        finish_reason: str | None,
        pooled: list[float] | None = None,
        error: str | None = None,
    ) -> None:
        if group_id in self._outputs:
            output = self._outputs.pop(group_id)
            for index in output.indices:
                piece = OutputDelta(index, "", [], [], finish_reason, pooled, error)
                output.completion.deliver(piece)


def _num_outputs(params: Params) -> int:
    """Returns the number of outputs of a prompt."""
    if isinstance(params, BeamSearchParams):
        return params.beam_width
    return 1 if isinstance(params, PoolingParams) else params.n


def _search_output(index: int, seq: Sequence) -> OutputDelta:
    """Returns one output of a beam search."""
    return OutputDelta(
        index,
        seq.output_text,
        list(seq.get_output_token_ids()),
        seq.output_logprobs,
        SequenceStatus.get_finished_reason(seq.status),
    )
