"""Files that share a moment: a recording of what has been seen, a picture and a text."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import NamedTuple

from seqtop.history.copying import save
from seqtop.history.file_store import FileStore
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.process import files
from seqtop.state.condition import kv_use
from seqtop.state.status_sentence import status_sentence
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.ui_state import UiState


class Moment(NamedTuple):
    """A description of the moment on display, and the arguments that open it again."""

    lines: tuple[str, ...]
    """The engine, its figures, and the selected sequence in words."""
    arguments: tuple[str, ...]
    """The arguments that open a recording at this moment and select the same request."""


class Shared(NamedTuple):
    """The files that were written."""

    recording: str
    """The path of the recording; in a replay that of the recording on display."""
    card: Path
    """The path of the text; that of the picture differs in its suffix."""
    command: str
    """The command that opens the recording at the moment."""


def moment_of(ui: UiState) -> Moment:
    """Returns what is shared about the moment on display. Called under the lock of `ui`."""
    state = ui.state
    lines: list[str] = []
    arguments: list[str] = []
    if (info := state.info) is not None:
        lines.append(f"{info.engine_id}: {info.model}, {info.engine}, {info.device}")
    if state.step >= 0:
        arguments += ["--at", str(state.step)]
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(state.time))
        lines.append(f"step {fmt.count(state.step)}, {clock}")
    if info is not None and (stats := state.stats) is not None:
        running = fmt.plural(stats.num_running or 0, "running sequence")
        waiting = fmt.plural(stats.num_waiting or 0, "waiting request")
        use = fmt.percent(kv_use(stats, info))
        blocks = fmt.plural(info.num_gpu_blocks, "KV block")
        lines.append(f"{running}, {waiting}, {use} of {blocks} in use")
    if (selection := ui.selection) is not None:
        request, sequence = selection
        arguments += ["--select", request.request_id]
        lines.append(f"{request.request_id}: {status_sentence(state, ui.view, sequence)}")
    return Moment(tuple(map(safe_line, lines)), tuple(arguments))


def share(moment: Moment, history: Timeline, picture: str, folder: Path) -> Shared:
    """Writes the files, which only their owner may read; waits for the disk.

    Args:
        moment: What is shared.
        history: The recorded time; a recording on disk is not written again.
        picture: The screen as SVG.
        folder: The folder of the files, which are named by the time.

    Raises:
        RecordingError: A file cannot be written.
    """
    card = folder / time.strftime("seqtop-%Y%m%d-%H%M%S.txt")
    if isinstance(history, FileStore):
        recording = str(history.path)
    else:
        recording = str(save(history, card.with_suffix(".seqtop")).path.name)
    command = shlex.join(["seqtop", recording, *moment.arguments])
    text = "\n".join([*moment.lines, "", command, ""])
    try:
        for path, content in ((card, text), (card.with_suffix(".svg"), picture)):
            with files.writing(path, overwrite=False) as file:
                file.write(content.encode(errors="replace"))
    except OSError as error:
        raise RecordingError(f"{card.name} cannot be written: {error.strerror or error}") from error
    return Shared(recording, card, command)
