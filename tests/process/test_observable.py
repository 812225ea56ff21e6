"""Changes are counted, and callbacks and waiting threads are notified."""

import threading

from seqtop.process.observable import Observable
from tests.support.waiting import SECONDS


def test_each_change_calls_back_after_it_was_counted() -> None:
    observable = Observable()
    versions: list[int] = []

    def note() -> None:
        versions.append(observable.version)

    observable.add_callback(note)
    observable.changed()
    observable.changed()
    observable.remove_callback(note)
    observable.changed()
    assert versions == [1, 2]
    assert observable.version == 3


def test_waiting_ends_with_the_change_that_makes_the_condition_true() -> None:
    observable = Observable()
    results: list[bool] = []

    def wait() -> None:
        results.append(observable.wait_until(lambda: observable.version >= 3, SECONDS))

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(3):
        observable.changed()
    thread.join(SECONDS)
    assert results == [True]


def test_waiting_ends_without_a_change() -> None:
    observable = Observable()
    assert not observable.wait_for_change(observable.version, timeout=0)
    assert observable.wait_for_change(observable.version - 1, timeout=0)
