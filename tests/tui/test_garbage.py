"""Garbage: what lives long is looked at when nobody waits, and frames leave little behind."""

import asyncio
import gc
from collections.abc import Iterator

import pytest

from seqtop.tui.app import SeqtopApp
from seqtop.tui.garbage import CALM, SELDOM, Collector
from tests.support.piloting import until
from tests.support.scripted import ScriptedSource


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.enable()


def grow_old() -> None:
    """Let so much have been collected that a full collection is worth its time."""
    for _ in range(10):
        gc.collect(1)


def test_it_collects_once_it_is_calm_and_something_is_to_be_looked_at() -> None:
    clock = Clock()
    collector = Collector(clock)
    collector.start()
    gc.collect()
    collector.drew()
    clock.now += CALM + 1
    collector.rest()
    assert collector.num_collections == 0  # nothing is old
    grow_old()
    collector.drew()
    collector.rest()
    assert collector.num_collections == 0  # a frame has just been drawn
    clock.now += CALM + 1
    collector.rest()
    collector.rest()
    assert collector.num_collections == 1
    collector.stop()


def test_it_collects_seldom_while_frames_are_drawn() -> None:
    clock = Clock()
    collector = Collector(clock)
    collector.start()
    for _ in range(3 * 1_000):
        clock.now += SELDOM / 1_000
        collector.drew()
    assert collector.num_collections == 2
    collector.stop()


def test_the_app_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()

    async def run() -> None:
        app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0)
        async with app.run_test() as pilot:
            app.draw()
            await pilot.pause()
            await until(pilot, lambda: gc.get_threshold() != before)
            assert gc.get_freeze_count() > 0

    asyncio.run(run())
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
