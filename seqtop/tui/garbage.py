"""Has Python look for cyclic garbage when nobody waits for a frame.

A full collection looks at every object there is: 70 ms with 10,000 sequences on one core, 600 ms
with 100,000, in the middle of whatever frame happens to make the next object. Little is ever found:
states are trees, and what the drawing of a frame leaves behind is young. So young garbage is
collected as always, and the old while nothing is drawn.
"""

import gc
import time
from collections.abc import Callable

CALM = 2.0
"""Seconds without a frame, after which it is time."""
SELDOM = 600.0
"""Seconds after which it is time even if frames are drawn without a pause."""
_SHARE = 1_000
"""A collection takes no more than this part of the time."""
_WORTH = 10
"""Collections of young objects between two full ones, at least; Python's own number."""
_NEVER = 2**31 - 1


class Collector:
    """Collects from `start` to `stop`, when told that there is time. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_collections = 0
        self._clock = clock
        self._threshold = gc.get_threshold()
        self._drew = self._collected = clock()
        self._took = 0.0

    def start(self) -> None:
        self.settle()
        self._threshold = gc.get_threshold()
        gc.set_threshold(*self._threshold[:2], _NEVER)
        gc.enable()

    def settle(self) -> None:
        """What has been loaded by now stays, and is not looked at again."""
        gc.freeze()

    def stop(self) -> None:
        """Leave it to Python again."""
        gc.set_threshold(*self._threshold)
        gc.unfreeze()

    def drew(self) -> None:
        """A frame has been drawn."""
        self._drew = self._clock()
        if self._drew - self._collected > max(SELDOM, self._took * _SHARE):
            self._collect()

    def rest(self) -> None:
        """There is nothing to draw just now."""
        now = self._clock()
        if now - self._drew < CALM or gc.get_count()[2] < _WORTH:
            return
        if now - self._collected > self._took * _SHARE:
            self._collect()

    def _collect(self) -> None:
        begin = self._clock()
        gc.collect()
        self._collected = self._clock()
        self._took = self._collected - begin
        self.num_collections += 1
