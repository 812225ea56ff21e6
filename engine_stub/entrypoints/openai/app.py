"""The HTTP application: routes, checks, and responses that end with the client's connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
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

from engine_stub.entrypoints.openai.bridge import (
    AbortedError,
    Bridge,
    Completion,
    FailedError,
    OutputDelta,
)
from engine_stub.entrypoints.openai.chat import ConversationMessage, for_template
from engine_stub.entrypoints.openai.embeddings import (
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    embeddings,
)
from engine_stub.entrypoints.openai.errors import ApiError, invalid_value
from engine_stub.entrypoints.openai.metrics import CONTENT_TYPE
from engine_stub.entrypoints.openai.refusals import body_refusal
from engine_stub.entrypoints.openai.responses import (
    ChatFormat,
    CompletionResponse,
    EchoedPrompt,
    ResponseBuilder,
    ResponseFormat,
    TextFormat,
)
from engine_stub.entrypoints.openai.schemas import ChatCompletionRequest, CompletionRequest
from engine_stub.entrypoints.openai.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from engine_stub.processing.chat_template import ChatTemplate
from engine_stub.processing.input_processor import Prompt
from engine_stub.processing.tokenizer import Tokenizer
from seqtop import __version__
from seqtop.sequence import SamplingParams, TokenInputs, token_inputs
from seqtop.sequence.errors import ParameterError

MAX_BODY_BYTES = 2**20
MAX_BODY_SECONDS = 30.0
"""The longest time for a body to arrive."""

_log = logging.getLogger(__name__)
_encode = msgspec.json.encode
_Body = TypeVar("_Body", bound=msgspec.Struct)


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

    def card(self) -> dict[str, Any]:
        """Returns its description as OpenAI's object, with vLLM's ``max_model_len``."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "engine-stub",
            "max_model_len": self.max_model_len,
        }


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
            Route("/version", _version),
            Route("/metrics", endpoints.metrics),
            Route("/tokenize", endpoints.tokenize, methods=["POST"]),
            Route("/detokenize", endpoints.detokenize, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/v1/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
            Route("/v1/embeddings", endpoints.embeddings, methods=["POST"]),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False)
        ],
        exception_handlers={ApiError: _refused, HTTPException: _not_served},
    )


_CLIENT_ID = re.compile(r"[\w.:/+-]{1,100}", re.ASCII)
"""The form of a header X-Request-Id that is used; others are ignored."""


