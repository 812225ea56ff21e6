"""Engines that come while the app runs."""

from collections.abc import Sequence

import pytest

from seqtop.transport.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.fleet.screen import FleetScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.settings import Settings
from tests.support.piloting import play, screen, until
from tests.support.scripted import Script, ScriptedSource, scene


class Register:
    """A register to which a test adds engines."""

    def __init__(self) -> None:
        self.new: list[ScriptedSource] = []
        self.problem = ""

    def take_new(self) -> Sequence[ScriptedSource]:
        new, self.new = self.new, []
        return new

    def take_problem(self) -> str:
        problem, self.problem = self.problem, ""
        return problem


def named(name: str) -> ScriptedSource:
    source = ScriptedSource()
    source.name = name
    return source


@pytest.fixture
def register() -> Register:
    return Register()


@pytest.fixture
def app(register: Register) -> SeqtopApp:
    first = named("vllm-0")
    scene(first)
    return SeqtopApp(first, clock=lambda: 0.0, found=register)


def test_one_that_comes_has_a_row_and_screens(app: SeqtopApp, register: Register) -> None:
    with play(app, (120, 24)) as pilot:
        assert isinstance(app.screen, FleetScreen)
        assert "1 engine, 1 live" in screen(app)
        assert "vllm-0" in screen(app)
        second = named("vllm-1")
        script = Script(second, engine_id="the model", incarnation="b2")
        script.arrive("first")
        script.step(prefill={"first": 40})
        register.new.append(second)
        until(pilot, lambda: "2 engines, 2 live" in screen(app))
        assert "vllm-1" in screen(app)
        assert "the model" not in screen(app)  # what it calls itself, as the others do
        old, new = app.engines.all
        assert old.others == [new]
        assert new.others == [old]
        pilot.press("down")
        until(pilot, lambda: app.ui is new)
        pilot.press("enter")
        until(pilot, lambda: isinstance(app.screen, SequencesScreen))
        until(pilot, lambda: "first" in screen(app))


def test_one_that_went_and_returned_keeps_its_row(app: SeqtopApp, register: Register) -> None:
    with play(app, (120, 24)) as pilot:
        connection = app.ui.source.connection
        connection.state = ConnectionState.LOST
        connection.endpoint = "tcp://10.0.0.8:5557"
        until(pilot, lambda: "LOST" in screen(app))
        assert "vllm-0" in screen(app)
        connection.state = ConnectionState.LIVE
        until(pilot, lambda: "1 engine, 1 live" in screen(app))
        assert "vllm-0 · tcp://10.0.0.8:5557" in screen(app)


def test_the_conditions_of_one_that_comes_are_watched(register: Register) -> None:
    first = named("vllm-0")
    Script(first).step()
    app = SeqtopApp(first, clock=lambda: 0.0, settings=Settings(on=("waiting>0",)), found=register)
    with play(app, (120, 24)) as pilot:
        second = named("vllm-1")
        scene(second)
        register.new.append(second)
        until(pilot, lambda: "vllm-1: waiting>0 holds since step" in screen(app))


def test_a_problem_of_the_register_is_a_notice(app: SeqtopApp, register: Register) -> None:
    with play(app, (120, 24)) as pilot:
        register.problem = "Kubernetes does not answer"
        until(pilot, lambda: "Kubernetes does not answer." in screen(app))
