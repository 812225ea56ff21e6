import contextlib
import gc
import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import settings

# Before they are imported: so that a failed assertion of a helper shows what was compared.
pytest.register_assert_rewrite("tests.support")
# Before `seqtop` notes it as the default. With Python's own, collections are a quarter of the time:
# full ones traverse the million objects of imported modules, which are no garbage.
gc.set_threshold(10_000, 10, 40)

from seqtop.history import segments
from tests.support import settling
from tests.support.broken_recordings import RIGHT, record
from tests.support.forked import end_servers, start
from tests.support.recordings import record_script
from tests.support.snapshots import Snapshots, path_of
from tests.support.style_sheets import parse_once
from tests.support.waiting import SECONDS

# The same examples each time, and no clock: a failure is a change's, not the day's. To search
# further: pytest --hypothesis-profile explore
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.register_profile("explore", max_examples=2_000, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update",
        "--update-snapshots",
        action="store_true",
        help="store what screens show as snapshots, and the golden data of tests/golden",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that compare with a snapshot."""
    for item in items:
        if "snap_compare" in getattr(item, "fixturenames", ()):
            item.add_marker("snapshot")


def pytest_collection_finish() -> None:
    """Leaves out of later collections what is imported: they took a tenth of an app's start."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Leaves pytest little to traverse: it collects garbage five times before it ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def snap_compare(request: pytest.FixtureRequest) -> Snapshots:
    """Compares a screen with the test's snapshot; with `--update-snapshots` it is stored."""
    update = request.config.getoption("--update")
    return Snapshots(path_of(request.node), update=update)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """An IPC endpoint of the test's own; short, since socket paths are limited to 107 bytes."""
    with TemporaryDirectory(prefix="sq") as directory:
        yield f"ipc://{Path(directory, 'e')}"


@pytest.fixture
def endpoints() -> Iterator[tuple[str, str]]:
    """The endpoints of a publisher of KV-cache events: of its stream, and of its replay."""
    with TemporaryDirectory(prefix="sq") as name:
        yield f"ipc://{Path(name, 'e')}", f"ipc://{Path(name, 'r')}"


@pytest.fixture(scope="session")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a recording of a scripted run of eighty steps."""
    path = tmp_path_factory.mktemp("recording") / "run.seqtop"
    record_script(path)
    return str(path)


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Without a garbage collector, which may not come by for hours either."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _patient_pilot() -> Iterator[None]:
    """All that a pilot does, a snapshot's too, ends when the app has come to rest.

    Its style sheets are parsed once for all apps.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in ("app", "pilot"):
            patch.setattr(f"textual.{module}.wait_for_idle", settling.wait_for_idle)
        patch.setattr("textual.pilot.Pilot._wait_for_screen", settling.wait_for_screen)
        patch.setattr("textual._compositor.Compositor.render_update", settling.render_update)
        parse_once(patch)
        yield


def _started_in(directory: str) -> Iterator[psutil.Process]:
    """Processes that were started with a runtime directory in `directory`.

    Without the tracker and the fork server of multiprocessing, which live as long as this process.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = " ".join(process.cmdline())
            # What the fork server has forked has its command line, but another parent.
            is_server = "multiprocessing.forkserver" in command and process.ppid() == os.getpid()
            is_tracker = "multiprocessing.resource_tracker" in command or is_server
            is_own = process.environ().get("XDG_RUNTIME_DIR", "").startswith(directory)
            if is_own and not is_tracker:
                yield process


def _test_and_command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        test = process.environ().get("PYTEST_CURRENT_TEST", "")
        return f"{test}: {' '.join(process.cmdline())}"
    return ""


@pytest.fixture(scope="session", autouse=True)
def _own_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test, and no program that one starts, reads or writes the settings of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
            patch.setenv(variable, str(tmp_path_factory.mktemp(variable.lower())))
        # Sockets are in this one, and their paths are limited to 107 bytes.
        with TemporaryDirectory(prefix="sq") as directory:
            patch.setenv("XDG_RUNTIME_DIR", directory)
            yield Path(directory)
            started = {process: _test_and_command(process) for process in _started_in(directory)}
            _, left = psutil.wait_procs(list(started), SECONDS)
            assert not left, f"these outlive their tests: {[started[process] for process in left]}"


@pytest.fixture(scope="session", autouse=True)
def _forked_programs(_own_files: Path) -> Iterator[None]:
    """Drivers of predictions are forked, and all servers that fork end with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        forking = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)
        patch.setattr("seqtop.whatif.driver.subprocess", forking)
        yield
    end_servers()


_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_state(_own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the engines of another one, or what another one made the app remember."""
    directory = _own_files / str(next(_numbers))
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("XDG_STATE_HOME", str(directory / "state"))


@pytest.fixture
def pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sound recording in which each event has a frame of its own, and some a keyframe before."""
    monkeypatch.setattr(segments, "BATCH_BYTES", 1)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 400)
    path = tmp_path / "run.seqtop"
    record(path, RIGHT)
    return path
