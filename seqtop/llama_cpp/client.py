"""The answers of llama.cpp's server (`llama-server`) to `GET /props`, `/slots` and `/metrics`.

Fields are those of llama.cpp's `server_slot::to_json`. Older versions have fewer.
"""

from __future__ import annotations

import http.client
import re
import time
from typing import Annotated, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

import msgspec

from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import UnreachableError

MAX_ANSWER_BYTES: Final = 16 * 2**20
"""The largest answer. A slot takes 2 KB, or more if the server is told to send the prompts."""

MAX_SLOTS: Final = 4_096
MAX_TOKENS: Final = 2**22
"""Tokens of all slots together: viewers have a number for each."""

_TIMEOUT_SECONDS: Final = 5.0
_READ_BYTES: Final = 2**16
_DEFERRED: Final = re.compile(rb"^llamacpp:requests_deferred (\d{1,9})(?:\.0+)?\s*$", re.MULTILINE)

T = TypeVar("T")
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, le=2**31)]


class NextToken(msgspec.Struct, frozen=True):
    """The generation of a slot."""

    n_decoded: Count
    """Tokens generated so far."""


class LoraScale(msgspec.Struct, frozen=True):
    """A LoRA adapter and its weight."""

    id: int
    scale: float = 0.0


class Params(msgspec.Struct, frozen=True):
    """The parameters of a request."""

    n_predict: int = -1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    lora: list[LoraScale] = []


class Slot(msgspec.Struct):
    """A slot: a place for one request. `None` where the version does not say it."""

    id: Count
    n_ctx: Count
    is_processing: bool
    id_task: Count | None = None
    n_prompt_tokens: Count | None = None
    """Tokens in the context: of the prompt and the output so far, or of the request before."""
    n_prompt_tokens_processed: Count | None = None
    """Tokens of the prompt that were computed."""
    n_prompt_tokens_cache: Count | None = None
    """Tokens of the prompt that were found in the slot's context."""
    next_token: list[NextToken] | NextToken = []
    params: Params = Params()

    @property
    def num_decoded(self) -> int:
        """Tokens generated so far."""
        first = self.next_token[:1] if isinstance(self.next_token, list) else [self.next_token]
        return max([token.n_decoded for token in first], default=0)

    @property
    def num_prefilled(self) -> int:
        """Tokens of the prompt that are computed or were found: at the end, all of them."""
        parts = (self.n_prompt_tokens_processed, self.n_prompt_tokens_cache)
        return sum(max(part or 0, 0) for part in parts)


class _Defaults(msgspec.Struct, frozen=True):
    n_ctx: Count = 0


class Props(msgspec.Struct):
    """The server's properties."""

    total_slots: Annotated[int, msgspec.Meta(ge=1, le=MAX_SLOTS)]
    model_ftype: str = ""
    """The type of the weights, such as `Q4_K - Medium`."""
    model_path: str = ""
    model_alias: str = ""
    build_info: str = ""
    default_generation_settings: _Defaults = _Defaults()


class Client:
    """Asks one server.

    Args:
        url: Its address, such as `http://127.0.0.1:8080`.
        api_key: The key that it was started with; empty without one.

    Raises:
        UnreachableError: The address is malformed. All methods raise it if the server does not
            answer, or not as llama.cpp's does.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(self.url)
            self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
        except ValueError as error:
            raise UnreachableError(f"{url!r} is not an address: {error}") from error
        if parts.scheme not in {"http", "https"} or not self._host:
            raise UnreachableError(f"{url!r} is not an address; write http://HOST:PORT")
        self._is_secure = parts.scheme == "https"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def props(self) -> Props:
        """Returns the server's properties."""
        return self._json("/props", Props)

    def slots(self) -> list[Slot]:
        """Returns the slots."""
        slots = self._json("/slots", list[Slot])
        num_tokens = sum(slot.num_prefilled + slot.num_decoded for slot in slots)
        if len(slots) > MAX_SLOTS or num_tokens > MAX_TOKENS:
            raise UnreachableError(
                f"{self.url}/slots has {len(slots):,} slots with {num_tokens:,} tokens, of"
                f" {MAX_SLOTS:,} and {MAX_TOKENS:,} that are shown"
            )
        return slots

    def num_deferred(self) -> int:
        """Returns the number of requests that wait for a slot."""
        match = _DEFERRED.search(self._get("/metrics"))
        if match is None:
            raise UnreachableError(f"{self.url}/metrics does not have llamacpp:requests_deferred")
        return int(match[1])

    def _json(self, path: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self._get(path), type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnreachableError(
                f"{self.url}{path} does not answer as llama.cpp's server: {safe_line(str(error))}"
            ) from error

    def _get(self, path: str) -> bytes:
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT_SECONDS)
        deadline, content = time.monotonic() + _TIMEOUT_SECONDS, bytearray()
        try:
            connection.request("GET", self._path + path, headers=self._headers)
            response = connection.getresponse()
            while len(content) <= MAX_ANSWER_BYTES and (more := response.read1(_READ_BYTES)):
                content += more
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
        except (OSError, http.client.HTTPException) as error:
            reason = safe_line(str(error)) or type(error).__name__
            message = f"no llama.cpp server answers at {self.url}: {reason}"
            raise UnreachableError(message) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise UnreachableError(_refusal(f"{self.url}{path}", path, response.status))
        if len(content) > MAX_ANSWER_BYTES:
            raise UnreachableError(f"{self.url}{path} sent more than {MAX_ANSWER_BYTES:,} bytes")
        return bytes(content)


def _refusal(address: str, path: str, status: int) -> str:
    """Returns a sentence on an answer that is an error."""
    if status in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
        return f"{address} wants an API key: set LLAMA_API_KEY"
    if status == http.client.SERVICE_UNAVAILABLE:
        return f"{address}: the server is still loading its model"
    option = {"/metrics": "--metrics", "/slots": "--slots"}.get(path)
    if option and status in {http.client.NOT_IMPLEMENTED, http.client.NOT_FOUND}:
        return f"{address} is not enabled: start llama-server with {option}"
    return f"{address} answered with status {status}"
