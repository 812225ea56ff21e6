"""Names of sequences in few cells."""

import pytest

from seqtop.tui.rendering.sequence_label import shared_head, shortened


@pytest.mark.parametrize(
    ("name", "room", "shown"),
    [
        ("chatcmpl-9f3ab2c4d1e0", 14, "…9f3ab2c4d1e0"),
        ("chatcmpl-9f3ab2c4d1e0", 8, "…9f3ab…0"),
        ("chatcmpl-7c11e2c4d1e0", 8, "…7c11e…0"),
        ("cmpl-8d41f0aa9b2c-0", 12, "…8d41f0aa9…0"),
        ("resp_1b2c3d4e5f", 9, "…1b2c3d4…"),
        ("summarize-these-12", 12, "summarize…12"),
        ("chatcmpl-9f3ab2c4d1e0", 2, "…0"),
    ],
)
def test_a_head_that_ids_share_is_left_out_before_the_rest(
    name: str, room: int, shown: str
) -> None:
    assert shortened(name, room) == shown


@pytest.mark.parametrize(
    ("names", "rest"),
    [
        (["chatcmpl-3fab01", "chatcmpl-3fcd02"], "3fab01"),
        (["bench-serving-request-100", "bench-serving-request-101"], "100"),
        (["cmpl-0a1b2c3d4e5f-0", "cmpl-0a1b2c3d4e5f-1"], "0"),
        (["user_1/conversation_7", "user_1/conversation_8"], "7"),
        (["a-very-long-name-1", "another-long-name"], "a-very-long-name-1"),
        (["req-1", "req-2"], "req-1"),
        (["a-very-long-name-of-one"], "a-very-long-name-of-one"),
        (["same-long-name-1", "same-long-name-1"], "same-long-name-1"),
    ],
)
def test_the_head_that_names_share_is_cut(names: list[str], rest: str) -> None:
    assert names[0][shared_head(names, 10) :] == rest
