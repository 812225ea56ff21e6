"""Replies of the replay socket."""

import pytest

from seqtop.kv.session import KvSession
from seqtop.transport.connection import ConnectionState
from tests.support.kv_publisher import KvPublisher, hashes, removed, stored
from tests.support.waiting import wait_until


def test_a_hole_is_filled_by_replay(endpoints: tuple[str, str]) -> None:
    with (
        KvPublisher(*endpoints) as publisher,
        KvSession(endpoints[0], replay=endpoints[1]) as session,
    ):
        publisher.await_viewer()
        publisher.answer()
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)
        publisher.send(stored([1]))
        publisher.send(stored([2], 1), lose=True)
        publisher.send(removed([1]), lose=True)
        publisher.send(stored([3], 2))
        publisher.send(stored([4], 3))
        assert publisher.answer() == 1
        wait_until(lambda: session.cache.num_batches == 5)
        assert hashes(session) == {2, 3, 4}
        assert (session.cache.gap, session.connection.num_missed) == ("", 0)
        assert session.connection.num_resyncs == 1


def test_a_hole_that_replay_cannot_fill_is_counted_and_said(endpoints: tuple[str, str]) -> None:
    with (
        KvPublisher(*endpoints) as publisher,
        KvSession(endpoints[0], replay=endpoints[1]) as session,
    ):
        publisher.await_viewer()
        publisher.answer()
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)
        publisher.send(stored([1]))
        for number in range(2, 6):
            publisher.send(stored([number], number - 1), lose=True)
        publisher.send(stored([6], 5))
        publisher.kept = publisher.kept[-2:]  # 4 and 5; 1 to 3 are gone for good
        publisher.answer()
        wait_until(lambda: session.cache.num_batches == 3)
        assert hashes(session) == {1, 5, 6}
        assert session.connection.num_missed == 3
        assert "3 messages before number 4" in session.cache.gap
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)


def test_a_replay_that_does_not_answer_is_given_up(
    endpoints: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.kv.replay_client.SILENCE_SECONDS", 0.05)
    with (
        KvPublisher(endpoints[0]) as publisher,
        KvSession(endpoints[0], replay=endpoints[1]) as session,
    ):
        publisher.await_viewer()
        publisher.send(stored([1]))
        wait_until(
            lambda: session.connection.state is ConnectionState.LIVE and session.cache.blocks
        )
        assert hashes(session) == {1}
        assert "does not answer" in session.cache.gap
        assert session.connection.num_errors == 1
