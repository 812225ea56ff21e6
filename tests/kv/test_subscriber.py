"""Following KV-cache events over real sockets: holes, restarts, garbage, lost connections."""

import pytest

from seqtop.kv import json_document
from seqtop.kv.session import KvSession
from seqtop.transport.connection import ConnectionState, UnreachableError
from tests.support.kv_publisher import KvPublisher, batch, cleared, hashes, removed, stored
from tests.support.waiting import wait_until


@pytest.mark.parametrize("as_map", [False, True])
@pytest.mark.parametrize("names", [[1, 2, 3], [b"1" * 32, b"2" * 32, b"3" * 32]])
def test_following_from_the_start(
    endpoints: tuple[str, str], names: list[int | bytes], as_map: bool
) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.send(stored(names, as_map=as_map, medium="GPU"), as_map=as_map)
        publisher.send(removed(names[2:], as_map=as_map, medium="GPU"), as_map=as_map)
        wait_until(lambda: session.cache.num_batches == 2)
        assert hashes(session) == set(names[:2])
        assert session.connection.state is ConnectionState.LIVE
        assert session.cache.gap == ""


def test_joining_late_without_replay_is_a_gap_until_all_is_cleared(
    endpoints: tuple[str, str],
) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.send(stored([1]), lose=True)
        publisher.send(stored([2], 1))
        wait_until(lambda: session.cache.num_batches == 1)
        assert "before the first message received" in session.cache.gap
        publisher.send(cleared())
        wait_until(lambda: session.cache.num_cleared == 1)
        assert session.cache.gap == ""
        assert hashes(session) == set()


@pytest.mark.parametrize("replays_topic", [True, False])
def test_joining_late_with_replay_shows_everything(
    endpoints: tuple[str, str], replays_topic: bool
) -> None:
    with KvPublisher(*endpoints, topic=b"kv", replays_topic=replays_topic) as publisher:
        publisher.send(stored([1, 2]))
        publisher.send(removed([2]))
        with KvSession(endpoints[0], replay=endpoints[1], topic="kv") as session:
            publisher.await_viewer()
            publisher.send(stored([3], 1))  # live, and in the answer, too
            assert publisher.answer() == 0
            publisher.send(stored([4], 3))
            wait_until(lambda: session.cache.num_batches == 4)
            assert hashes(session) == {1, 3, 4}
            assert (session.cache.gap, session.connection.num_missed) == ("", 0)
            assert session.connection.state is ConnectionState.LIVE


def test_restart_among_messages_that_repeat_the_replay(endpoints: tuple[str, str]) -> None:
    with KvPublisher(*endpoints) as publisher:
        for number in range(10):
            publisher.send(stored([number]))
        with KvSession(endpoints[0], replay=endpoints[1]) as session:
            publisher.await_viewer()
            publisher.answer()
            wait_until(lambda: session.cache.num_batches == 10)
            publisher.next_number = 5
            publisher.send(stored([5]))  # it was on its way during the replay
            publisher.kept, publisher.next_number = [], 3
            publisher.send(stored([77]))
            assert publisher.answer() == 0
            wait_until(lambda: hashes(session) == {77})


def test_message_that_the_replay_lacks_is_asked_for_once(endpoints: tuple[str, str]) -> None:
    with (
        KvPublisher(*endpoints) as publisher,
        KvSession(endpoints[0], replay=endpoints[1]) as viewer,
    ):
        publisher.await_viewer()
        publisher.answer()
        wait_until(lambda: viewer.connection.state is ConnectionState.LIVE)
        publisher.send(stored([1]))
        publisher.send(stored([2], 1), lose=True)
        publisher.send(stored([3], 2))
        publisher.kept = []
        assert publisher.answer() == 1
        wait_until(lambda: viewer.cache.num_batches == 2)
        wait_until(lambda: viewer.connection.state is ConnectionState.LIVE)
        assert (viewer.connection.num_missed, viewer.connection.num_resyncs) == (1, 1)
        assert "1 message" in viewer.cache.gap


def test_messages_before_a_lost_connection_are_shown_before_it_is(
    endpoints: tuple[str, str],
) -> None:
    num, shown = 900, list[int]()  # more than are received at once
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        session.add_callback(
            lambda: (
                session.connection.state is ConnectionState.LOST
                and shown.append(session.cache.num_batches)
            )
        )
        with session.lock:  # while it waits, it handles nothing
            for number in range(num):
                publisher.send(stored([number]))
            publisher.close()
        wait_until(lambda: shown)
    assert shown[0] == num


