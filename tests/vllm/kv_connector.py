"""A KV connector that loads the first part of each prompt, and holds blocks after the end."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorBase_V1
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata

NUM_LOADED = 32
LOADED: set[str] = set()
"""Requests that the worker will report as loaded in the next step; likewise sent."""
SENT: set[str] = set()


class LoadingConnector(KVConnectorBase_V1):
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        more = NUM_LOADED - num_computed_tokens
        return (more, True) if more > 0 and request.num_prompt_tokens > NUM_LOADED else (0, False)

    def update_state_after_alloc(self, *_: Any) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return True, None

    def start_load_kv(self, *_: Any, **__: object) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *_: Any, **__: object) -> None: ...

    def wait_for_save(self) -> None: ...
