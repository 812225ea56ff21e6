"""LoRA requests."""

import pytest

from seqtop.sequence import LoRARequest, SequenceError


def test_requests_with_the_same_name_are_equal() -> None:
    lora = LoRARequest("lora", 3, "/lora")
    assert LoRARequest("lora", 7, "/elsewhere") == lora
    assert len({lora, LoRARequest("lora", 7, "/elsewhere"), LoRARequest("b", 3, "/lora")}) == 2


def test_the_former_name_of_the_path_is_accepted() -> None:
    assert LoRARequest("old", 1, lora_local_path="/local").path == "/local"
    assert LoRARequest("both", 1, "/new", "/local").path == "/new"


def test_a_request_without_a_path_is_refused() -> None:
    with pytest.raises(SequenceError, match="lora_path"):
        LoRARequest("none", 1)
