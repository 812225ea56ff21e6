"""Questions that users have put to the app, and the keys and texts that answer them.

The run is recorded and its answers are known (`tests.support.questions`).
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtop.demo import RECORDED_RUN
from seqtop.history import FileStore
from seqtop.live.playback import Playback
from seqtop.sequence import SequenceStatus
from seqtop.text import format as fmt
from seqtop.tui.app import SeqtopApp
from seqtop.tui.dialogs.prompts import ComparisonDialog
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences.table import Rows
from seqtop.wire.messages import WaitReason
from tests.support.piloting import burst, notices, play, rows, screen, selected, words
from tests.support.questions import END, save_run
from tests.support.scripted import Script, ScriptedSource

WIDE = (200, 40)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[SeqtopApp]:
    """The app at the end of the recorded run."""
    path = tmp_path / "run.seqtop"
    save_run(path)
    with FileStore(path) as store:
        last = store.last
        yield SeqtopApp(
            Playback(store, "run.seqtop", paused=True, position=last), clock=lambda: 0.0
        )


@pytest.fixture
def demo() -> Iterator[SeqtopApp]:
    """The app at the end of the recorded run of the demo."""
    with FileStore(RECORDED_RUN) as store:
        yield SeqtopApp(Playback(store, "demo.seqtop", paused=True, position=store.last))


def row(app: SeqtopApp, name: str) -> str:
    """The row of a sequence, up to the pane beside the table."""
    lines = (line.lstrip(" ▌").partition("│")[0] for line in rows(app))
    return next(line for line in lines if line.startswith(name))


def test_the_request_with_the_worst_ttft_and_its_cause(run: SeqtopApp) -> None:
    with play(run, WIDE) as pilot:
        pilot.press("slash")
        burst(run, "ttft>1s\r")
        pilot.pause()
        assert selected(run) == "late"
        text = words(run)
        assert "Waited 5.0" in text
        assert "(max_num_seqs 3.00 s, no free blocks 2.00 s)." in text
        assert "seqs" in row(run, "late")


def test_the_wasted_part_of_the_kv_cache_and_the_savings_of_sharing(run: SeqtopApp) -> None:
    with play(run, WIDE) as pilot:
        pilot.press("2")
        assert "2 shared 2 saved by sharing" in words(run)
        assert "slots unfilled" in words(run)


def test_the_fall_of_throughput_and_the_choices_of_the_scheduler(run: SeqtopApp) -> None:
    with play(run, (100, 40)) as pilot:
        pilot.press("left_square_bracket", "left_square_bracket")
        assert "Output fell from 40.0 to 20.0 tok/s" in words(run)
        pilot.press("right_curly_bracket", "right_curly_bracket", "6")
        assert 70 < run.ui.state.step < 95
        assert "20.0 tok/s" in screen(run)
        pilot.press("4")
        step = next(line for line in screen(run).splitlines() if "▸" in line)
        assert "●1" in step
        assert "no free blocks" in step


def test_is_the_prefix_cache_working(run: SeqtopApp) -> None:
    with play(run, WIDE):
        assert "80%" in row(run, "twin")
        assert "prefix hit rate" in words(run)


def test_the_request_that_is_stuck(run: SeqtopApp) -> None:
    with play(run, WIDE) as pilot:
        assert "!2 s" in row(run, "twin")
        assert "!" not in row(run, "early")
        pilot.press("slash")
        burst(run, "age>1s\r")
        pilot.pause()
        assert selected(run) == "twin"
        pilot.press("escape", "slash")
        burst(run, "why:queue\r")
        pilot.pause()
        assert selected(run) == "last"


def test_the_differences_between_two_moments(run: SeqtopApp) -> None:
    with play(run, (200, 60)) as pilot:
        pilot.press("B")
        assert notices(run) == ["Go to a past moment, and B compares it with now; A marks another."]
        pilot.press("A")
        pilot.press(*["left_curly_bracket"] * 3)
        pilot.press("B")
        assert isinstance(run.screen, ComparisonDialog)
        text = words(run)
        assert f"A: step {END - 31}, " in text
        assert f"B: step {END - 1}, " in text
        assert "stop: late" in text
        assert "output tok/s" in text
        (gaps,) = re.findall(r"ITL p50, 60 s +(\S+ \S+) +(\S+ \S+) ", screen(run))
        assert all(gap.endswith("ms") for gap in gaps), "also before the recording was played"
        assert "early running, +30 output tokens, +2 blocks" in text
        pilot.press("escape")
        assert not isinstance(run.screen, ComparisonDialog)


def test_the_latencies_of_a_moment_are_the_same_after_travelling(demo: SeqtopApp) -> None:
    with play(demo, WIDE) as pilot:
        pilot.press("l")
        pilot.draw()
        (before,) = (line for line in rows(demo) if re.search(r" ITL +\d", line))
        pilot.press("0", "L")
        pilot.draw()
        (after,) = (line for line in rows(demo) if re.search(r" ITL +\d", line))
        assert after == before


def test_misses_of_the_past_are_no_news(demo: SeqtopApp) -> None:
    with play(demo, WIDE) as pilot:
        pilot.press("D")
        burst(demo, "ttft=500ms\r")
        pilot.pause()
        pilot.press("escape", "0", "L")
        pilot.draw()
        assert len(demo.ui.latencies.now.met) > 0
        assert not any("missed its objective" in notice for notice in notices(demo))


def test_a_queue_without_requests_is_said() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("runs")
    script.step(prefill={"runs": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, WIDE) as pilot:
        pilot.press("Q")
        assert notices(app) == ["No request waits."]


def test_whom_it_waits_for_is_about_the_queue_if_the_selected_request_has_ended() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("ended")
    script.step(prefill={"ended": 40})
    script.finish("ended", SequenceStatus.FINISHED_STOPPED)
    script.arrive("waits")
    script.step(waits=[WaitReason(request_id="waits", cause="seq_limit")])
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, WIDE) as pilot:
        app.ui.select(source.state.requests["ended"].seq_ids[0])
        pilot.press("Q")
        assert selected(app) == "waits"
        assert "No request waits." not in notices(app)


def test_the_request_that_waited_longest_whatever_was_selected_before(demo: SeqtopApp) -> None:
    with play(demo, (80, 24)) as pilot:
        pilot.press("p", "L", "end", "s", "w", "enter")
        pilot.draw()
        requests = demo.ui.state.requests.values()
        longest = max(request.metrics.time_in_queue or 0.0 for request in requests)
        table = demo.screen.query_one(Rows)
        (first,) = (plain(table.line(key)) for key in table.visible_keys()[:1])
        assert table.cursor_row == 0
        assert fmt.seconds(longest) in first
