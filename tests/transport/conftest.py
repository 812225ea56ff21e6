"""An engine that publishes nothing by itself."""

from collections.abc import Iterator

import pytest

from seqtop.state import EngineState
from seqtop.transport.publisher import MessagePublisher
from tests.support.events import engine_info


@pytest.fixture
def engine(endpoint: str) -> Iterator[MessagePublisher]:
    with MessagePublisher(endpoint, engine_info(control=True), EngineState()) as running:
        yield running
