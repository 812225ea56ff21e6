"""The cursor of all screens that show sequences."""

from dataclasses import dataclass


@dataclass
class SequenceCursor:
    """The selected sequence, and how it was selected."""

    seq_id: int | None = None
    """Id of the sequence under the cursor."""
    hidden: int | None = None
    """Id of the sequence that the user selected and the filter hides.

    It is selected again when it is shown, unless the user has selected another one."""
    set_by_user: bool = False
    """True if the user has put the cursor there."""
    is_followed: bool = False
    """True if the table scrolls along when the selected row moves."""
    pending: str | None = None
    """Id of the request to select when it appears, such as the one just submitted."""
    scroll_target: int | None = None
    """Id of the sequence that `pending` selected: its row stays visible while it waits."""

    def set(self, seq_id: int | None) -> None:
        """Puts the cursor on a sequence, for the user."""
        self.seq_id, self.set_by_user, self.hidden = seq_id, True, None
