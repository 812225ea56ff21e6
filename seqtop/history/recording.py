"""The public API for programs that read recordings (`docs/api.md`)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqtop.history.file_store import FileStore
from seqtop.history.replay import Reader, Replay
from seqtop.history.segments import Gap
from seqtop.state import EngineState
from seqtop.wire.messages import Event, Step


class Recording:
    """A recording, open until `close`; a context manager closes it. Iterating yields its steps.

    It is read from the file while it is iterated, so that it may be larger than the memory. Each
    iteration begins at its start.

    Args:
        path: The file.

    Raises:
        RecordingError: The file is not a recording of this version, or nothing in it can be read.
            All methods raise it at a part that cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = FileStore(path)
        try:
            self._store.require()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._store.path

    @property
    def damage(self) -> str | None:
        """One sentence on what a damaged file has lost; `None` if it is complete."""
        return self._store.damage

    @property
    def gaps(self) -> Sequence[Gap]:
        """The gaps, where messages are missing or the engine was started again."""
        return tuple(self._store.gaps)

    def __iter__(self) -> Iterator[Step]:
        """Yields the steps in order."""
        return (event for event in self.events() if isinstance(event, Step))

    def events(self) -> Iterator[Event | Gap]:
        """Yields all messages in order, and each gap where it is.

        What was before the first message is only in `states`.
        """
        return (item for item, _ in self._walk(needs_state=False))

    def states(self) -> Iterator[tuple[Step, EngineState]]:
        """Yields each step with the state after it.

        The next step changes the state: copy what you need for longer, and do not change it.
        """
        return ((item, own) for item, own in self._walk() if isinstance(item, Step))

    def _walk(self, *, needs_state: bool = True) -> Iterator[tuple[Event | Gap, EngineState]]:
        """Yields each message and gap, with the state after it if that is needed."""
        latest = _Latest(self.gaps, needs_state=needs_state)
        replay = Replay(self._store, [latest])
        while replay.is_behind:
            replay.read()
            item, latest.item = latest.item, None
            if item is not None:
                yield item, latest.state

    def close(self) -> None:
        """Closes the file; nothing can be read afterwards."""
        self._store.close()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Latest(Reader):
    """The last message or gap that was read, and the state after it."""

    def __init__(self, gaps: Sequence[Gap], *, needs_state: bool) -> None:
        self.needs_state = self.needs_candidates = needs_state
        self.item: Event | Gap | None = None
        self.state = EngineState()
        self._gaps = {gap.position: gap for gap in gaps}

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after a gap."""
        self.item, self.state = self._gaps.get(position), state

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the next message."""
        self.item = event
