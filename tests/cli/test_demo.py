"""`seqtop demo` in a real pseudo-terminal, its screen read through a terminal emulator."""

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import seqtop
from seqtop.demo import RECORDED_RUN, DemoEngine
from seqtop.process import paths
from tests.support.commands import SEQTOP, assert_one_sentence, run
from tests.support.terminal import Terminal
from tests.support.waiting import wait_until


@pytest.fixture
def state_file() -> Path:
    """The view that another run has saved."""
    path = paths.state_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"sort": "-waited", "latency": true}', encoding="utf-8")
    return path


@pytest.fixture
def demo(state_file: Path) -> Iterator[Terminal]:
    terminal = Terminal(sys.executable, "-m", "seqtop", "demo", "--device", "cpu")
    yield terminal
    terminal.close()


def test_demo_streams_text_obeys_keys_and_leaves_nothing_behind(
    demo: Terminal, state_file: Path
) -> None:
    saved = state_file.read_bytes()
    demo.wait_until(lambda: "LIVE" in demo.text)
    demo.wait_until(lambda: "running" in demo.text and "typed-1" in demo.text)
    engine = [child for child in psutil.Process(demo.process.pid).children() if child.is_running()]
    assert len(engine) == 1

    before = demo.text
    demo.wait_until(lambda: demo.text != before)  # it streams
    demo.wait_until(lambda: "waiting" in demo.text)  # it queues
    demo.wait_until(lambda: "preempt" in demo.text)  # it runs out of blocks

    assert "p99" not in demo.text, "each demo begins alike"
    demo.press("l")
    demo.wait_until(lambda: "p99" in demo.text)
    demo.press(" ")
    demo.wait_until(lambda: "PAUSED" in demo.text)
    demo.press(" ")
    demo.wait_until(lambda: "LIVE" in demo.text)

    demo.press("q")
    demo.wait_until(lambda: demo.process.poll() is not None)
    assert demo.process.returncode == 0
    assert state_file.read_bytes() == saved
    wait_until(lambda: not engine[0].is_running())


def test_demo_is_drawn_at_once_and_ends_with_the_reason_if_its_engine_does_not_start(
    tmp_path: Path,
) -> None:
    """The engine finds out once torch is imported, seconds after the first frame."""
    demo = Terminal(sys.executable, "-m", "seqtop", "demo", "--model", str(tmp_path))
    try:
        demo.wait_until(lambda: "The bundled engine is starting" in demo.text)
        demo.wait_until(lambda: demo.process.poll() is not None and b"engine ended" in demo.output)
    finally:
        demo.close()
    assert demo.process.returncode == 1
    last = demo.output.decode().splitlines()[-1].rpartition("\x1b[?1006l")[2]
    reason = f"{tmp_path} is not a model directory: it has no config.json"
    assert last == f"seqtop: the bundled engine ended: {reason}"
    assert b"Traceback" not in demo.output


def test_an_engine_that_is_killed_has_the_signal_for_a_reason() -> None:
    with DemoEngine(model=None, device="cpu", pace=1.0) as engine:
        assert engine.failure() is None
        running = psutil.process_iter(["cmdline"])
        (child,) = (one for one in running if engine.endpoint in (one.info["cmdline"] or ()))
        child.kill()
        wait_until(lambda: engine.failure() is not None)
        assert engine.failure() == "the bundled engine was ended by signal 9 (Killed)"


def test_demo_without_a_terminal_starts_no_engine() -> None:
    assert_one_sentence(run(*SEQTOP, "demo", "--model", "/nonexistent"), 1, "needs a terminal")


def test_the_recorded_run_has_what_the_demo_shows() -> None:
    assert RECORDED_RUN.stat().st_size <= 300_000
    try:
        with seqtop.open(RECORDED_RUN) as run:
            assert run.damage is None
            states = [state for _, state in run.states()]
    except seqtop.RecordingError as error:
        pytest.fail(f"{error}: record it anew by python screenshots/make.py record_demo")
    assert len(states) >= 400
    last = states[-1]
    assert last.info is not None
    assert any(request.num_preemptions for request in last.requests.values())


STOPS = (
    ("A block", "Block 0"),
    ("Sharing", "≡ shared by 2"),
    ("Chunked prefill", "◐ 1 prefill"),
    ("A full cache", "KV blocks"),
    ("A preemption", "Preempted here: typed-4 ("),
    ("A prefix miss", "evicted at step"),
    ("A slow request, explained", "since its arrival"),
    ("What if", "LIVE"),
)
"""The stops of the tour, each with a text that stands on its screen."""


def test_the_tour_shows_the_demo_what_it_explains() -> None:
    command = ("-m", "seqtop", "demo", "--tour", "--device", "cpu", "--pace", "60")
    demo = Terminal(sys.executable, *command, size=(120, 40))
    try:
        demo.wait_until(lambda: "The tour begins as soon as the engine runs." in demo.text)
        for number, (title, sign) in enumerate(STOPS, 1):
            demo.wait_until(lambda: f"Tour, {number} of 8: {title}" in demo.text)  # noqa: B023
            demo.wait_until(lambda: "tour waits" not in demo.text and sign in demo.text)  # noqa: B023
            demo.press("N")
        demo.wait_until(lambda: "Tour, " not in demo.text)
    finally:
        demo.close()
