"""Output in an encoding that is not Unicode."""

import ast
import io
import itertools
from pathlib import Path

import pytest
from rich.cells import cell_len

import seqtop
from seqtop.text.ascii_output import ascii_form, replace_unencodable, use_ascii
from seqtop.tui.rendering import owner_marks
from seqtop.tui.screens.blocks import cells


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("plain", "plain"),
        ("a … b · c", "a ~ b . c"),
        ("━━━╸ ├─┬╷ │", "===- +-+| |"),
        ("┃ ┼ ╭╮ ┊ ╌", "| + ++ | -"),
        ("▁▂▃▄▅▆▇█▌▐", "_.:-=+*#>#"),
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
        owner_marks.SELECTED,
        cells.SELECTED_SHARED,
    )
    forms = {ascii_form(sign) for sign, _ in signs}
    assert len(forms) == len(signs)
    assert not forms.intersection(owner_marks.LETTERS), "letters are owners"


def test_every_sign_that_the_app_draws_has_a_form() -> None:
    drawn: set[str] = set()
    root = Path(seqtop.__file__).parent
    for path in itertools.chain(root.glob("tui/**/*.py"), root.glob("kv/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                drawn.update(node.value)
    assert "━" in drawn
    assert [sign for sign in sorted(drawn) if "?" in ascii_form(sign)] == ["?"]


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


def test_a_unicode_stream_can_be_told_to_write_ascii() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8")
    stream.write("…")
    use_ascii(stream)
    stream.write("café ━")
    stream.flush()
    assert raw.getvalue() == "…".encode() + b"cafe ="
