"""The text of one sequence: its prompt and its output, with the newest part highlighted."""

from seqtop.sequence import SequenceStatus
from seqtop.state import SequenceState
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.sequences.pane import ScrollablePane
from seqtop.tui.screens.sequences.token_marks import TokenMarks
from seqtop.tui.screens.sequences.transcript import Transcript
from seqtop.tui.ui_state import UiState

MAX_CHARACTERS = 200_000
"""The characters shown of a prompt and of an output: the end of longer ones."""


class TextPane(ScrollablePane):
    """The text of the selected sequence. Scrolls with new text while the end is visible."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="text", title="Text")
        self._transcript = Transcript()
        self._sequence_shown: int | None = None
        self._follows = True

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        selection = self._ui.selection
        if selection is None or not self.outer_size:
            self.set_lines(())
            return
        request, sequence = selection
        prompt = request.prompt or ""
        if not prompt and not sequence.text:
            self.set_lines([self._empty_line()])
            return
        running = sequence.status == SequenceStatus.RUNNING
        if sequence.seq_id != self._sequence_shown:
            self._transcript = Transcript()
        self._transcript.update(
            prompt[-MAX_CHARACTERS:],
            sequence.text[-MAX_CHARACTERS:],
            sequence.last_delta_length if running else 0,
            self.text_width,
            self._marks(sequence),
        )
        self.set_lines(self._transcript.lines)
        if sequence.seq_id != self._sequence_shown:
            self._sequence_shown = sequence.seq_id
            self._follows = True
        if self._follows:
            # By force: the scroll bar of a text that has just grown too long is not there yet.
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)

    def _marks(self, sequence: SequenceState) -> TokenMarks | None:
        """Returns the marks of the tokens; `None` if the beginning of the text is cut off."""
        marking = self._ui.preferences.marking
        if marking == "plain" or len(sequence.text) > MAX_CHARACTERS:
            return None
        return TokenMarks(marking, sequence.text_lengths, sequence.output_logprobs)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._follows = new_value >= self.max_scroll_y

    def _empty_line(self) -> Line:
        info = self._ui.state.info
        if info is not None and info.redacted:
            return (("Redacted: this engine does not publish its texts.", "dim"),)
        return (("No text yet.", "dim"),)
