"""Methods of living objects, surrounded by functions that must never harm them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol


class Wrap(Protocol):
    """Has `owner.name(...)` call `before` with the same arguments first, `after` at the end.

    `before` may return other positional arguments for the method; `after` is also given the
    method's result, as the first.
    """

    def __call__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., tuple[Any, ...] | None] | None = None,
        after: Callable[..., object] | None = None,
    ) -> None: ...


class Wrapping:
    """A set of wrapped methods that can be undone, and is by the first exception in it.

    Args:
        failed: Called once, with that exception, after everything has been undone.
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
        """See `Wrap`. Only this one object changes, not its class."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self.active:
                try:
                    args = before(*args, **kwargs) or args
                except Exception as error:  # noqa: BLE001 - whatever it is, vLLM is to live
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
        """Give every method back to its object."""
        self.active = False
        while self._wrapped:
            owner, name = self._wrapped.pop()
            vars(owner).pop(name, None)

    def _fail(self, error: Exception) -> None:
        self.undo()
        self._failed(error)
