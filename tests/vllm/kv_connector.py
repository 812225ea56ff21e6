"""A KV connector that loads the first part of each prompt, and may hold blocks after the end."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

NUM_LOADED = 32
LOADED: set[str] = set()
"""Requests that the worker will report as loaded in the next step; likewise sent."""
SENT: set[str] = set()
INVALID: set[int] = set()
"""Blocks that the worker will report as not loaded in the next step."""
UNDECIDED: set[str] = set()
"""Requests of which the connector cannot tell yet what it has."""


def forget() -> None:
    """Forgets what the worker has reported."""
    for reported in (LOADED, SENT, INVALID):
        reported.clear()


class LoadingConnector(KVConnectorBase_V1):
    """Loads while requests wait, and holds blocks until they are sent."""

    is_async, holds = True, True

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if request.request_id in UNDECIDED:
            return None, False
        more = NUM_LOADED - num_computed_tokens
        is_loaded = more > 0 and request.num_prompt_tokens > NUM_LOADED
        return (more, self.is_async) if is_loaded else (0, False)

    def update_state_after_alloc(self, *_: Any) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return self.holds, None

    def start_load_kv(self, *_: Any, **__: object) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *_: Any, **__: object) -> None: ...

    def wait_for_save(self) -> None: ...


class ReceivingConnector(LoadingConnector):
    """Holds no blocks after the end."""

    holds = False


class SendingConnector(LoadingConnector):
    """Loads nothing, and holds blocks until they are sent."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False


class WorkingConnector(LoadingConnector):
    """A connector whose worker reports loads and sends after a few calls of `schedule`."""

    NUM_CALLS = 4

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loads: dict[str, int] = {}
        """By request, the calls until it has loaded; likewise until it has sent."""
        self._sends: dict[str, int] = {}
        self._loading: set[str] = set()

    def update_state_after_alloc(self, request: Any, _blocks: Any, num_external: int) -> None:
        if num_external:
            self._loads[request.request_id] = self.NUM_CALLS
            self._loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        self._loading.difference_update(scheduler_output.num_scheduled_tokens)
        for left, reported in (self._loads, LOADED), (self._sends, SENT):
            for request_id in list(left):
                left[request_id] -= 1
                if not left[request_id]:
                    del left[request_id]
                    reported.add(request_id)
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        # vLLM keeps the blocks of one that is aborted while it loads until it has loaded.
        if is_held := self.holds and request.request_id not in self._loading:
            self._sends[request.request_id] = self.NUM_CALLS
        self._loading.discard(request.request_id)
        return is_held, None


class WorkingSender(WorkingConnector):
    """Loads nothing."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False


class BlockingConnector(ReceivingConnector):
    """Loads within the step that computes the rest of the prompt."""

    is_async = False
