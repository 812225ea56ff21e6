"""The pilot of the tests recognizes an app at rest."""

import asyncio
import threading
import time
from typing import ClassVar

import pytest
from textual.app import App
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from tests.support.snapshots import picture

HOPS = 8


class Hop(Message):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Runner(Widget):
    """Passes a message on to itself, as slowly as in a process that hardly gets to run."""

    num_hops = 0

    async def on_hop(self, message: Hop) -> None:
        time.sleep(0.03)
        self.num_hops += 1
        if message.number < HOPS:
            self.post_message(Hop(message.number + 1))


class Waiter(Widget):
    """Waits for another thread while a message waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.num_hops = 0

    async def on_hop(self, message: Hop) -> None:
        if message.number:
            self.post_message(Hop(0))
            await asyncio.to_thread(self.may_go_on.wait)
        self.num_hops += 1


class Small(App[int]):
    BINDINGS: ClassVar = [("x", "run", "Run")]

    def compose(self) -> list[Widget]:
        return [Runner(), Waiter()]

    def action_run(self) -> None:
        self.query_one(Runner).post_message(Hop(1))


def test_a_key_is_done_with_when_all_is_done_that_it_leads_to() -> None:
    async def run() -> None:
        app = Small()
        async with app.run_test() as pilot:
            await pilot.press("x")
            assert app.query_one(Runner).num_hops == HOPS
            app.action_run()
            await pilot.pause()
            assert app.query_one(Runner).num_hops == 2 * HOPS

    asyncio.run(run())


def test_a_widget_that_awaits_something_slow_is_not_at_rest() -> None:
    async def run() -> None:
        app = Small()
        async with app.run_test() as pilot:
            waiter = app.query_one(Waiter)
            waiter.post_message(Hop(1))
            resting = asyncio.create_task(pilot.pause())
            while waiter.num_hops == 0 and not waiter.message_queue_size:
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not resting.done()
            waiter.may_go_on.set()
            await resting
            assert waiter.num_hops == 2

    asyncio.run(run())


def test_an_app_that_draws_nothing_for_a_while_is_not_at_rest() -> None:
    """As it is after `switch_mode`."""

    async def run() -> None:
        app = Small()
        async with app.run_test() as pilot:
            app.delay_update(0.2)
            app.mount(Static("changed"), before=0)
            await pilot.pause()
            assert "changed" in picture(app)

    asyncio.run(run())


def test_an_app_that_never_rests_fails_its_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.settling.SECONDS", 0.05)

    async def run() -> None:
        app = Small()
        async with app.run_test() as pilot:
            waiter = app.query_one(Waiter)
            waiter.post_message(Hop(1))
            try:
                with pytest.raises(AssertionError, match="Waiter"):
                    await pilot.pause()
            finally:
                waiter.may_go_on.set()

    asyncio.run(run())
