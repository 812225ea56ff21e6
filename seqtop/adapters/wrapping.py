"""Wraps methods of objects with functions whose errors never reach the caller."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Protocol


class Wrap(Protocol):
    """Wraps the method `name` of one object, or a class method of a class.

    `before` is called first with the method's arguments, and may return other positional arguments
    for it. `after` is called last with the method's result and its arguments. The result is a
    function that removes the wrapper (`False`) and puts it back (`True`); `is_on` is its state at
    the start.
    """

    def __call__(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., tuple[Any, ...] | None] | None = None,
        after: Callable[..., object] | None = None,
        is_on: bool = True,
    ) -> Callable[[bool], None]:
        """Wraps a method of `owner`."""


class Wrapping:
    """A set of wrapped methods. The first exception in a wrapper restores all methods.

    Args:
        failed: Called once with that exception, after the methods have been restored.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._switches: list[Callable[[bool], None]] = []
        self.active = True

    def wrap(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[..., tuple[Any, ...] | None] | None = None,
        after: Callable[..., object] | None = None,
        is_on: bool = True,
    ) -> Callable[[bool], None]:
        """Wraps a method as described in `Wrap`. The class of an object is unchanged."""
        original = getattr(owner, name)
        stored = vars(owner)[name] if isinstance(owner, type) else original

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self.active:
                try:
                    args = before(*args, **kwargs) or args
                except Exception as error:  # noqa: BLE001 - no error may stop the engine
                    self._fail(error)
            result = original(*args, **kwargs)
            if after is not None and self.active:
                try:
                    after(result, *args, **kwargs)
                except Exception as error:  # noqa: BLE001
                    self._fail(error)
            return result

        # Another plugin may have wrapped the method before. `vars(owner)` would tell, but CPython
        # then stores the attributes of `owner` in a dictionary, which is slower to read.
        is_own = isinstance(owner, type) or getattr(original, "__func__", None) is not getattr(
            type(owner), name, None
        )

        def switch(on: bool) -> None:
            if on:
                if self.active:
                    setattr(owner, name, wrapper)
            elif is_own:
                setattr(owner, name, stored)
            elif getattr(owner, name) is wrapper:
                delattr(owner, name)

        self._switches.append(switch)
        switch(is_on)
        return switch

    def undo(self) -> None:
        """Restores every method."""
        self.active = False
        while self._switches:
            self._switches.pop()(False)

    def _fail(self, error: Exception) -> None:
        # This runs inside the engine's step, so not even the report of an error may raise.
        with contextlib.suppress(Exception):
            self.undo()
            self._failed(error)
