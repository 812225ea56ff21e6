"""Folding of the trees of a request's sequences, and of groups of requests."""

from seqtop.tui.ui_state import UiState


def toggle_tree(ui: UiState) -> None:
    """Switches between sequences grouped by request and single sequences."""
    ui.view.tree = not ui.view.tree
    ui.view.rebuild(ui.state)


def group_by(ui: UiState, key: str) -> None:
    """Groups the rows by a key, all groups folded; an empty key ends that."""
    ui.view.grouped.group_by(ui.state, key)
    ui.view.folded.clear()  # a group counts the sequences of its trees
    ui.view.rebuild(ui.state)


def fold(ui: UiState) -> bool:
    """Folds or unfolds the sequences below the selected one, or the tree or group that it is in.

    Returns:
        True if there is anything to fold.
    """
    if ui.cursor.seq_id is None:
        return False
    if ui.view.grouped.by:
        row = ui.view.grouped.toggle(ui.cursor.seq_id)
        ui.cursor.seq_id = ui.cursor.seq_id if row is None else row
        return row is not None
    place = ui.view.tree_position(ui.cursor.seq_id)
    if not place.is_parent:
        if place.parent is None:
            return False
        ui.cursor.seq_id = place.parent
    ui.view.folded ^= {ui.cursor.seq_id}
    ui.view.update(ui.state, [ui.cursor.seq_id])
    return True


def fold_all(ui: UiState) -> None:
    """Folds every tree or group, or unfolds all: trees if any is folded, groups if all are."""
    if ui.view.grouped.by:
        ui.view.grouped.toggle_all()
        return
    while (
        ui.cursor.seq_id is not None
        and (parent := ui.view.tree_position(ui.cursor.seq_id).parent) is not None
    ):
        ui.cursor.seq_id = parent
    ui.view.fold_all()
    ui.view.rebuild(ui.state)
