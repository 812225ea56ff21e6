"""Two themes in the colour-blind safe palette of Okabe and Ito.

The dark theme lightens the hues and the light one darkens them, for contrast with the background.
Any other Textual theme works too, with the styles of the dark or of the light theme.
"""

from dataclasses import replace
from typing import Any

from textual.app import App
from textual.theme import Theme

DARK_STYLES = {
    "style-dim": "#909ba9",
    "style-track": "#3d4855",
    "style-strong": "#f2f5f8",
    "style-title": "#ffffff",
    "style-delta": "#f0e442",
    "style-computed": "#56b4e9",
    "style-cached": "#d78fb8",
    "style-running": "#35c49b",
    "style-prefill": "#56b4e9",
    "style-waiting": "#e69f00",
    "style-preempted": "#f08650",
    "style-running-low": "#1c7d64",
    "style-running-mid": "#28a17f",
    "style-prefill-low": "#2f6d97",
    "style-prefill-mid": "#4390bf",
    "style-waiting-low": "#a5761a",
    "style-swapped": "#d78fb8",
    "style-finished": "#909ba9",
    "style-unheld": "#1f2832",
    "style-unheld-cached": "#2b232d",
    "style-owner-0-fill": "#1d4e45",
    "style-owner-1-fill": "#27495e",
    "style-owner-2-fill": "#554213",
    "style-owner-3-fill": "#503d4e",
    "style-owner-4-fill": "#583a2d",
    "style-owner-5-fill": "#585828",
    "style-owner-6": "#9d9bf5",
    "style-owner-6-fill": "#3e4161",
    "style-owner-7": "#b9c4cf",
    "style-owner-7-fill": "#474e55",
    "style-cursor": "#213446",
    "style-field": "#252c34",
    "style-header": "#1a222c",
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
_LIGHT_STYLES = {
    "style-dim": "#5b6672",
    "style-track": "#c3cad1",
    "style-strong": "#0e141a",
    "style-title": "#000000",
    "style-delta": "#0a55c4",
    "style-computed": "#0067a2",
    "style-cached": "#9c3f74",
    "style-running": "#00735a",
    "style-prefill": "#0069a8",
    "style-waiting": "#8a5a00",
    "style-preempted": "#ad4400",
    "style-running-low": "#4fa58f",
    "style-running-mid": "#2a8a72",
    "style-prefill-low": "#5d9fc9",
    "style-prefill-mid": "#3083b8",
    "style-waiting-low": "#b38a3a",
    "style-swapped": "#9c3f74",
    "style-finished": "#5b6672",
    "style-unheld": "#e3e8ec",
    "style-unheld-cached": "#f4e8f0",
    "style-owner-0-fill": "#b5ddd2",
    "style-owner-1-fill": "#b3d9f2",
    "style-owner-2-fill": "#ecdca6",
    "style-owner-3-fill": "#ecc8e0",
    "style-owner-4-fill": "#f6c4ae",
    "style-owner-5-fill": "#acc2f6",
    "style-owner-6": "#6a35a8",
    "style-owner-6-fill": "#d0c2f7",
    "style-owner-7": "#4a5560",
    "style-owner-7-fill": "#c6cbd1",
    "style-cursor": "#d5e6f4",
    "style-field": "#dee1e5",
    "style-header": "#e4e9ee",
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
_DARK_STYLES_OF_16 = DARK_STYLES | {
    "style-cursor": "#0000aa",
    "style-field": "#0000aa",
    "block-cursor-background": "#0000aa",
    "block-cursor-foreground": "#ffffff",
    "style-dim": "#aaaaaa",
    "style-finished": "#aaaaaa",
    "style-delta": "#ffffff",
    "style-computed": "#55ffff",
    "style-cached": "#ff55ff",
    "style-running": "#55ff55",
    "style-prefill": "#55ffff",
    "style-waiting": "#ffff55",
    "style-preempted": "#ff5555",
    "style-swapped": "#ff55ff",
    "style-running-low": "#55ff55",
    "style-running-mid": "#55ff55",
    "style-prefill-low": "#55ffff",
    "style-prefill-mid": "#55ffff",
    "style-waiting-low": "#ffff55",
    "style-owner-0-text": "#000000",
    "style-owner-1-text": "#000000",
    "style-owner-0-fill": "#00aa00",
    "style-owner-1-fill": "#00aaaa",
    "style-owner-2-fill": "#aa5500",
    "style-owner-3-fill": "#aa00aa",
    "style-owner-4-fill": "#aa0000",
    "style-owner-5-fill": "#ffff55",
    "style-owner-2": "#aa5500",
    "style-owner-5": "#ffff55",
    "style-owner-5-text": "#000000",
    "style-owner-6": "#5555ff",
    "style-owner-6-fill": "#5555ff",
    "style-owner-7-fill": "#555555",
}
_LIGHT_STYLES_OF_16 = _LIGHT_STYLES | {
    "style-cursor": "#ffff55",
    "style-field": "#aaaaaa",
    "stale-opacity": "100%",  # a mixed colour would be shown as another hue
    "style-delta": "#5555ff",
    "style-computed": "#0000aa",
    "style-cached": "#aa00aa",
    "style-running": "#00aa00",
    "style-prefill": "#0000aa",
    "style-waiting": "#aa5500",
    "style-preempted": "#aa0000",
    "style-swapped": "#aa00aa",
    "style-running-low": "#00aa00",
    "style-running-mid": "#00aa00",
    "style-prefill-low": "#0000aa",
    "style-prefill-mid": "#0000aa",
    "style-waiting-low": "#aa5500",
    "style-owner-0-fill": "#55ff55",
    "style-owner-1-fill": "#55ffff",
    "style-owner-2-fill": "#aa5500",
    "style-owner-3-fill": "#ff55ff",
    "style-owner-4-fill": "#ff5555",
    "style-owner-5-fill": "#5555ff",
    "style-owner-6": "#00aaaa",
    "style-owner-6-fill": "#00aaaa",
    "style-owner-7-fill": "#aaaaaa",
    "footer-key-foreground": "#0000aa",
    "block-cursor-background": "#ffff55",
    "block-cursor-foreground": "#000000",
}
_DARK_STYLES_OF_256 = DARK_STYLES | {
    "style-dim": "#a3a3a3",
    "style-finished": "#a3a3a3",
    "style-unheld": "#1c1c1c",
    "style-unheld-cached": "#303030",
    "style-owner-0-fill": "#005f00",
    "style-owner-1-fill": "#005f87",
    "style-owner-2-fill": "#875f00",
    "style-owner-3-fill": "#5f005f",
    "style-owner-4-fill": "#870000",
    "style-owner-5-fill": "#5f5f00",
    "style-owner-6-fill": "#5f5faf",
    "style-owner-7-fill": "#4e4e4e",
    "style-cursor": "#303030",
    "style-header": "#1c1c1c",
    "footer-background": "#1c1c1c",
    "border-blurred": "#303030",
    "scrollbar": "#444444",
    "scrollbar-hover": "#626262",
}
_LIGHT_STYLES_OF_256 = _LIGHT_STYLES | {
    "style-dim": "#585858",
    "style-finished": "#585858",
    "style-delta": "#0000af",
    "style-computed": "#005faf",
    "style-cached": "#87005f",
    "style-running": "#005f00",
    "style-prefill": "#005faf",
    "style-waiting": "#5f5f00",
    "style-preempted": "#af0000",
    "style-swapped": "#87005f",
    "style-unheld": "#e9e9e9",
    "style-unheld-cached": "#ffd7ff",
    "style-owner-0-fill": "#afd7af",
    "style-owner-1-fill": "#afd7ff",
    "style-owner-2-fill": "#ffd787",
    "style-owner-3-fill": "#ffafd7",
    "style-owner-4-fill": "#ffaf87",
    "style-owner-5-fill": "#afafff",
    "style-owner-6-fill": "#d7afff",
    "style-owner-7-fill": "#c6c6c6",
    "style-cursor": "#d7d7ff",
    "style-header": "#e9e9e9",
    "footer-background": "#e9e9e9",
}

_DARK_STYLES_WITHOUT_COLOUR = DARK_STYLES | {
    "style-waiting": "#f2f5f8",
    "style-preempted": "#f2f5f8",
    "style-running-low": "#35c49b",
    "style-running-mid": "#35c49b",
    "style-prefill-low": "#56b4e9",
    "style-prefill-mid": "#56b4e9",
    "style-waiting-low": "#f2f5f8",
    "style-badge-live": "#7d8794",
    **{f"style-owner-{number}": "#b9c4cf" for number in range(8)},
    **{f"style-owner-{number}-fill": "#474e55" for number in range(8)},
}
_LIGHT_STYLES_WITHOUT_COLOUR = _LIGHT_STYLES | {
    "style-waiting": "#0e141a",
    "style-preempted": "#0e141a",
    "style-running-low": "#00735a",
    "style-running-mid": "#00735a",
    "style-prefill-low": "#0069a8",
    "style-prefill-mid": "#0069a8",
    "style-waiting-low": "#0e141a",
    "style-badge-live": "#6e7883",
    **{f"style-owner-{number}": "#4a5560" for number in range(8)},
    **{f"style-owner-{number}-fill": "#d1d4d7" for number in range(8)},
}


def complete(styles: dict[str, str]) -> dict[str, str]:
    """Adds the styles of owners, and of the badge, that have the colours of other styles."""
    roles = ("running", "computed", "waiting", "cached", "preempted", "delta")
    owners = {f"style-owner-{number}": styles[f"style-{role}"] for number, role in enumerate(roles)}
    texts = {f"style-owner-{number}-text": styles["style-strong"] for number in range(8)}
    return {"style-badge-live": styles["style-running"]} | owners | texts | styles


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
    variables=complete(DARK_STYLES),
)
LIGHT = Theme(
    name="seqtop-light",
    primary="#0072b2",
    secondary="#56b4e9",
    accent="#8a5a00",
    success="#00735a",
    warning="#8a5a00",
    error="#ad4400",
    foreground="#222b35",
    background="#f7f8f9",
    surface="#eef1f4",
    panel="#e4e9ee",
    dark=False,
    variables=complete(_LIGHT_STYLES),
)


def for_terminal(theme: Theme, color_system: str | None) -> Theme:
    """Returns one of the two themes for a terminal, in colours that it has, if these are few.

    A terminal shows the nearest of its colours, of which several owners of blocks had one, and the
    row of the cursor one on which texts are illegible. These are converted as meant. Without
    colours, different greys would only mislead, and alerts would be fainter than other texts.

    Args:
        theme: The theme.
        color_system: The colours of the terminal, as rich names them, or "none" if the user wants
            none.
    """
    dark = theme.dark
    match color_system:
        case "standard":
            found = _DARK_STYLES_OF_16 if dark else _LIGHT_STYLES_OF_16
            primary = theme.primary if dark else "#0000aa"
            return replace(theme, variables=complete(found), primary=primary)
        case "256":
            found = _DARK_STYLES_OF_256 if dark else _LIGHT_STYLES_OF_256
            foreground = theme.foreground if dark else "#262626"
            return replace(theme, variables=complete(found), foreground=foreground)
        case "none":
            found = _DARK_STYLES_WITHOUT_COLOUR if dark else _LIGHT_STYLES_WITHOUT_COLOUR
            return replace(theme, variables=complete(found))
    return theme


def begin_with(app: App[Any], name: str) -> None:
    """Sets the first theme of an app that does not run yet."""
    if name == DARK.name:
        # Setting the attribute would parse all style sheets again. This theme is dark, as Textual's
        # default is, so only colours differ.
        app.set_reactive(App.theme, name)
        app.stylesheet.set_variables(app.get_css_variables())
    else:
        app.theme = name


def styles(*, dark: bool) -> dict[str, str]:
    """Returns the variables that every theme has, for a dark or a light background."""
    source = complete(DARK_STYLES if dark else _LIGHT_STYLES)
    colours = {name: text for name, text in source.items() if name.startswith(("style-", "badge-"))}
    return {"stale-opacity": "75%", **colours}
