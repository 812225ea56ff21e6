"""Two themes in the colour-blind safe palette of Okabe and Ito.

The dark theme lightens the hues and the light one darkens them, for contrast with the background.
Any other Textual theme works too: it gets the styles of the dark or of the light theme.
"""

from typing import Any

from textual.app import App
from textual.theme import Theme

_DARK_INKS = {
    "ink-dim": "#8792a0",
    "ink-track": "#3d4855",
    "ink-strong": "#f2f5f8",
    "ink-title": "#ffffff",
    "ink-delta": "#f0e442",
    "ink-computed": "#56b4e9",
    "ink-cached": "#d78fb8",
    "ink-running": "#35c49b",
    "ink-prefill": "#56b4e9",
    "ink-waiting": "#e69f00",
    "ink-preempted": "#f08650",
    "ink-swapped": "#d78fb8",
    "ink-finished": "#8792a0",
    "ink-cursor": "#24374a",
    "ink-header": "#1a222c",
    "badge-text": "#0b0f14",
    "footer-key-foreground": "#56b4e9",
    "footer-description-foreground": "#a9b3bf",
    "footer-background": "#1a222c",
    "border": "#3d4855",
    "border-blurred": "#2a333e",
    "scrollbar": "#2f3945",
    "scrollbar-hover": "#4a5867",
    "scrollbar-active": "#56b4e9",
    "scrollbar-background": "#11161c",
    "scrollbar-background-hover": "#11161c",
    "scrollbar-background-active": "#11161c",
    "scrollbar-corner-color": "#11161c",
}
_LIGHT_INKS = {
    "ink-dim": "#5b6672",
    "ink-track": "#c3cad1",
    "ink-strong": "#0e141a",
    "ink-title": "#000000",
    "ink-delta": "#0a55c4",
    "ink-computed": "#0072b2",
    "ink-cached": "#9c3f74",
    "ink-running": "#00735a",
    "ink-prefill": "#0069a8",
    "ink-waiting": "#8a5a00",
    "ink-preempted": "#b24700",
    "ink-swapped": "#9c3f74",
    "ink-finished": "#5b6672",
    "ink-cursor": "#cfe3f3",
    "ink-header": "#e4e9ee",
    "badge-text": "#ffffff",
    "footer-key-foreground": "#0069a8",
    "footer-description-foreground": "#3d4752",
    "footer-background": "#e4e9ee",
    "border": "#aab4be",
    "border-blurred": "#c3cad1",
    "scrollbar": "#c3cad1",
    "scrollbar-hover": "#9aa5b0",
    "scrollbar-active": "#0072b2",
    "scrollbar-background": "#f7f8f9",
    "scrollbar-background-hover": "#f7f8f9",
    "scrollbar-background-active": "#f7f8f9",
    "scrollbar-corner-color": "#f7f8f9",
}

DARK = Theme(
    name="seqtop-dark",
    primary="#56b4e9",
    secondary="#0072b2",
    accent="#f0e442",
    success="#35c49b",
    warning="#e69f00",
    error="#f08650",
    foreground="#d3dae2",
    background="#11161c",
    surface="#161d25",
    panel="#1a222c",
    dark=True,
    variables=_DARK_INKS,
)
LIGHT = Theme(
    name="seqtop-light",
    primary="#0072b2",
    secondary="#56b4e9",
    accent="#8a5a00",
    success="#00735a",
    warning="#8a5a00",
    error="#b24700",
    foreground="#222b35",
    background="#f7f8f9",
    surface="#eef1f4",
    panel="#e4e9ee",
    dark=False,
    variables=_LIGHT_INKS,
)


def begin_with(app: App[Any], name: str) -> None:
    """Sets the first theme of `app`, before it runs."""
    if name == DARK.name:
        # Setting the attribute would parse all style sheets again. Only the colours change, as this
        # theme is as dark as Textual's default.
        app.set_reactive(App.theme, name)
        app.stylesheet.set_variables(app.get_css_variables())
    else:
        app.theme = name


def inks(*, dark: bool) -> dict[str, str]:
    """Returns the colours of the styles on a dark or a light background."""
    source = _DARK_INKS if dark else _LIGHT_INKS
    return {name: colour for name, colour in source.items() if name.startswith(("ink-", "badge-"))}
