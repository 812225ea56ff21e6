"""The list of the app's screens."""

import importlib
import pkgutil

from seqtop.tui import screens


def test_every_folder_with_a_screen_is_a_tab() -> None:
    """A folder without one has no key and no tab, and no test of all screens would miss it."""
    folders = [each.name for each in pkgutil.iter_modules(screens.__path__) if each.ispkg]
    packages = [importlib.import_module(f"{screens.__name__}.{folder}") for folder in folders]
    declared = {package.TAB for package in packages if hasattr(package, "TAB")}
    assert declared == {*screens.TABS, screens.FLEET}
    without = [package.__name__ for package in packages if not hasattr(package, "TAB")]
    assert without == [f"{screens.__name__}.kv"]  # an app of its own
