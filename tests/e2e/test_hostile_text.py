"""Text that attacks the terminal, sent through every way out that there is.

An engine's names and texts, and the paths a user is made to type, hold escape sequences,
overrides, invisible characters and markup. Nothing of it may reach a terminal as anything but
characters to look at.
"""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtop.sequence import RequestMetrics, SamplingParams, SequenceStatus
from seqtop.state import EngineState
from seqtop.text import sanitize
from seqtop.transport.publisher import MessagePublisher
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences import text_pane
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import Refused, RequestArrived, RequestFinished
from tests.support.events import engine_info, step, update
from tests.support.forked import start
from tests.support.hand_driven import HandDrivenEngine
from tests.support.piloting import play, screen
from tests.support.scripted import Script, ScriptedSource
from tests.support.scripted import engine_info as scripted_info
from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS

SEQTOP = (sys.executable, "-m", "seqtop")
ENGINE = (sys.executable, "-m", "engine_stub")

ATTACKS = {
    "colour": "\x1b[31m",
    "erase": "\x1b[2J\x1b[H",
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x07",
    "link": "\x1b]8;;http://owned\x1b\\owned\x1b]8;;\x1b\\",
    "device control": "\x1bP+q544e\x1b\\",
    "8-bit": "\x9b2J\x9d0;owned\x9c",
    "controls": "\x00\x07\x08\x0b\x0e\x7f\r",
    "override": "\u202egnp.owned\u202c\u2066\u2069",
    "invisible": "\u200b\u200d\u2060\ufeff" * 50,
    "marks": "o" + "\u0301" * 200,
    "markup": "[bold red]owned[/] [@click=app.quit]owned[/] :skull:",
}
HOSTILE = "".join(ATTACKS.values())
FORBIDDEN = (
    "\x1b]", "\x1bP", "\x1b[31m\x1b[2J", "\x9b", "\x9c", "\x9d", "\x00", "\x07", "\x08", "\x0b",
    "\x7f", "\u202e", "\u2066", "\u200b", "\u2060", "\ufeff", "\u0301" * 4,
)  # fmt: skip
"""Parts of texts that no output may contain."""


def assert_harmless(output: bytes, *, drawn: bool = False) -> None:
    """`drawn` by an app, whose own escape sequences are in it, too."""
    text = output.decode()
    for attack in FORBIDDEN:
        assert attack not in text, f"{attack!r} got through"
    if not drawn:
        assert "\x1b" not in text
        assert "\r" not in text


@pytest.fixture
def engine(endpoint: str) -> Iterator[MessagePublisher]:
    """Publishes nothing but attacks."""
    info = engine_info(
        engine_id=HOSTILE, engine=HOSTILE, model=HOSTILE, dtype=HOSTILE, device=HOSTILE
    )
    with MessagePublisher(endpoint, info, EngineState()) as running:
        for number in (1, 2):
            running.publish(
                RequestArrived(
                    request_id=f"{HOSTILE}{number}",
                    arrival_time=float(number),
                    seq_ids=[number],
                    num_prompt_tokens=3,
                    prompt=HOSTILE,
                    prompt_token_ids=Ints.of([1, 2, 3]),
                    sampling_params=SamplingParams(stop=[HOSTILE], max_tokens=5),
                )
            )
        updates = [
            update(
                number,
                status,
                3,
                tokens=[7],
                text=HOSTILE,
                blocks=[1],
                stop_reason=HOSTILE,
                engine_status=HOSTILE,
            )
            for number, status in (
                (1, SequenceStatus.RUNNING),
                (2, SequenceStatus.FINISHED_STOPPED),
            )
        ]
        running.publish(step(0, sequences=updates))
        running.publish(
            RequestFinished(
                request_id=f"{HOSTILE}2",
                time=200.0,
                status=SequenceStatus.FINISHED_STOPPED,
                metrics=RequestMetrics(2.0, 100.5, None, None, None),
                text_lengths=[1],  # which is wrong: something for the checks to say
            )
        )
        running.publish(
            RequestFinished(
                request_id=f"unknown{HOSTILE}",
                time=200.0,
                status=SequenceStatus.FINISHED_STOPPED,
                metrics=RequestMetrics(2.0, 100.5, None, None, None),
            )
        )
        yield running


def run(*command: str) -> subprocess.CompletedProcess[bytes]:
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output = process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(command, process.returncode, *output)


