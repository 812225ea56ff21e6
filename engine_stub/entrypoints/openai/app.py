"""The application: routes, checks, and answers that end with the client's connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from engine_stub.entrypoints.openai.bridge import AbortedError, Bridge, Completion
from engine_stub.entrypoints.openai.chat import for_template
from engine_stub.entrypoints.openai.embeddings import (
    EmbeddingAnswer,
    EmbeddingRequest,
    EmbeddingUsage,
    embeddings,
)
from engine_stub.entrypoints.openai.errors import ApiError
from engine_stub.entrypoints.openai.responses import (
    Answer,
    ChatWording,
    TextWording,
    Wording,
    Writer,
)
from engine_stub.entrypoints.openai.schemas import ChatCompletionRequest, CompletionRequest
from engine_stub.processing.chat_template import ChatTemplate
from engine_stub.processing.input_processor import Prompt
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import SamplingParams, TokenInputs, token_inputs

MAX_BODY_BYTES = 2**20

_encode = msgspec.json.encode
_Body = TypeVar("_Body", CompletionRequest, ChatCompletionRequest, EmbeddingRequest)


@dataclass(frozen=True)
class ServedModel:
    """What the application has to know of the model.

    Attributes:
        name: What clients call it.
        max_model_len: The longest prompt and output together, in tokens.
        chat_template: Makes a conversation a prompt; None if the model has none.
        chat_stops: Strings that end its turn of a conversation, besides its stop tokens.
        created: When the engine was started, in seconds since the epoch.
    """

    name: str
    max_model_len: int
    chat_template: ChatTemplate | None
    chat_stops: tuple[str, ...]
    created: int


def make_app(
    bridge: Bridge, model: ServedModel, tokenizer: Tokenizer, *, allowed_hosts: list[str]
) -> Starlette:
    """Build the application.

    Args:
        allowed_hosts: What the Host header may say ("*" for anything), so that no page that a
            browser has open can reach the engine under a name of its own.
    """
    endpoints = _Endpoints(bridge, model, tokenizer)
    return Starlette(
        routes=[
            Route("/health", _health),
            Route("/v1/models", endpoints.models),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
            Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False)
        ],
        exception_handlers={ApiError: _refused, HTTPException: _not_served},
    )


class _Endpoints:
    """The endpoints."""

    def __init__(self, bridge: Bridge, model: ServedModel, tokenizer: Tokenizer) -> None:
        self._bridge = bridge
        self._model = model
        self._tokenizer = tokenizer
        self._numbers = itertools.count(1)

    async def models(self, _: Request) -> Response:
        card = {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created,
            "owned_by": "engine-stub",
            "max_model_len": self._model.max_model_len,
        }
        return _json({"object": "list", "data": [card]})

    async def completions(self, request: Request) -> Response:
        body = await _body(request, CompletionRequest)
        return await self._answer(body, body.engine_prompt, TextWording)

    async def chat_completions(self, request: Request) -> Response:
        template = self._model.chat_template
        if template is None:
            raise ApiError(f"{self._model.name} has no chat template; use /v1/completions")
        body = await _body(request, ChatCompletionRequest)
        prompt = partial(self._conversation, body, template)
        return await self._answer(body, prompt, ChatWording, self._model.chat_stops)

    async def embeddings(self, request: Request) -> Response:
        body = await _body(request, EmbeddingRequest)
        self._check_model(body.model)
        request_id = f"embd-{next(self._numbers)}"
        with contextlib.ExitStack() as unwanted:  # ends what was submitted before a refusal
            completions = []
            num_tokens = 0
            try:
                params = body.pooling_params()
                for index, prompt in enumerate(body.prompts()):
                    await self._check_length(prompt, room=0)
                    completion, num_prompt_tokens = await self._bridge.submit(
                        f"{request_id}-{index}", prompt, params
                    )
                    unwanted.callback(completion.close)
                    completions.append(completion)
                    num_tokens += num_prompt_tokens
            except ValueError as error:
                raise ApiError(str(error)) from error
            except AbortedError as error:
                raise _aborted(error) from error
            all_of_them = unwanted.pop_all()

        async def answer() -> EmbeddingAnswer:
            data = await embeddings(completions, body.encoding_format)
            return EmbeddingAnswer(data, self._model.name, EmbeddingUsage(num_tokens, num_tokens))

        return _Attended(all_of_them, partial(_send_whole, answer))

    def _conversation(self, body: ChatCompletionRequest, template: ChatTemplate) -> TokenInputs:
        """The prompt that a conversation is to the model."""
        variables = body.chat_template_kwargs or {}
        text = template.render(for_template(body.messages), **variables)
        return token_inputs(self._tokenizer.encode_with_special_tokens(text), text)

    async def _answer(
        self,
        body: CompletionRequest | ChatCompletionRequest,
        make_prompt: Callable[[], Prompt],
        wording: type[Wording],
        stops: Sequence[str] = (),
    ) -> Response:
        self._check_model(body.model)
        request_id = f"{wording.id_prefix}-{next(self._numbers)}"
        try:
            params = body.params(stops)
            prompt = await asyncio.to_thread(make_prompt)
            await self._check_length(prompt)
            completion, num_prompt_tokens = await self._bridge.submit(request_id, prompt, params)
        except ValueError as error:
            raise ApiError(str(error)) from error
        except AbortedError as error:
            raise _aborted(error) from error
        tells_logprobs = isinstance(params, SamplingParams) and params.logprobs is not None
        writer = Writer(
            wording(with_logprobs=tells_logprobs),
            request_id,
            model=self._model.name,
            num_prompt_tokens=num_prompt_tokens,
        )
        if body.stream:
            events = _events(completion, writer, with_usage=body.wants_usage)
            return _Attended(completion, partial(_send_events, events))

        async def whole() -> Answer:
            return writer.whole([piece async for piece in completion.pieces()])

        return _Attended(completion, partial(_send_whole, whole))

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._model.name):
            raise ApiError(
                f"the model {name!r} does not exist; this engine serves {self._model.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def _check_length(self, prompt: Prompt, *, room: int = 1) -> None:
        """Refuse a prompt that is too long before the engine's thread spends time on it.

        Args:
            room: Tokens of output that there has to be room for.
        """
        if isinstance(prompt, str):
            token_ids = await asyncio.to_thread(self._tokenizer.encode, prompt)
        else:
            token_ids = prompt if isinstance(prompt, list) else prompt["prompt_token_ids"]
        if len(token_ids) + room > self._model.max_model_len:
            raise ApiError(
                f"the prompt has {len(token_ids)} tokens, and this engine takes at most"
                f" {self._model.max_model_len}, prompt and output together",
                code="context_length_exceeded",
            )


class _Attended(Response):
    """Sends an answer for as long as the client is there; if it leaves, the request is aborted.

    Args:
        work: What the answer is made of; closed when the answer has been sent, or can not be.
    """

    def __init__(
        self,
        work: Completion | contextlib.ExitStack,
        answer: Callable[[Send], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__()
        self._work = work
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.ensure_future(self._answer(send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({answer, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                answer.result()
        finally:
            self._work.close()
            leaving.cancel()
            answer.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(answer: Callable[[], Awaitable[msgspec.Struct]], send: Send) -> None:
    try:
        response = _json(await answer())
    except AbortedError as error:
        response = _error(_aborted(error))
    await send(
        {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": response.raw_headers,
        }
    )
    await send({"type": "http.response.body", "body": response.body})


async def _send_events(events: AsyncIterator[bytes], send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for event in events:
        body = b"data: " + event + b"\n\n"
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _events(
    completion: Completion, writer: Writer, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yield the stream's events: one for each piece, and what ends it."""
    try:
        async for piece in completion.pieces():
            yield _encode(writer.chunk(piece))
        if with_usage:
            yield _encode(writer.usage_chunk())
        yield b"[DONE]"
    except AbortedError as error:
        # The status has long been sent; clients know an error by its shape.
        yield _encode(_aborted(error).answer)


async def _body(request: Request, kind: type[_Body]) -> _Body:
    """Read the body, and no more than is allowed."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        # Nothing else makes a browser ask before it lets a foreign page send something here.
        raise ApiError("the content type must be application/json", status=415)
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise ApiError(f"the body is longer than {MAX_BODY_BYTES} bytes", status=413)
    except ClientDisconnect as error:
        raise ApiError("the client left before its request was complete") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise ApiError(f"the body is not a request of this kind: {error}") from error


async def _health(_: Request) -> Response:
    return _json({"status": "ok"})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(error)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path}: {HTTPStatus(error.status_code).phrase}"
    return _error(ApiError(sentence, status=error.status_code))


def _aborted(error: AbortedError) -> ApiError:
    return ApiError(str(error), status=503, code="request_aborted")


def _error(error: ApiError) -> Response:
    return _json(error.answer, error.status)


def _json(answer: Any, status: int = 200) -> Response:
    return Response(_encode(answer), status, media_type="application/json")