class _Endpoints:
    def __init__(self, bridge: Bridge, model: ServedModel, tokenizer: Tokenizer) -> None:
        self._bridge = bridge
        self._model = model
        self._tokenizer = tokenizer
        self._numbers = itertools.count(1)

    async def metrics(self, _: Request) -> Response:
        return Response(self._bridge.metrics.text(self._model.name), media_type=CONTENT_TYPE)

    async def models(self, _: Request) -> Response:
        return _json({"object": "list", "data": [self._model.card()]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return _json(self._model.card())

    async def tokenize(self, request: Request) -> Response:
        body = await _body(request, TokenizeRequest)
        self._check_model(body.model)
        try:
            tokens = await asyncio.to_thread(self._tokenize, body)
        except ValueError as error:
            raise _invalid(error, body, "messages") from error
        response = TokenizeResponse(len(tokens), self._model.max_model_len, tokens)
        if body.return_token_strs:
            response.token_strs = [self._tokenizer.id_to_token(token) for token in tokens]
        return _json(response)

    async def detokenize(self, request: Request) -> Response:
        body = await _body(request, DetokenizeRequest)
        self._check_model(body.model)
        self._check_length(len(body.tokens), "tokens", room=0)
        size = self._tokenizer.vocab_size
        if unknown := [token for token in body.tokens if not 0 <= token < size]:
            raise invalid_value("tokens", f"token {unknown[0]} is outside the vocabulary of {size}")
        decode = partial(self._tokenizer.decode, body.tokens, skip_special_tokens=False)
        text = await asyncio.to_thread(decode)
        return _json(DetokenizeResponse(text))

    async def completions(self, request: Request) -> Response:
        body = await _body(request, CompletionRequest)
        return await self._complete(request, body, body.prompts)

    async def chat_completions(self, request: Request) -> Response:
        template = self._chat_template()
        body = await _body(request, ChatCompletionRequest)
        prompts = partial(self._conversation, body.messages, body.chat_template_kwargs, template)
        return await self._complete(request, body, prompts, self._model.chat_stops)

    async def embeddings(self, request: Request) -> Response:
        body = await _body(request, EmbeddingRequest)
        self._check_model(body.model)
        request_id = self._request_id(request, "embd")
        try:
            params = body.pooling_params()
            prompts = await asyncio.to_thread(self._encode, body.prompts, "input", room=0)
            completion = await self._bridge.submit(request_id, prompts, params)
        except ValueError as error:
            raise _invalid(error, body, "input") from error
        except AbortedError as error:
            raise _aborted(error) from error
        num_tokens = _num_tokens(prompts)

        async def respond() -> EmbeddingResponse:
            data = await embeddings(completion, body.encoding_format)
            return EmbeddingResponse(data, self._model.name, EmbeddingUsage(num_tokens, num_tokens))

        return _DisconnectingResponse(completion, partial(_send_whole, respond))

    def _chat_template(self) -> ChatTemplate:
        if self._model.chat_template is None:
            raise ApiError(f"{self._model.name} has no chat template; use /v1/completions")
        return self._model.chat_template

    def _conversation(
        self,
        messages: list[ConversationMessage],
        variables: dict[str, Any] | None,
        template: ChatTemplate,
    ) -> list[Prompt]:
        """Returns the prompt of a conversation."""
        text = template.render(for_template(messages), **variables or {})
        self._check_length(self._tokenizer.least_tokens(text), "messages", is_least=True)
        return [token_inputs(self._tokenizer.encode_with_special_tokens(text), text)]

    def _tokenize(self, body: TokenizeRequest) -> list[int]:
        """Returns the tokens of a prompt or a conversation."""
        if (body.prompt is None) == (body.messages is None):
            raise invalid_value("prompt", "a request has either this or messages")
        if body.messages is not None:
            if body.add_special_tokens:
                raise invalid_value("add_special_tokens", "it is for requests with prompt")
            variables, template = body.chat_template_kwargs, self._chat_template()
            prompts = partial(self._conversation, body.messages, variables, template)
            return self._encode(prompts, "messages", room=0)[0]["prompt_token_ids"]
        assert body.prompt is not None
        least = self._tokenizer.least_tokens(body.prompt)
        self._check_length(least, "prompt", room=0, is_least=True)
        with_special = body.add_special_tokens is not False
        tokens = self._tokenizer.encode(body.prompt, add_special_tokens=with_special)
        self._check_length(len(tokens), "prompt", room=0)
        return tokens

    def _encode(
        self, make_prompts: Callable[[], list[Prompt]], field: str, *, room: int = 1
    ) -> list[TokenInputs]:
        """Makes prompts and tokenizes them, to save time on the engine's thread.

        Args:
            make_prompts: Makes them.
            field: The field of the request that they are given in.
            room: Tokens of output that must fit in addition.

        Raises:
            ApiError: One of them is too long. A text that is too long in any case takes no time.
        """
        inputs = []
        for prompt in make_prompts():
            if isinstance(prompt, str):
                least = self._tokenizer.least_tokens(prompt)
                self._check_length(least, field, room=room, is_least=True)
                tokens = token_inputs(self._tokenizer.encode(prompt), prompt)
            else:
                tokens = token_inputs(prompt) if isinstance(prompt, list) else prompt
            self._check_length(len(tokens["prompt_token_ids"]), field, room=room)
            inputs.append(tokens)
        return inputs

    async def _complete(
        self,
        request: Request,
        body: CompletionRequest | ChatCompletionRequest,
        make_prompts: Callable[[], list[Prompt]],
        stops: Sequence[str] = (),
    ) -> Response:
        self._check_model(body.model)
        is_chat = isinstance(body, ChatCompletionRequest)
        id_prefix = ChatFormat.id_prefix if is_chat else TextFormat.id_prefix
        request_id = self._request_id(request, id_prefix)
        field = "messages" if is_chat else "prompt"
        try:
            params = body.params(stops)
            prompts = await asyncio.to_thread(self._encode, make_prompts, field)
            self._check_output_limit(prompts, *body.output_limit)
            completion = await self._bridge.submit(request_id, prompts, params)
        except ValueError as error:
            raise _invalid(error, body, field) from error
        except AbortedError as error:
            raise _aborted(error) from error
        with_logprobs = isinstance(params, SamplingParams) and params.logprobs is not None
        response_format: ResponseFormat
        if isinstance(body, ChatCompletionRequest):
            response_format = ChatFormat(with_logprobs=with_logprobs)
        else:
            echoed = [
                self._echoed(prompt)
                for prompt in (prompts if body.echo else ())
                for _ in range(completion.num_outputs)
            ]
            response_format = TextFormat(with_logprobs=with_logprobs, echoed=echoed)
        builder = ResponseBuilder(
            response_format,
            request_id,
            model=self._model.name,
            num_prompt_tokens=_num_tokens(prompts),
        )
        pieces = completion.pieces()
        if body.output_limit[1] == 0:
            pieces = _without_output(pieces)
        if body.stream:
            events = _events(pieces, builder, with_usage=body.wants_usage)
            return _DisconnectingResponse(completion, partial(_send_events, events))

        async def whole() -> CompletionResponse:
            return builder.whole([piece async for piece in pieces])

        return _DisconnectingResponse(completion, partial(_send_whole, whole))

    def _echoed(self, prompt: TokenInputs) -> EchoedPrompt:
        token_ids = prompt["prompt_token_ids"]
        text = prompt.get("prompt")
        return EchoedPrompt(
            self._tokenizer.decode(token_ids) if text is None else text,
            token_ids,
            self._tokenizer.decode(token_ids[:1]),
        )

    def _request_id(self, request: Request, prefix: str) -> str:
        """Returns a new id, in which the client's own one is, if it sent one, as in vLLM."""
        number = next(self._numbers)
        name = request.headers.get("X-Request-Id", "")
        if not _CLIENT_ID.fullmatch(name):
            return f"{prefix}-{number}"
        return f"{prefix}-{name}-{number:08x}"

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._model.name):
            raise ApiError(
                f"the model {name!r} does not exist; this engine serves {self._model.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def _check_length(
        self, num_tokens: int, field: str, *, room: int = 1, is_least: bool = False
    ) -> None:
        """Refuses a prompt that is too long, whose tokens may be `num_tokens` at least."""
        if num_tokens + room > self._model.max_model_len:
            raise ApiError(
                f"the prompt has{' at least' * is_least} {num_tokens} tokens, and this engine takes"
                f" at most {self._model.max_model_len}, prompt and output together",
                param=field,
                code="context_length_exceeded",
            )

    def _check_output_limit(
        self, prompts: list[TokenInputs], field: str, limit: int | None
    ) -> None:
        """Refuses a limit of the output that a prompt leaves no room for."""
        most = self._model.max_model_len
        longest = max(len(prompt["prompt_token_ids"]) for prompt in prompts)
        if limit is not None and longest + limit > most:
            raise ApiError(
                f"{field}={limit} is too large: this engine takes at most {most} tokens, prompt and"
                f" output together, and a prompt of {longest} tokens leaves {most - longest}",
                param=field,
                code="context_length_exceeded",
            )


class _DisconnectingResponse(Response):
    """A response that aborts the request if the client disconnects.

    Args:
        work: The submitted request; closed when the response has been sent, or cannot be.
        respond: Sends the response.
    """

    def __init__(
        self,
        work: Completion,
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


def _num_tokens(prompts: list[TokenInputs]) -> int:
    return sum(len(prompt["prompt_token_ids"]) for prompt in prompts)


async def _without_output(pieces: AsyncIterator[OutputDelta]) -> AsyncIterator[OutputDelta]:
    """Yields pieces of requests for no tokens, without the one that the engine samples."""
    async for piece in pieces:
        reason = piece.finish_reason and "length"
        yield replace(piece, text="", token_ids=[], logprobs=[], finish_reason=reason)


async def _events(
    pieces: AsyncIterator[OutputDelta], builder: ResponseBuilder, *, with_usage: bool
) -> AsyncIterator[bytes]:
    """Yields the events of a stream: one for each piece, then the usage and the end."""
    try:
        async for piece in pieces:
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
        decoded = msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise body_refusal(error, body, kind) from error
    except RecursionError as error:
        raise ApiError("the body is nested too deeply") from error
    if _log.isEnabledFor(logging.DEBUG):
        given = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        if ignored := sorted(given.keys() - set(kind.__struct_fields__)):
            _log.debug("ignored fields of a request: %.1000s", ignored)
    return decoded


async def _health(_: Request) -> Response:
    return _json({"status": "ok"})


async def _version(_: Request) -> Response:
    return _json({"version": __version__})


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _error(error)


async def _not_served(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = f"{request.method} {request.url.path}: {HTTPStatus(error.status_code).phrase}"
    return _error(ApiError(sentence, status=error.status_code))


def _invalid(error: ValueError, body: msgspec.Struct, prompt_field: str) -> ApiError:
    """Returns the engine's refusal of a request, with the field that it is about, if it is one.

    Args:
        prompt_field: The field of `body` that the prompts are given in.
    """
    name = error.parameter if isinstance(error, ParameterError) else ""
    name = {"prompt": prompt_field, "beam_width": "n"}.get(name, name)
    if name in body.__struct_fields__:
        return invalid_value(name, str(error))
    return ApiError(str(error))


def _aborted(error: AbortedError) -> ApiError:
    if isinstance(error, FailedError):
        return ApiError(str(error), status=500, code="request_failed")
    return ApiError(str(error), status=503, code="request_aborted")


def _error(error: ApiError) -> Response:
    return _json(error.response, error.status)


def _json(content: Any, status: int = 200) -> Response:
    return Response(_encode(content), status, media_type="application/json")
