"""The fixture for an engine's own tests, in test suites of its own."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.waiting import SECONDS

pytest_plugins = ["pytester"]

ENGINE = """
import pytest
from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from tests.support.events import arrival, engine_info, stats, step

@pytest.fixture
def engine():
    with MessagePublisher(ENDPOINT, engine_info(), EngineState()) as engine:
        yield engine
"""


Suite = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Suite:
    """Runs a test of an engine, and nothing of this project's own configuration."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    # An installation registers the plugin by itself, and pytest refuses to register it twice.
    installed = {point.value for point in entry_points(group="pytest11")}
    plugin = () if "seqtop.pytest_plugin" in installed else ("-p", "seqtop.pytest_plugin")

    def run(body: str, *arguments: str, timeout: float | None = None) -> pytest.RunResult:
        pytester.makepyfile(ENGINE.replace("ENDPOINT", repr(endpoint)) + body)
        return pytester.runpytest_subprocess(*plugin, *arguments, timeout=timeout)

    return run


BROKEN = """
def test_engine(seqtop_checks, engine):
    {before}
    checked = seqtop_checks(engine.endpoint)
    for event in (arrival(1), step(0, stats=stats(num_free_blocks=63)), step(1)):
        engine.publish(event)
    {after}
"""


def test_findings_fail_the_test_by_name_and_leave_a_recording(
    suite: Suite, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    result = suite(
        BROKEN.format(before="", after=""),
        *("--seqtop-recordings", str(tmp_path), "--junit-xml", str(tmp_path / "report.xml")),
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*step 0: pool-sum: *", "*recorded in *"])
    path = tmp_path / "test_engine-0.seqtop"
    assert str(path) in (tmp_path / "report.xml").read_text()
    command = [sys.executable, "-m", "seqtop", "check", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "2 steps" in done.stdout
    assert "step 0: pool-sum: " in done.stdout


GATES = """
import time
from msgspec.structs import replace
import pytest
from tests.support.broken_recordings import RIGHT, record
from tests.support.events import preemption

def run(engine):
    now = time.time()  # as in heartbeats
    times, later = dict(start_time=now, time=now), stats(num_preemptions=1)
    engine.publish(replace(arrival(1), arrival_time=now - 0.5, metrics=None))
    engine.publish(step(0, **times))
    lost = [preemption("req-1", lost=4)]
    for number in (1, 2):
        engine.publish(step(number, preemptions=lost[number - 1 :], stats=later, **times))

@pytest.mark.parametrize("fail_if", ["preemptions>0", ["kv>99%", "preemptions>0"], "preemptions>1"])
def test_condition(seqtop_checks, engine, fail_if):
    seqtop_checks.fail_on = "error"
    seqtop_checks(engine.endpoint, fail_if=fail_if)
    run(engine)

@pytest.mark.parametrize("slo", ["ttft=1us", ["e2e=1h", "ttft=1h,p=90"]])
def test_objective(seqtop_checks, engine, slo):
    seqtop_checks(engine.endpoint, slo=slo)
    run(engine)

def test_baseline(seqtop_checks, engine, tmp_path):
    record(tmp_path / "before.seqtop", RIGHT)
    seqtop_checks(engine.endpoint, baseline=tmp_path / "before.seqtop", tolerance=0.5)
    run(engine)

@pytest.mark.parametrize(
    "wrong", [{"slo": "ttft=x"}, {"fail_if": "x>1"}, {"baseline": "/nonexistent"}]
)
def test_wrong(seqtop_checks, engine, wrong):
    with pytest.raises(Exception, match="ttft|no field 'x'|/nonexistent"):
        seqtop_checks(engine.endpoint, **wrong)
"""


def test_gates(suite: Suite) -> None:
    result = suite(GATES, "-rA")
    result.assert_outcomes(passed=5, failed=4)
    failed = {line.split("::")[1] for line in result.outlines if line.startswith("FAILED ")}
    assert {line.split(" - ")[0] for line in failed} == {
        "test_condition[preemptions>0]",
        "test_condition[fail_if1]",
        "test_objective[ttft=1us]",
        "test_baseline",
    }
    result.stdout.fnmatch_lines_random(
        [
            "*step 1: condition: preemptions>0: begins to hold here; *",
            "*: objective: TTFT ≤ 1 µs: the largest is ≥ *",
            "*step 1: regression: preemptions within 50%: 0 → 1*",
            "*compared with *before.seqtop: *first in step 1, preemption: *",
        ]
    )


RACES = """
import threading
import time
from itertools import count
from msgspec.structs import replace
from seqtop.live.session import Session
from tests.support.waiting import SECONDS

now = time.time()  # as in heartbeats
arrived = replace(arrival(1), arrival_time=now, metrics=None)

def publish_step(engine, number):
    engine.publish(step(number, start_time=now, time=now))

def test_an_engine_goes_on(seqtop_checks, engine):
    seqtop_checks.fail_on = "error"
    seqtop_checks(engine.endpoint, slo="e2e=1h")
    engine.publish(arrived)
    publish_step(engine, 0)
    ended, close = threading.Event(), engine.close
    def go_on():
        for number in count(1):
            if ended.wait(0.0005):  # as fast as it can, it would lose messages
                return
            publish_step(engine, number)
    thread = threading.Thread(target=go_on)
    def end():
        ended.set()
        thread.join()
        close()
    engine.close = end
    thread.start()

def test_a_state_comes_before_the_connection_is_live(seqtop_checks, engine, monkeypatch):
    restore, is_first, another_is_live = Session.restore, iter([True, False]), threading.Event()
    def restore_slowly(session, *arguments):
        restore(session, *arguments)
        if next(is_first):
            another_is_live.wait(SECONDS)
        else:
            another_is_live.set()
    monkeypatch.setattr(Session, "restore", restore_slowly)
    seqtop_checks(engine.endpoint)
    engine.publish(arrived)
    publish_step(engine, 0)
"""


def test_threads_of_an_engine_and_of_a_session_take_their_time(suite: Suite) -> None:
    result = suite(RACES, "-W", "error::pytest.PytestUnhandledThreadExceptionWarning")
    result.assert_outcomes(passed=2)


MANY = """
def test_error_alone_is_asked_for(seqtop_checks, engine):
    seqtop_checks.fail_on = "error"
    seqtop_checks(engine.endpoint)
    for event in (arrival(1), step(0, stats=stats(num_free_blocks=63)), step(1)):
        engine.publish(event)

def test_no_step(seqtop_checks, engine):
    seqtop_checks(engine.endpoint)

def test_unused(seqtop_checks, engine):
    pass

def test_ended(seqtop_checks, engine):
    checked = seqtop_checks(engine.endpoint, redact=True)
    for event in (arrival(1), *map(step, range(3))):
        engine.publish(event)
    engine.close()
    assert checked.session.wait_until(lambda: checked.session.state.stopped is not None, 60)
    assert checked.session.state.requests["req-1"].prompt is None

@pytest.mark.parametrize("fail_on", ["warning", "error"])
def test_warning(seqtop_checks, engine, fail_on):
    seqtop_checks.fail_on = fail_on
    seqtop_checks(engine.endpoint, thresholds={"no_progress_steps": 2})
    for event in (arrival(1), *map(step, range(3))):
        engine.publish(event)

def test_no_engine(seqtop_checks, engine):
    seqtop_checks.timeout = 0.1
    seqtop_checks(engine.endpoint + "-")
"""


def test_outcomes(suite: Suite) -> None:
    result = suite(MANY, "-rA")
    result.assert_outcomes(passed=3, failed=4)
    summary = {line.split(" - ")[0] for line in result.outlines if " test_outcomes.py::" in line}
    assert {line.partition(" test_outcomes.py::")[::2] for line in summary} == {
        ("FAILED", "test_error_alone_is_asked_for"),
        ("FAILED", "test_no_step"),
        ("PASSED", "test_unused"),
        ("PASSED", "test_ended"),
        ("FAILED", "test_warning[warning]"),
        ("PASSED", "test_warning[error]"),
        ("FAILED", "test_no_engine"),
    }


CLOSED = """
def test_engine(seqtop_checks):
    seqtop_checks.timeout = 1e6  # a wait for it would not end
    with MessagePublisher({endpoint!r}, engine_info(), EngineState()) as engine:
        seqtop_checks(engine.endpoint, thresholds={{"no_progress_steps": 1e6}})
        for event in (arrival(1), *map(step, range(2_000))):
            engine.publish(event)
"""


def test_an_engine_that_is_closed_at_the_end_of_the_test(suite: Suite, endpoint: str) -> None:
    """Its last messages are still on their way."""
    suite(CLOSED.format(endpoint=endpoint), "-q", timeout=SECONDS).assert_outcomes(passed=1)


def test_a_failure_of_the_test_itself_is_shown_beside_the_findings(suite: Suite) -> None:
    result = suite(BROKEN.format(before="", after="assert 0, 'mine'"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*AssertionError: mine*", "*pool-sum*"])


def test_nothing_of_seqtop_is_imported_without_the_fixture(
    suite: Suite, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_modules():
            loaded = {name for name in sys.modules if name.startswith(("seqtop", "zmq", "msgspec"))}
            assert loaded <= {"seqtop", "seqtop.pytest_plugin"}
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
