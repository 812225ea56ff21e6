"""What one thread changes and another looks at now and then."""

from collections.abc import Callable


class Observable:
    """Says how often it has changed, and calls somebody once when it does again."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change; cheap to ask for, from any thread."""
        self._call: Callable[[], object] | None = None

    def call_once(self, call: Callable[[], object]) -> None:
        """Have `call`, and nobody who asked before, called at the next change, once.

        It is called on whichever thread makes the change, maybe under a lock: it is to be quick,
        and never to raise. Who then finds that `version` has grown already need not wait for it.
        """
        self._call = call

    def changed(self) -> None:
        """Take note of a change."""
        # In this order: who asks to be called in between sees that the version has grown.
        self.version += 1
        self.passed()

    def passed(self) -> None:
        """Call whoever waits, although nothing has changed but the time."""
        call, self._call = self._call, None
        if call is not None:
            call()
