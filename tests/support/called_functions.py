"""A plugin of pytest that notes which functions of a folder each test calls.

    pytest -p tests.support.called_functions --called-in FOLDER --called-file FILE

writes a JSON object of test ids, each with its seconds and the functions that its call entered, as
`path:first line`. What fixtures call is under the empty id: a fixture may be shared by tests.
"""

import json
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest


class _Calls:
    """The functions that were entered, by test."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder = str(folder.resolve())
        self._file = file
        self._by_test: dict[str, set[CodeType]] = defaultdict(set)
        self._seconds: dict[str, float] = {}
        self._entered = self._by_test[""]
        sys.setprofile(self._note)
        threading.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._entered.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        self._entered = self._by_test[item.nodeid]
        begun = time.perf_counter()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.perf_counter() - begun
            self._entered = self._by_test[""]

    def pytest_sessionfinish(self) -> None:
        sys.setprofile(None)
        document = {
            test: {
                "seconds": self._seconds.get(test, 0.0),
                "functions": sorted(
                    f"{code.co_filename}:{code.co_firstlineno}"
                    for code in entered
                    if code.co_filename.startswith(self._folder)
                ),
            }
            for test, entered in self._by_test.items()
        }
        self._file.write_text(json.dumps(document), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--called-in", type=Path, default=Path())
    parser.addoption("--called-file", type=Path, default=Path("called.json"))


def pytest_configure(config: pytest.Config) -> None:
    calls = _Calls(config.getoption("--called-in"), config.getoption("--called-file"))
    config.pluginmanager.register(calls)
