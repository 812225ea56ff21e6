"""The misses of the prefix cache on the blocks screen, in replay and while they are read."""

import random
import threading
from itertools import count
from typing import Any

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.live.playback import Playback
from seqtop.misses.cache_misses import BackgroundMisses, CurvePoint
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.blocks.misses_panel import savings
from seqtop.tui.screens.blocks.screen import BlocksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire import parsing
from tests.support.cache_runs import CacheRequest, misses_of, run
from tests.support.piloting import Pilot, play, rows, screen, until, words

_BEGINNINGS = (
    "Once upon a time there was a little girl who had a red ball and a big dog. ",
    "One day a boy named Tom went to the park with his mother to play. ",
)
_ENDS = ("She was warm.", "He was very happy and ran home.", "It saw a bird in the tree.")


def _payloads() -> list[bytes]:
    rng = random.Random(3)
    requests = [
        CacheRequest(
            number / 20,
            rng.choice(_BEGINNINGS) + "".join(rng.choices(_ENDS, k=3)),
            [rng.randrange(3, 250) for _ in range(20)],
        )
        for number in range(24)
    ]
    return run(requests, block_size=8, num_gpu_blocks=30, max_num_seqs=2)


PAYLOADS = _payloads()


@pytest.fixture
def app() -> SeqtopApp:
    history, state = MemoryStore(), EngineState()
    for number, payload in enumerate(PAYLOADS):
        event = parsing.event(payload)
        touched = state.apply(event)
        history.record(StateChange(state, touched, event, payload, number))
        history.end_segment(state)
    return SeqtopApp(Playback(history, "run.seqtop", paused=True))


def opened(app: SeqtopApp, pilot: Pilot) -> None:
    """Goes to the end of the recording and opens the misses."""
    pilot.press(":", *"9999", "enter", "2", "m")
    until(pilot, lambda: app.ui.misses.reader is not None)
    until(pilot, lambda: not app.ui.misses.reader.replay.is_behind)
    pilot.draw()


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_two_keys_show_totals_by_cause_the_curve_and_an_admission_in_full(
    app: SeqtopApp, size: tuple[int, int]
) -> None:
    totals = misses_of(PAYLOADS).totals()
    with play(app, size) as pilot:
        opened(app, pilot)
        assert isinstance(app.screen, BlocksScreen)
        text = words(app)
        assert f"{totals.num_missed} blocks missed" in text
        assert (
            f"{totals.num_hits / totals.num_blocks:.0%} of {totals.num_blocks} blocks found" in text
        )
        share = totals.tokens["evicted"] / sum(totals.tokens.values())
        assert f"evicted {totals.tokens['evicted']:,} missed tokens {share:.0%}" in text
        assert f"of {totals.num_missed_first} blocks never stored before" in text
        assert "step missed tokens request cause" in text
        removed = totals.num_missed_first - totals.misses()[2]
        assert f"+10% blocks {100 * removed / totals.num_missed_first:.2g}" in text
        assert "found in the prefix cache at step" in text
        pilot.press("m")
        until(pilot, lambda: "slots unfilled" in screen(app) or "of 8 slots filled" in screen(app))


def test_sizes_that_save_nothing_more_are_one_line() -> None:
    def lines(*missed: int) -> list[str]:
        points = [CurvePoint(0, 100, 50)]
        sizes = zip((10, 20, 50, 100), missed, strict=True)
        return savings(
            [*points, *(CurvePoint(percent, 100 + percent, at) for percent, at in sizes)], 50
        )

    fewer = [line.split()[:3] for line in lines(40, 30, 20, 10)]
    assert fewer == [
        ["+10%", "blocks", "20%"],
        ["+20%", "blocks", "40%"],
        ["+50%", "blocks", "60%"],
        ["+100%", "blocks", "80%"],
    ]
    assert [line.split() for line in lines(45, 45, 45, 45)] == [
        ["+10%", "blocks", "10%", "fewer", "blocks", "missed"],
        ["larger", "pools", "as", "many"],
    ]
    assert [line.strip() for line in lines(50, 50, 50, 50)] == ["a larger pool misses as many"]
    assert len(lines(45, 45, 45, 40)) == 2


def test_enter_goes_to_the_step_of_an_admission_and_only_those_before_are_shown(
    app: SeqtopApp,
) -> None:
    with play(app, (120, 40)) as pilot:
        opened(app, pilot)
        assert "24 admissions" in words(app)
        pilot.press("down", "down")
        lookup = misses_of(PAYLOADS).until()[2]
        assert f"at step {lookup.step:,}" in words(app)
        pilot.press("enter")
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.state.step == lookup.step
        assert app.ui.cursor.seq_id == lookup.seq_id
        pilot.press("2")
        assert "▌" in screen(app)
        assert f"at step {lookup.step:,}" in words(app)
        pilot.press(":", *"30", "enter")
        early = app.ui.misses.reader
        assert early is not None
        wanted = early.totals(app.ui.time_travel.position).num_lookups
        assert 0 < wanted < 24
        assert f"{wanted} admission" in words(app)
        pilot.press("b", "5", "enter")  # shows the map again
        until(pilot, lambda: "Block 5" in screen(app))
        assert "admission" not in words(app)


def test_a_fault_of_the_reader_is_shown(app: SeqtopApp, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a table")

    monkeypatch.setattr(BackgroundMisses, "apply", fail)
    with play(app, (80, 24)) as pilot:
        opened(app, pilot)
        until(pilot, lambda: "stopped by a fault: KeyError: 'a table'" in words(app))
        assert "reading …" not in words(app)


def test_totals_of_a_history_that_is_still_read_say_so_in_any_width(
    app: SeqtopApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_half_read, goes_on = threading.Event(), threading.Event()
    apply, num_steps = BackgroundMisses.apply, count()

    def slowly(misses: BackgroundMisses, *arguments: Any) -> None:
        if next(num_steps) == len(PAYLOADS) // 2:
            is_half_read.set()
            goes_on.wait()
        apply(misses, *arguments)

    monkeypatch.setattr(BackgroundMisses, "apply", slowly)
    with play(app, (80, 24)) as pilot:
        pilot.press(":", *"9999", "enter", "2", "m")
        until(pilot, is_half_read.is_set)
        pilot.draw()
        (totals,) = (line for line in rows(app) if "blocks found" in line)
        assert "reading …" in totals
        goes_on.set()
        until(pilot, lambda: "reading …" not in screen(app))
