"""What is written where the encoding is not Unicode."""

import io

import pytest
from rich.cells import cell_len

from seqtop.ascii_output import ascii_form, replace_unencodable
from seqtop.tui.screens.blocks import cells


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("plain", "plain"),
        ("a … b · c", "a ~ b . c"),
        ("━━━╸ ├─┬╷ │", "===- +-+| |"),
        ("┃ ┼ ╭╮ ┊ ╌", "| + ++ | -"),
        ("▁▂▃▄▅▆▇█▌", "_.:-=+*##"),
        ("Zoë café ½ ﬁ", "Zoe cafe ? ?"),
        ("Ａ猫が", "??????"),
        ("e\u0301", "e"),
        ("\ufffd\U0001f600", "???"),
    ],
)
def test_a_form_takes_as_many_cells(text: str, form: str) -> None:
    assert ascii_form(text) == form
    assert cell_len(form) == cell_len(text)


def test_the_signs_of_the_block_map_differ() -> None:
    signs = (
        cells.FREE,
        cells.CACHED,
        cells.SHARED,
        cells.SWAPPED,
        cells.RESERVED,
        cells.SELECTED,
        cells.SELECTED_SHARED,
    )
    forms = {ascii_form(sign) for sign, _ in signs}
    assert len(forms) == len(signs)
    assert not forms.intersection(cells.LETTERS), "letters are owners"


@pytest.mark.parametrize(
    ("encoding", "written"),
    [
        ("ascii", b"cafe ~"),
        ("latin-1", b"caf\xe9 ~"),
        ("utf-8", "café …".encode()),
        ("utf-16-le", "café …".encode("utf-16-le")),
    ],
)
def test_only_what_an_encoding_lacks_is_replaced(encoding: str, written: bytes) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    replace_unencodable(stream, io.StringIO())
    stream.write("café …")
    stream.flush()
    assert raw.getvalue() == written
