"""The commands of the palette (Ctrl+P)."""

from textual.command import DiscoveryHit, Hits
from textual.system_commands import SystemCommandsProvider


class PaletteCommands(SystemCommandsProvider):
    """The app's commands, in the app's order until something is typed.

    Textual's own class lists them alphabetically, which puts what is seldom wanted first.
    """

    async def discover(self) -> Hits:
        for title, about, callback, is_listed in self.app.get_system_commands(self.screen):
            if is_listed:
                yield DiscoveryHit(title, callback, help=about)
