"""The tour of the README, by keys, with an installed wheel, a real engine and a pseudo-terminal.

What the screen answers is held against `seqtop show --json`: of the engine itself, and of the
recording that the app made of it.
"""

import csv
import io
import json
import os
import re
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from seqtop.live.session import Session
from tests.support.installing import Environment
from tests.support.piloting import inside
from tests.support.terminal import Terminal
from tests.support.trace_format import Trace
from tests.support.waiting import SECONDS

BLOCK = 17
TREE = "▌▾▸├└│… "


@pytest.fixture(autouse=True)
def _installed(with_engine: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The commands are those of the wheel, and nothing of the checkout can be imported."""
    monkeypatch.setenv("PATH", f"{with_engine.bin}:{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def engine(endpoint: str, _installed: None) -> Iterator[str]:
    """The endpoint of the bundled engine at its demo's work, which is counted in steps.

    Not as fast as it can: it would take a processor for as long as the tour.
    """
    command = ["engine-stub", "serve", "--demo", "--control", "--pace", "50"]
    command += ["--device", "cpu", "--bind", endpoint, "--until-stdin-closes"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        yield endpoint
        process.kill()


def run(*command: str) -> str:
    done = subprocess.run(["seqtop", *command], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def show(source: str, *options: str) -> dict[str, Any]:
    """The truth: the state of an engine, or of a recording."""
    return json.loads(run("show", source, "--json", *options))


def request(state: dict[str, Any], request_id: str) -> dict[str, Any]:
    return next(request for request in state["requests"] if request["request_id"] == request_id)


def last_preemption(state: dict[str, Any]) -> int:
    return max(
        (step for request in state["requests"] for step in request["preemption_steps"]), default=0
    )


def owners(state: dict[str, Any]) -> list[str]:
    """Whose block `BLOCK` is: a name for each sequence that holds it."""
    return [
        request["request_id"] + (f"/{place}" if len(request["sequences"]) > 1 else "")
        for request in state["requests"]
        for place, sequence in enumerate(request["sequences"], start=1)
        if BLOCK in sequence["block_table"]
    ]


def chosen(app: Terminal) -> str:
    """The name in the row under the cursor: as much of it as there is room for."""
    rows = [line for line in inside(app.screen.display) if line.startswith("▌")]
    return rows[0].lstrip(TREE).split()[0] if rows else ""


def is_chosen(app: Terminal, *names: str) -> bool:
    shown = chosen(app)
    return bool(shown) and any(is_of(shown, name) for name in names)


def is_of(shown: str, name: str) -> bool:
    """True if `shown` is `name`, perhaps without its middle."""
    head, cut, end = shown.partition("…")
    return name.startswith(head) and name.endswith(end) if cut else name.endswith(shown)


def flowed(app: Terminal) -> str:
    """The text of the terminal, with one blank between two words, without frames and bars."""
    return " ".join(re.sub("[│▁-█]", " ", app.text).split())


@pytest.fixture(autouse=True)
def _no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered of what another app showed."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    "size",
    [
        (80, 24),
        pytest.param((120, 40), marks=pytest.mark.release("another size")),
        pytest.param((200, 60), marks=pytest.mark.release("another size")),
    ],
    ids="{0[0]}x{0[1]}".format,
)
def test_the_tour(engine: str, tmp_path: Path, size: tuple[int, int]) -> None:
    app = Terminal("seqtop", "attach", engine, size=size, cwd=tmp_path)
    try:
        app.wait_until(lambda: "LIVE" in app.text)
        app.press("R")
        app.wait_until(lambda: "save the past" in app.text)
        app.press("r")
        app.wait_until(lambda: "REC" in app.text)
        before = last_preemption(show(engine))

        truth: dict[str, Any] = {}
        with Session(engine) as session:

            def has_an_answer_to_all() -> bool:
                with session.lock:
                    state = session.state
                    tables = [sequence.block_table for sequence in state.sequences.values()]
                    steps = [own.preemption_steps for own in state.requests.values()]
                    last = max(chain(*steps), default=0)
                    if not (any(BLOCK in own for own in tables) and before < last < state.step):
                        return False
                truth.update(show(engine))
                return bool(owners(truth)) and before < last_preemption(truth) < truth["step"]

            app.wait_until(has_an_answer_to_all)
        moment, lost_at = truth["step"], last_preemption(truth)
        app.wait_until(lambda: _step(app) >= moment)
        app.press(f":{moment}\r")
        app.wait_until(lambda: _step(app) == moment and "PAUSED" in app.text)

        # Who waited longest?
        assert "▼Waited" not in app.text
        app.press("sw\rg")
        app.wait_until(lambda: "▼Waited" in app.text)
        app.wait_until(lambda: inside(app.screen.display)[_titles(app) + 1].startswith("▌"))
        waited_longest = chosen(app)

        # When did throughput fall?
        app.press("6A")
        app.wait_until(lambda: "Output" in app.text and "tok/s" in app.text)
        app.press("\x1b[D")
        app.wait_until(lambda: -1 < _step(app) < moment)
        earlier = _step(app)
        app.press("B")
        app.wait_until(lambda: "What differs between two moments" in flowed(app))
        assert f": step {moment:,}" in flowed(app)
        assert f": step {earlier:,}" in flowed(app)
        app.press("\r")
        app.wait_until(lambda: "What differs between two moments" not in flowed(app))
        app.press(f":{moment}\r")
        app.wait_until(lambda: _step(app) == moment)

        # Who owns block 17?
        app.press(f"b{BLOCK}\r")
        app.wait_until(lambda: f"Block {BLOCK} " in app.text)
        assert f"{len(owners(truth))} reference" in app.text
        assert all(f" {name} " in app.text for name in owners(truth)[:2])
        app.press("\r")
        app.wait_until(lambda: "Request " in app.text and is_chosen(app, *owners(truth)))

        # Who lost its place last, and how much?
        app.press("p")
        app.wait_until(lambda: _step(app) == lost_at)
        app.wait_until(lambda: "Preempted here: " in flowed(app))
        described = re.findall(
            r"(\S+) \((\d+) tokens? lost[^)]*\)", flowed(app).partition("Preempted here: ")[2]
        )
        victims = [
            request for request in truth["requests"] if lost_at in request["preemption_steps"]
        ]
        assert {name for name, _ in described} == {victim["request_id"] for victim in victims}
        app.press("4")
        app.wait_until(
            lambda: all(f"{tokens} computed tokens will be recomputed" in flowed(app)
                        for _, tokens in described)
        )  # fmt: skip

        app.press("3")
        app.wait_until(lambda: "preempted" in app.text and "/cell" in app.text)

        # Record it.
        app.press("R")
        app.wait_until(lambda: "REC" not in app.screen.display[0])
        app.press("q")
        app.wait_until(lambda: app.process.poll() is not None)
        assert app.process.returncode == 0
    finally:
        app.close()

    (recording,) = map(str, tmp_path.glob("seqtop-*.seqtop"))
    then = show(recording, "--at", str(moment))
    longest = max(request["wait"]["total_seconds"] for request in then["requests"])
    assert longest > 0
    assert any(
        request["wait"]["total_seconds"] == longest
        and any(is_of(waited_longest, request["request_id"] + end) for end in ("", "/1"))
        for request in then["requests"]
    ), waited_longest

    after, ahead = (show(recording, "--at", str(step)) for step in (lost_at, lost_at - 1))
    for name, tokens in described:
        lost = [request(state, name)["num_lost_tokens"] for state in (ahead, after)]
        assert lost[1] - lost[0] == int(tokens)

    run("export", recording, "--perfetto", "-o", str(tmp_path / "run.pftrace"))
    trace = Trace((tmp_path / "run.pftrace").read_bytes())
    assert any(instant.name == "preemption" for instant in trace.instants)
    rows = list(csv.DictReader(io.StringIO(run("export", recording, "--csv")), strict=True))
    assert {row["request_id"] for row in rows if int(row["num_preemptions"])} >= {
        name for name, _ in described
    }


def _step(app: Terminal) -> int:
    """The step that the header says is on show."""
    found = re.search(r" step ([\d,]+) ", app.screen.display[1])
    return int(found[1].replace(",", "")) if found else -1


def _titles(app: Terminal) -> int:
    """The line with the table's titles."""
    lines = inside(app.screen.display)
    return next((y for y, line in enumerate(lines[:-1]) if line.startswith(" Request")), 0)