def assert_run_is_harmless(*command: str) -> bytes:
    done = run(*command)
    assert b"Traceback" not in done.stderr
    # Accents may pile up in what programs read: they move nothing.
    pile = "\u0301".encode() if "--json" in command else b""
    assert_harmless(done.stdout.replace(pile, b"") if pile else done.stdout)
    assert_harmless(done.stderr)
    return done.stdout + done.stderr


def test_text_that_is_printed(engine: MessagePublisher, tmp_path: Path) -> None:
    shown = assert_run_is_harmless(*SEQTOP, "show", engine.endpoint)
    assert "␛".encode() in shown
    everything = assert_run_is_harmless(*SEQTOP, "show", engine.endpoint, "--json")
    assert json.loads(everything)["engine"]["model"] == HOSTILE  # escaped, and all there
    file = tmp_path / "\x1b[31m\u202eowned\x07.seqtop"
    assert_run_is_harmless(*SEQTOP, "record", engine.endpoint, "-o", str(file), "--duration", "0.3")
    assert file.exists()
    for form in ((), ("--json",), ("--junit",)):
        assert_run_is_harmless(*SEQTOP, "check", str(file), *form)
    assert_run_is_harmless(*SEQTOP, "show", str(file))


def test_text_in_what_goes_wrong(endpoint: str, tmp_path: Path) -> None:
    file = str(tmp_path / "\x1b]0;owned\x07\u202e")
    for command in ("show", "check", "replay"):
        assert_run_is_harmless(*SEQTOP, command, file)
    assert_run_is_harmless(*SEQTOP, "show", "tcp://\x1b[2J\x9b")
    assert_run_is_harmless(*SEQTOP, "keygen", "-o", f"{file}/\x1b[2J")
    assert_run_is_harmless(*ENGINE, "serve", "--bind", "tcp://\x1b[2J\x9b")
    with HandDrivenEngine(endpoint) as engine:

        def answer() -> None:
            engine.await_viewer()
            engine.answer(Refused(error=HOSTILE))

        answering = threading.Thread(target=answer)
        answering.start()
        said = assert_run_is_harmless(*SEQTOP, "show", endpoint)
        answering.join()
        assert b"owned" in said


def test_findings_are_said_harmlessly(engine: MessagePublisher) -> None:
    said = assert_run_is_harmless(*SEQTOP, "check", engine.endpoint, "--duration", "0.3")
    assert b"findings" in said


def test_app_on_a_real_terminal(engine: MessagePublisher) -> None:
    """Every byte that it writes while it shows the attacks: table, detail, header, dialogs."""
    app = Terminal(*SEQTOP, "attach", engine.endpoint, size=(150, 40))
    try:
        app.wait_until(lambda: "␛]0;owned␇" in app.text and "─Text─" in app.text)
        app.press("\x1b[Bx")  # the next sequence, and a notification that it has finished
        app.wait_until(lambda: "already" in app.text)
        app.press("d")  # the table alone
        app.wait_until(lambda: "─Text─" not in app.text)
        app.press("q")
        app.wait_until(lambda: b"\x1b[?1049l" in app.output)
        assert app.process.wait(SECONDS) == 0
    finally:
        app.close()
    # Textual itself chooses the pointer's shape by one such sequence.
    assert_harmless(re.sub(rb"\x1b\]22;[a-z]*\x07", b"", app.output), drawn=True)
    assert b"[@click=app.quit]" in app.output  # as it stands, not as markup


def test_frame_looks_at_no_more_than_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the names and texts are: characters are counted, not seconds."""
    looked_at = 0
    plain = sanitize._shown.__wrapped__

    def counting(character: str) -> tuple[str, bool, str]:
        nonlocal looked_at
        looked_at += 1
        return plain(character)

    monkeypatch.setattr(sanitize, "_shown", counting)
    most = 20_000
    monkeypatch.setattr(text_pane, "MAX_CHARACTERS", most)
    huge = "\x1b[31m\u202e" * 40_000
    source = ScriptedSource(scripted_info(model=huge, engine_id=huge))
    script = Script(source, model=huge, engine_id=huge)
    script.arrive(f"a{huge}", prompt=huge, pieces=[huge, huge, "end"])
    script.step(prefill={f"a{huge}": 40})
    app = SeqtopApp(source)
    with play(app) as pilot:
        looked_at = 0
        for _ in range(3):
            script.step(decode=[f"a{huge}"])
            app.draw()
            pilot.pause()
        assert "␛[31m" in screen(app)
        # Of a text, at most so much is laid out anew; of everything else, a line's worth.
        assert 0 < looked_at < 3 * (2 * most + 50_000) < len(huge) * 3
