"""Errors in the shape that OpenAI's clients understand."""

from __future__ import annotations

import msgspec


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct):
    error: ErrorBody


class ApiError(Exception):
    """A request that is answered with an error; `str()` is one sentence for the client.

    Attributes:
        status: Of HTTP; those from 500 on are not the client's fault.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.answer = ErrorAnswer(ErrorBody(message, kind, param, code))
