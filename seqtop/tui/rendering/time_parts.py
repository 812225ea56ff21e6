"""The signs and the names of the parts of the time, the same on all screens."""

from seqtop.tui.rendering.style import PLAIN, StyledText

TIME_SIGNS: dict[str, StyledText] = {
    "scheduler": ("▒", "waiting"),
    "forward": ("█", "running"),
    "execute": ("▓", "computed"),
    "rest": ("░", "cached"),
    "host": ("·", "preempted"),
    "idle": (" ", PLAIN),
}
"""The sign of each of `seqtop.state.step_summary.TIME_PARTS`."""
_PART_NAMES = {"rest": "rest of the step", "host": "host between steps"}


def part_name(part: str, *, has_forward: bool) -> str:
    """Returns the name of a part of the time.

    Args:
        part: One of `seqtop.state.step_summary.TIME_PARTS`.
        has_forward: Whether the engine reports the time of the forward pass apart.
    """
    if part == "execute" and has_forward:
        return "execute without forward"
    return _PART_NAMES.get(part, part)
