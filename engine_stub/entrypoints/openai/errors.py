"""Errors in the format of OpenAI's API."""

from __future__ import annotations

import msgspec

from seqtop.text.format import shortened

MAX_LENGTH = 1_000
"""The longest message in characters. It may quote what a client or a model's template gave."""


class ErrorBody(msgspec.Struct):
    """The description of an error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """The body of a response with an error."""

    error: ErrorBody


class ApiError(Exception):
    """An error to respond with; `str()` is one sentence for the client.

    Attributes:
        status: The HTTP status; from 500 on, the error is not the client's.
        response: The body of the response.
    """

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        message = shortened(message, MAX_LENGTH)
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.response = ErrorResponse(
            ErrorBody(message, kind, param and shortened(param, MAX_LENGTH), code)
        )


def invalid_value(param: str, reason: str) -> ApiError:
    """Returns the refusal of a parameter's value, or of its use beside others."""
    return ApiError(f"Invalid value for '{param}': {reason}.", param=param, code="invalid_value")
