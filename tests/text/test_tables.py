"""Tables of the answers of commands: aligned by cells, and safe to print."""

from seqtop.text.tables import plain, table


def test_numbers_are_aligned_right_and_names_left() -> None:
    rows = [("name", "blocks", "share"), ("狐 fox", "1,024", "5%"), ("a", "7", "100%")]
    assert table(rows, left=(0,)) == [
        "name    blocks  share",
        "狐 fox   1,024     5%",
        "a            7   100%",
    ]


def test_cells_that_are_missing_are_empty_and_lines_end_with_their_text() -> None:
    rows = [("time", "share", "charged to"), ("2.46 s", "100%"), ("1 s",), ("2 s", "", "host")]
    assert table(rows, left=(-1,)) == [
        "  time  share  charged to",
        "2.46 s   100%",
        "   1 s",
        "   2 s         host",
    ]
    assert table([]) == []


def test_no_text_leaves_its_cell_or_its_line() -> None:
    lines = table([("id", "n"), ("a\nb\x1b[2J", "1"), ("c", "2")], left=(0,))
    assert len(lines) == 3
    assert lines[0].index("n") == lines[2].index("2")
    assert "\x1b" not in plain([*lines, "\x1b[31m"])
    assert plain(["one\ntwo", "three"]).count("\n") == 1
