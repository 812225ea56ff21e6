"""A session that has ended, and engines that are restarted."""

import weakref

import pytest

from seqtop.kv.session import KvSession
from tests.support.kv_publisher import KvPublisher, stored
from tests.support.waiting import wait_until


@pytest.mark.usefixtures("collector_off")
def test_a_session_that_is_over_leaves_nothing_behind(endpoints: tuple[str, str]) -> None:
    def followed() -> weakref.ref[KvSession]:
        with KvPublisher(*endpoints) as publisher, KvSession(endpoints[0]) as session:
            publisher.await_viewer()
            publisher.send(stored([1]))
            wait_until(lambda: session.cache.num_batches == 1)
            return weakref.ref(session)

    assert followed()() is None
