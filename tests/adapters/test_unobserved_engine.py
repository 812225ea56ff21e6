"""Engines that no adapter can observe: their viewers are told why."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.attachment import Attachment, UnsupportedEngineError
from seqtop.adapters.sglang import attach as sglang
from seqtop.adapters.transformers import hook as transformers
from seqtop.adapters.vllm import attach as vllm
from seqtop.adapters.vllm.engine_description import Layout
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.observed_engine import an_engine_started
from tests.support.waiting import SECONDS

ADAPTERS: dict[ModuleType, tuple[Callable[..., Attachment], list[Any], Any]] = {
    vllm: (vllm.attachment_of, [None], (an_engine_started(), Layout())),
    sglang: (sglang.attachment_of, [None], an_engine_started()),
    transformers: (
        transformers.attachment_of,
        [None, SimpleNamespace(cache=None)],
        an_engine_started(),
    ),
}
"""By adapter, how it attaches, to what, and its description of the engine."""
REASON = "it cannot be observed, as it has no scheduler"


def refuse(_engine: object) -> None:
    raise UnsupportedEngineError(REASON)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_viewers_are_told_why(
    adapter: ModuleType, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment_of, engine, description = ADAPTERS[adapter]
    monkeypatch.setattr(adapter, "probe", refuse)
    monkeypatch.setattr(adapter, "describe", lambda *_: description)
    monkeypatch.setattr(adapter, "Blocks", lambda _cache: None, raising=False)
    attachment = attachment_of(*engine, PublisherSettings(bind=endpoint))
    attachment.attach()
    with Session(endpoint) as session:
        session.await_engine(SECONDS)
        assert session.state.info is not None
        assert session.state.info.not_available == {"requests": REASON}
        attachment.close("the test ends")
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_engine_that_cannot_even_be_described_is_not_published(
    adapter: ModuleType, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attachment_of, engine, _ = ADAPTERS[adapter]
    monkeypatch.setattr(adapter, "probe", refuse)
    with pytest.raises(UnsupportedEngineError, match=rf"^{REASON}$"):
        attachment_of(*engine, PublisherSettings(bind=endpoint))
