"""The stacks of the threads of a process, asked for by another."""

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from seqtop.process import stacks
from seqtop.process.stacks import StackServer
from tests.support.waiting import SECONDS, wait_until


def test_the_newest_calls_of_all_threads_are_told_again_and_again() -> None:
    is_there, goes_on = threading.Event(), threading.Event()

    def wait_far_away() -> None:
        is_there.set()
        goes_on.wait()

    thread = threading.Thread(target=wait_far_away, daemon=True)
    thread.start()
    is_there.wait()
    with closing(StackServer()) as server:
        for _ in range(3):
            answer = stacks.read(server.path)
            assert " in wait_far_away" in answer
            assert " in test_the_newest_calls_of_all_threads_are_told_again_and_again" in answer
    goes_on.set()
    thread.join()


def is_served() -> bool:
    return any(thread.name == "seqtop-stacks" for thread in threading.enumerate())


def test_a_process_that_has_closed_tells_nothing_and_leaves_nothing() -> None:
    with closing(StackServer()) as server:
        assert is_served()
    with pytest.raises(OSError, match="No such file"):
        stacks.read(server.path)
    assert not Path(server.path).parent.exists()
    wait_until(lambda: not is_served())


def test_one_that_does_not_answer_has_its_time(endpoint: str) -> None:
    path = endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen(1)
        with pytest.raises(TimeoutError):
            stacks.read(path, 0.1)


def test_a_reader_that_does_not_read_stops_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dump is larger than what a socket holds: many threads, each many calls deep."""
    monkeypatch.setattr(stacks, "_SECONDS", 0.1)
    goes_on = threading.Event()

    def wait_deeply(depth: int) -> None:
        if depth:
            wait_deeply(depth - 1)
        else:
            goes_on.wait()

    threads = [threading.Thread(target=wait_deeply, args=(90,), daemon=True) for _ in range(60)]
    for thread in threads:
        thread.start()
    with closing(StackServer()) as server:
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.connect(server.path)
            answer = stacks.read(server.path, SECONDS)
        assert len(answer) > 300_000
        assert "in wait_deeply" in answer
    goes_on.set()
    for thread in threads:
        thread.join()
