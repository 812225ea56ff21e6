"""Groups of keys, as the help lists them: the first part of a binding's id names its group.

(Textual's own binding groups would fold the keys of a group into one entry of the footer.)
"""

from textual.binding import Binding

GROUPS = {
    "screen": "Screens",
    "move": "Move",
    "look": "Look",
    "time": "Go through time",
    "find": "Sort and find",
    "engine": "Engine",
    "app": "seqtop",
}


def group_of(binding: Binding) -> str:
    """The title of the group that a binding belongs to."""
    return GROUPS.get((binding.id or "").partition(".")[0], GROUPS["app"])
