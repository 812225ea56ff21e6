"""The list of the app's screens."""

import importlib
import pkgutil

from seqtop.tui import screens


def test_every_folder_with_a_screen_is_a_tab() -> None:
    """A folder without one has no key and no tab, and no test of all screens would miss it."""
    modules = pkgutil.iter_modules(screens.__path__)
    names = [f"{screens.__name__}.{module.name}" for module in modules if module.ispkg]
    assert {importlib.import_module(name).TAB for name in names} == {*screens.TABS, screens.FLEET}
