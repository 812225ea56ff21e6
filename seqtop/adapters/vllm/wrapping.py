"""Wraps methods of objects with functions whose errors never reach the caller."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol


class Wrap(Protocol):
    """Wraps the method `name` of one object.

    `before` is called first with the method's arguments, and may return other positional arguments
    for it. `after` is called last with the method's result and its arguments.
    """

    def __call__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., tuple[Any, ...] | None] | None = None,
        after: Callable[..., object] | None = None,
    ) -> None:
        """Wraps a method of `owner`."""


class Wrapping:
    """A set of wrapped methods. The first exception in a wrapper restores all methods.

    Args:
        failed: Called once with that exception, after the methods have been restored.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._wrapped: list[tuple[Any, str]] = []
        self.active = True

    def wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., tuple[Any, ...] | None] | None = None,
        after: Callable[..., object] | None = None,
    ) -> None:
        """Wraps a method as described in `Wrap`. Its class is unchanged."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self.active:
                try:
                    args = before(*args, **kwargs) or args
                except Exception as error:  # noqa: BLE001 - no error may stop vLLM
                    self._fail(error)
            result = original(*args, **kwargs)
            if after is not None and self.active:
                try:
                    after(result, *args, **kwargs)
                except Exception as error:  # noqa: BLE001
                    self._fail(error)
            return result

        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name))

    def undo(self) -> None:
        """Restores every method."""
        self.active = False
        while self._wrapped:
            owner, name = self._wrapped.pop()
            vars(owner).pop(name, None)

    def _fail(self, error: Exception) -> None:
        self.undo()
        self._failed(error)