def test_a_hole_without_replay_is_counted_and_said(endpoints: tuple[str, str]) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.send(stored([1]))
        publisher.send(stored([2], 1), lose=True)
        publisher.send(stored([3], 2))
        wait_until(lambda: session.cache.num_batches == 2)
        assert session.connection.num_missed == 1
        assert "1 message" in session.cache.gap


def test_numbers_that_leap_are_counted_to_a_sensible_end(endpoints: tuple[str, str]) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        for _ in range(3):
            publisher.send(stored([1]))
            publisher.next_number = 2**63 - 1
            publisher.send(stored([2]))
            publisher.next_number = 0
        wait_until(lambda: session.cache.num_batches == 6)
        assert session.connection.num_missed == 2**53
        document = json_document.document(session.cache, session.connection)
        assert document.complete is False


def test_an_engine_that_is_restarted_is_noticed_by_its_numbers(endpoints: tuple[str, str]) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.send(stored([1, 2]))
        publisher.send(stored([3], 2))
        wait_until(lambda: session.cache.num_batches == 2)
        publisher.next_number = 0
        publisher.send(stored([7]))
        wait_until(lambda: session.cache.num_batches == 3)
        assert hashes(session) == {7}
        assert session.cache.gap == ""
        assert session.connection.num_resyncs == 1


@pytest.mark.parametrize("same", [True, False])
def test_after_a_lost_connection_replay_tells_whether_it_is_the_same_engine(
    endpoints: tuple[str, str], same: bool
) -> None:
    with KvSession(endpoints[0], replay=endpoints[1]) as session:
        with KvPublisher(*endpoints) as publisher:
            publisher.await_viewer()
            publisher.answer()
            wait_until(lambda: session.connection.state is ConnectionState.LIVE)
            publisher.send(stored([1]))
            publisher.send(stored([2], 1))
            wait_until(lambda: session.cache.num_batches == 2)
            kept = publisher.kept
        wait_until(lambda: session.connection.state is ConnectionState.LOST)
        assert hashes(session) == {1, 2}, "what is old is shown, under its badge"
        with KvPublisher(*endpoints) as publisher:
            if same:
                publisher.kept, publisher.next_number = kept, 2
            else:
                publisher.send(stored([8]))
                publisher.send(stored([9], 8))
            publisher.send(stored([10], 9))
            publisher.await_viewer()
            assert publisher.answer() == 1
            if not same:
                assert publisher.answer() == 0
            wait_until(lambda: session.connection.state is ConnectionState.LIVE)
            assert hashes(session) == ({1, 2, 10} if same else {8, 9, 10})
            assert (session.cache.gap, session.connection.num_missed) == ("", 0)


def test_garbage_is_counted_named_and_a_gap(endpoints: tuple[str, str]) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.send(stored([1]))
        publisher.send(stored([2], size=-1))
        publisher.live.send_multipart([b"what", b"is", b"this"])
        publisher.live.send_multipart([b"kv@another", bytes(8), batch()])
        publisher.live.send_multipart([b"", b"\xff" * 8, batch()])
        publisher.send(stored([3], 1))
        wait_until(lambda: session.cache.num_batches == 2)
        assert hashes(session) == {1, 3}
        assert session.connection.num_errors == 4
        assert session.connection.num_missed == 1
        assert "message 1 could not be read" in session.cache.gap
        assert session.connection.state is ConnectionState.LIVE


def test_another_kind_of_stream_is_called_one(endpoints: tuple[str, str]) -> None:
    with KvPublisher(endpoints[0]) as publisher, KvSession(endpoints[0]) as session:
        publisher.await_viewer()
        publisher.live.send_multipart([b"seqtop/1/abc", bytes(8), b"", b"sum"])
        wait_until(lambda: session.connection.state is ConnectionState.INCOMPATIBLE)
        with pytest.raises(UnreachableError, match="without --kv-events"):
            session.await_publisher(10)


def test_nobody_there(endpoints: tuple[str, str]) -> None:
    with (
        KvSession(endpoints[0]) as session,
        pytest.raises(UnreachableError, match="no event from"),
    ):
        session.await_publisher(0.05)
