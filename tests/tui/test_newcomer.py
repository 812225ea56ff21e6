"""A newcomer's twelve questions, put to the running demo and to its recording.

Each is answered in at most four keys from the table of sequences. What is typed into a dialog or
the filter, with the Enter at its end, is one key; the key that opens the dialog is another.
"""

import re
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from seqtop.cli.main import main
from seqtop.demo import RECORDED_RUN, DemoEngine, DemoSession
from seqtop.history import FileStore
from seqtop.live.playback import Playback
from seqtop.tui.app import SeqtopApp
from tests.support.piloting import Pilot, burst, notices, play, until, words

MOST_KEYS = 4
SIZE = (120, 40)


class Question(NamedTuple):
    """A question, the keys that answer it, and what then stands on the screen."""

    text: str
    keys: tuple[str, ...]
    """Names of keys; what begins with a quotation mark is typed."""
    answer: str
    """A regular expression."""
    keys_live: tuple[str, ...] = ()
    """The keys in the running demo, if they are others."""


QUESTIONS = (
    Question(
        "Which request had the worst TTFT, and why?",
        ("s", "t", "enter"),
        r"▼TTFT .* Waited [\d.]+ s \((max_num_seqs|no free blocks) ",
    ),
    Question(
        "Which one is stuck?",
        ("Q",),
        r"Waits for─.*(advances when|waits for|runs as soon as)",
    ),
    Question(
        "Who was in the batch of step 80?",
        ("colon", "'80", "4"),
        r"▸ 80 .* Step 80 .* decodes .* shared-1 seq 1 ● decode 1 token",
    ),
    Question(
        "Which request speaks of a castle?",
        ("slash", "'castle"),
        r"Filter castle +\d+ of \d+ .* long-1",
    ),
    Question(
        "When did throughput change, and why?",
        ("left_square_bracket",),
        r"Output (rose|fell) from [\d.]+ to [\d.]+ tok/s: .* of the change",
    ),
    Question(
        "Why does the prefix cache miss?",
        ("2", "m"),
        r"blocks found .* new \d+ missed tokens .* evicted \d+ missed tokens",
    ),
    Question(
        "What has changed since then?",
        ("A", "0", "B"),
        r"requests ended and \d+ arrived in between.* TTFT p50, 60 s",
        ("0", "B"),
    ),
    Question(
        "Who was preempted, and by whom?",
        ("p",),
        r"Preempted here: (\S+) \(\d+ tokens? lost, for (\S+)\).*"
        r" Preempted at step \d+ to make room for \2",
    ),
    Question(
        "What is the bottleneck, and which setting?",
        (),
        r"limited by max_num_seqs \(8\): \d+% of all waiting",
    ),
    Question(
        "Is the objective met?",
        ("D", "'ttft=500ms"),
        r"\d+ of \d+ requests that ended or are late miss a limit .* TTFT ≤ 500 ms",
    ),
    Question("How many drafts are accepted?", ("6",), r"no draft tokens so far"),
    Question(
        "Would 16 sequences be better than 8?",
        ("I", "'max_num_seqs=16"),
        r"max_num_seqs: 8 → 16 .* recorded model error predicted change .* TTFT p50",
    ),
)


AB = r"(both serve|[AB] serves) .* of the \d+ requests that both have"
"""The verdict of `seqtop diff A B`, the command that compares two recordings."""


def answer_all(app: SeqtopApp, pilot: Pilot, *, is_live: bool) -> None:
    """Puts the questions, each from the table as it is when the app starts."""
    for question in QUESTIONS:
        keys = question.keys_live if is_live and question.keys_live else question.keys
        assert len(keys) <= MOST_KEYS
        press(app, pilot, keys)
        until(
            pilot,
            partial(stands, app, question.answer),
            f"{question.text} {question.answer}",
        )
        pilot.press("escape", "escape", "1", "L")
        app.ui.cursor.set_by_user = False
        app.clear_notifications()


def stands(app: SeqtopApp, answer: str) -> bool:
    return re.search(answer, words(app)) is not None


def press(app: SeqtopApp, pilot: Pilot, keys: tuple[str, ...]) -> None:
    for key in keys:
        if key.startswith("'"):
            burst(app, f"{key[1:]}\r")
            pilot.pause()
        else:
            pilot.press(key)


def test_a_recording_answers() -> None:
    with FileStore(RECORDED_RUN) as store:
        app = SeqtopApp(Playback(store, RECORDED_RUN.name, paused=True, position=store.last))
        with play(app, SIZE) as pilot:
            answer_all(app, pilot, is_live=False)


@pytest.mark.release("takes a minute")
def test_the_running_demo_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with DemoEngine(model=None, device="cpu", pace=15) as engine, DemoSession(engine) as session:
        app = SeqtopApp(session)
        with play(app, SIZE) as pilot:
            until(pilot, lambda: app.ui.newest.num_finished >= 4)
            answer_all(app, pilot, is_live=True)
            press(app, pilot, ("R", "s"))
            until(pilot, lambda: any("Saved" in notice for notice in notices(app)))
    (saved,) = tmp_path.glob("*.seqtop")
    assert main(["diff", str(RECORDED_RUN), str(saved)]) in (0, 1)
    assert re.search(AB, capsys.readouterr().out.splitlines()[0])
