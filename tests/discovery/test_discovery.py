"""The parts that all registers have in common."""

from collections.abc import Iterable
from contextlib import ExitStack

import pytest

from seqtop.cli import found_engines
from seqtop.cli.found_engines import FoundSessions
from seqtop.discovery import DiscoveryError, Found, PolledDiscovery
from tests.support.waiting import wait_until


class Register(PolledDiscovery):
    """A register of the test's own."""

    _SECONDS = 0.01

    def __init__(self, *found: Found) -> None:
        super().__init__("the register")
        self.listed: list[Found] = [*found]
        self.error: Exception | None = None

    def explain_none(self) -> str:
        return "there are none"

    def _find(self) -> Iterable[Found]:
        if self.error is not None:
            raise self.error
        return self.listed


def place(number: int) -> Found:
    return Found(f"pod-{number}", f"ipc:///nowhere/{number}")


def test_an_unexpected_failure_is_told_and_the_register_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("seqtop.discovery._RETRY_SECONDS", 0.01)
    register = Register(place(1))
    register.start()
    try:
        register.error = KeyError("cluster")
        wait_until(lambda: register.problem)
        assert register.problem == "the register cannot be read: KeyError: 'cluster'"
        assert register.found == (place(1),)
        register.error = None
        wait_until(lambda: not register.problem)
    finally:
        register.close()


def test_a_failure_at_the_start_is_raised() -> None:
    register = Register()
    register.error = DiscoveryError("it is locked")
    with pytest.raises(DiscoveryError, match="it is locked"):
        register.start()


def test_each_engine_has_one_session_for_all_its_places() -> None:
    register = Register()
    with ExitStack() as stack:
        found = FoundSessions(register, stack)
        numbers: list[int] = []
        found.on_change = lambda sessions: numbers.append(len(sessions))
        register.found = (place(1), place(2))
        first, second = found.take_new()
        assert first.name == "pod-1"
        assert numbers == [2]
        assert found.take_new() == ()
        register.found = (Found("pod-2", "ipc:///nowhere/other"), place(3))
        (third,) = found.take_new()
        assert numbers == [2, 3]
        wait_until(lambda: second.connection.endpoint == "ipc:///nowhere/other")
        wait_until(lambda: "does not list it any more" in first.connection.detail)
        assert third.name == "pod-3"


def test_a_place_that_cannot_be_connected_to_is_told() -> None:
    register = Register()
    with ExitStack() as stack:
        found = FoundSessions(register, stack)
        register.found = (Found("a", "tcp://a b:5557"), place(1))
        (session,) = found.take_new()
        assert "cannot connect to tcp://a b:5557: Invalid argument" in found.take_problem()
        register.found = (Found("pod-1", "tcp://a b:5557"),)
        found.take_new()
        wait_until(lambda: "cannot connect to tcp://a b:5557" in session.connection.detail)
        register.found = (place(1),)
        found.take_new()
        wait_until(lambda: session.connection.endpoint == place(1).endpoint)


def test_each_rank_is_an_engine() -> None:
    register = Register()
    with ExitStack() as stack:
        found = FoundSessions(register, stack, num_ranks=2)
        register.found = (place(1),)
        assert [(own.name, own.connection.endpoint) for own in found.take_new()] == [
            ("pod-1 dp0", "ipc:///nowhere/1"),
            ("pod-1 dp1", "ipc:///nowhere/1.dp1"),
        ]


def test_more_engines_than_are_followed_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_engines, "MOST_ENGINES", 2)
    register = Register()
    with ExitStack() as stack:
        found = FoundSessions(register, stack)
        register.found = tuple(map(place, range(3)))
        assert len(found.take_new()) == 2
        assert found.take_problem().startswith("1 engine more was found than the 2 that")
        assert found.take_problem() == ""
