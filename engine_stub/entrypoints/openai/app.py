"""The HTTP application: routes, checks, and responses that end with the client's connection."""

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

from engine_stub.entrypoints.openai.bridge import AbortedError, Bridge, Completion, FailedError
from engine_stub.entrypoints.openai.chat import for_template
from engine_stub.entrypoints.openai.embeddings import (
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    embeddings,
)
from engine_stub.entrypoints.openai.errors import ApiError
from engine_stub.entrypoints.openai.responses import (
    ChatFormat,
    CompletionResponse,
    ResponseBuilder,
    ResponseFormat,
    TextFormat,
)
from engine_stub.entrypoints.openai.schemas import ChatCompletionRequest, CompletionRequest
from engine_stub.processing.chat_template import ChatTemplate
from engine_stub.processing.input_processor import Prompt
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import SamplingParams, TokenInputs, token_inputs

MAX_BODY_BYTES = 2**20
MAX_BODY_SECONDS = 30.0
"""The longest time for a body to arrive."""

_UNREAD_BODY = (408, 413)
"""Responses after which the connection is closed, so that the rest of the body is not read."""

_encode = msgspec.json.encode
_Body = TypeVar("_Body", CompletionRequest, ChatCompletionRequest, EmbeddingRequest)


@dataclass(frozen=True)
class ServedModel:
    """The description of the model for clients.

    Attributes:
        name: Its name in the API.
        max_model_len: The longest prompt and output together, in tokens.
        chat_template: The template for conversations; None if the model has none.
        chat_stops: Stop strings of its turn in a conversation, in addition to stop tokens.
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
    """Builds the application.

    Args:
        bridge: The connection to the engine's thread.
        model: The description of the model.
        tokenizer: The model's tokenizer.
        allowed_hosts: Allowed values of the Host header ("*" for any). They prevent DNS rebinding:
            a page in a browser that reaches the engine under a host name of its own.
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
        return await self._complete(body, body.engine_prompt, TextFormat)

    async def chat_completions(self, request: Request) -> Response:
        template = self._model.chat_template
        if template is None:
            raise ApiError(f"{self._model.name} has no chat template; use /v1/completions")
        body = await _body(request, ChatCompletionRequest)
        prompt = partial(self._conversation, body, template)
        return await self._complete(body, prompt, ChatFormat, self._model.chat_stops)

    async def embeddings(self, request: Request) -> Response:
        body = await _body(request, EmbeddingRequest)
        self._check_model(body.model)
        request_id = f"embd-{next(self._numbers)}"
        with contextlib.ExitStack() as submitted:  # aborted if a later prompt is refused
            completions = []
            num_tokens = 0
            try:
                params = body.pooling_params()
                for index, prompt in enumerate(body.prompts()):
                    await self._check_length(prompt, room=0)
                    completion, num_prompt_tokens = await self._bridge.submit(
                        f"{request_id}-{index}", prompt, params
                    )
                    submitted.callback(completion.close)
                    completions.append(completion)
                    num_tokens += num_prompt_tokens
            except ValueError as error:
                raise ApiError(str(error)) from error
            except AbortedError as error:
                raise _aborted(error) from error
            accepted = submitted.pop_all()

        async def respond() -> EmbeddingResponse:
            data = await embeddings(completions, body.encoding_format)
            return EmbeddingResponse(data, self._model.name, EmbeddingUsage(num_tokens, num_tokens))

        return _DisconnectingResponse(accepted, partial(_send_whole, respond))

    def _conversation(self, body: ChatCompletionRequest, template: ChatTemplate) -> TokenInputs:
        """Returns the prompt of a conversation."""
        variables = body.chat_template_kwargs or {}
        text = template.render(for_template(body.messages), **variables)
        return token_inputs(self._tokenizer.encode_with_special_tokens(text), text)

    async def _complete(
        self,
        body: CompletionRequest | ChatCompletionRequest,
        make_prompt: Callable[[], Prompt],
        response_format: type[ResponseFormat],
        stops: Sequence[str] = (),
    ) -> Response:
        self._check_model(body.model)
        request_id = f"{response_format.id_prefix}-{next(self._numbers)}"
        try:
            params = body.params(stops)
            prompt = await asyncio.to_thread(make_prompt)
            await self._check_length(prompt)
            completion, num_prompt_tokens = await self._bridge.submit(request_id, prompt, params)
        except ValueError as error:
            raise ApiError(str(error)) from error
        except AbortedError as error:
            raise _aborted(error) from error
        with_logprobs = isinstance(params, SamplingParams) and params.logprobs is not None
        builder = ResponseBuilder(
            response_format(with_logprobs=with_logprobs),
            request_id,
            model=self._model.name,
            num_prompt_tokens=num_prompt_tokens,
        )
        if body.stream:
            events = _events(completion, builder, with_usage=body.wants_usage)
            return _DisconnectingResponse(completion, partial(_send_events, events))

        async def whole() -> CompletionResponse:
            return builder.whole([piece async for piece in completion.pieces()])

        return _DisconnectingResponse(completion, partial(_send_whole, whole))

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._model.name):
            raise ApiError(
                f"the model {name!r} does not exist; this engine serves {self._model.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    async def _check_length(self, prompt: Prompt, *, room: int = 1) -> None:
        """Refuses a prompt that is too long, to save time on the engine's thread.

        Args:
            prompt: The prompt.
            room: Tokens of output that must fit in addition.
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


class _DisconnectingResponse(Response):
    """A response that aborts the request if the client disconnects.

    Args:
        work: The submitted requests; closed when the response has been sent, or cannot be.
        respond: Sends the response.
    """

    def __init__(
        self,
        work: Completion | contextlib.ExitStack,
        respond: Callable[[Send], Coroutine[Any, Any, None]],
    ) -> None:
        super().__init__()
        self._work = work
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        responding = asyncio.ensure_future(self._respond(send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({responding, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if responding.done():
                responding.result()
        finally:
            self._work.close()
            disconnected.cancel()
            responding.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(respond: Callable[[], Awaitable[msgspec.Struct]], send: Send) -> None:
    try:
        response = _json(await respond())
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
    completion: Completion, builder: ResponseBuilder, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yields the events of a stream: one for each piece, then the usage and the end."""
    try:
        async for piece in completion.pieces():
            yield _encode(builder.chunk(piece))
        if with_usage:
            yield _encode(builder.usage_chunk())
        yield b"[DONE]"
    except AbortedError as error:
        # The status has been sent already; clients recognize an error by its format.
        yield _encode(_aborted(error).response)


async def _body(request: Request, kind: type[_Body]) -> _Body:
    """Reads and decodes the body; refuses one that is too long, or takes too long to arrive."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        # A browser asks before it sends JSON for a page of another origin (a CORS preflight); other
        # content types it sends at once.
        raise ApiError("the content type must be application/json", status=415)
    body = bytearray()
    try:
        async with asyncio.timeout(MAX_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise ApiError(f"the body is longer than {MAX_BODY_BYTES} bytes", status=413)
    except TimeoutError as error:
        sentence = f"the body did not arrive within {MAX_BODY_SECONDS:g} seconds"
        raise ApiError(sentence, status=408) from error
    except ClientDisconnect as error:
        raise ApiError("the client disconnected before its request was complete") from error
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise ApiError(f"the body is not a request of this kind: {error}") from error
    except RecursionError as error:
        raise ApiError("the body is nested too deeply") from error


async def _health(_: Request) -> Response:
    return _json({"status": "ok"})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    response = _error(error)
    if error.status in _UNREAD_BODY:
        response.headers["Connection"] = "close"
    return response


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path}: {HTTPStatus(error.status_code).phrase}"
    return _error(ApiError(sentence, status=error.status_code))


def _aborted(error: AbortedError) -> ApiError:
    if isinstance(error, FailedError):
        return ApiError(str(error), status=500, code="request_failed")
    return ApiError(str(error), status=503, code="request_aborted")


def _error(error: ApiError) -> Response:
    return _json(error.response, error.status)


def _json(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")
