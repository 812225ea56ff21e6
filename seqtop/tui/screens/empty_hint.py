"""A hint in place of the rows of an empty table."""

import json

from seqtop.state import not_available
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.wrapped_text import centred
from seqtop.tui.ui_state import UiState

_NO_ENGINE = {ConnectionState.STOPPED, ConnectionState.INCOMPATIBLE, ConnectionState.REFUSED}


class EmptyHint(LineView):
    """The reason why a table has no rows, shown in their place.

    Args:
        ui: The display.
        filter_keys: The keys that clear and edit the filter, in a sentence.
    """

    def __init__(self, ui: UiState, filter_keys: str) -> None:
        super().__init__(id="hint")
        self._ui = ui
        self._filter_keys = filter_keys

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        text = hint(self._ui, self._filter_keys)
        self.display = bool(text)
        width = self.size.width
        if not (text and width):  # without a width before the first layout
            return
        self.set_lines(centred(text, width, self.size.height))

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()


def hint(ui: UiState, filter_keys: str) -> str:
    """Returns the reason for an empty table; an empty text if the table has rows."""
    if len(ui.view):
        return ""
    if ui.state.sequences:
        return f"No sequence matches {safe_line(ui.view.filter.source)}\n{filter_keys}"
    info = ui.state.info
    connection = ui.source.connection
    if connection.state is ConnectionState.CONNECTING:
        if connection.detail:  # the line below the header has it
            return "The sequences appear here as soon as the engine runs."
        endpoint = safe_line(connection.endpoint)
        return (
            f"No message from {endpoint} yet.\n"
            "The engine appears here as soon as it publishes; `seqtop demo` starts a demo engine."
        )
    if info is None and connection.state in _NO_ENGINE:
        return f"There is no engine to show.\n{safe_line(connection.detail)}"
    if ui.time_travel.has_position:
        return "No sequence had arrived yet at this moment."
    if connection.state is not ConnectionState.LIVE or info is None:
        return ""
    if reason := info.not_available.get(not_available.REQUESTS):
        return f"The sequences of this engine cannot be shown.\n{safe_line(reason)}"
    if info.control:
        return "No sequences yet.\nPress n to submit a prompt and watch it run."
    return (
        "No sequences yet.\nSend the engine a request: it appears here as soon as it arrives."
        " With an OpenAI-compatible API, for example:\n"
        "curl http://HOST:PORT/v1/completions -H 'Content-Type: application/json'"
        f" -d '{_example(info.model)}'"
    )


def _example(model: str) -> str:
    """Returns a request of the completions API in JSON, which a shell takes between quotes."""
    request = {"model": safe_line(model), "prompt": "Once upon a time", "max_tokens": 64}
    return json.dumps(request).replace("'", "\\u0027")
