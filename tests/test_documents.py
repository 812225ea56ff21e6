"""What the documents list is what the programs show."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from seqtop.connection import Connection, ConnectionState
from seqtop.kv_events.cache import KvCache
from seqtop.tui.rendering import cell_map
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.blocks import cells as pool_cells
from seqtop.tui.screens.fleet import cells as fleet_cells
from seqtop.tui.screens.kv import cells, header
from seqtop.tui.screens.kv.ui_state import KvUiState

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def first_cells(text: str) -> list[str]:
    """What the rows of tables begin with."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_the_columns_of_the_fleet() -> None:
    listed = ", ".join(first_cells(section(read("docs/screens.md"), "All engines")))
    for slot in fleet_cells.COLUMNS:
        assert slot.title in listed.replace("Out, In tok/s", "Out tok/s, In tok/s")
    assert "`F`" in first_cells(section(read("README.md"), "Keys"))


def test_the_cells_of_the_block_map() -> None:
    listed = first_cells(section(read("docs/screens.md"), "Blocks"))
    for glyph, _ in (
        pool_cells.FREE,
        pool_cells.CACHED,
        pool_cells.SHARED,
        pool_cells.SWAPPED,
        pool_cells.RESERVED,
        pool_cells.SELECTED,
        pool_cells.SELECTED_SHARED,
    ):
        assert f"`{glyph}`" in listed
    for glyph in cell_map._REVERSED.values():
        assert f"`{glyph}`" in listed


def test_the_cells_and_figures_of_a_prefix_cache() -> None:
    page = read("docs/kv-events.md")
    for _, glyph, words in re.findall(r"((\S) (.+?))(?:  |$)", text_of(cells.legend(200)).strip()):
        assert words in page or words == "prefix tree", words
        assert glyph == "A" or f"| `{glyph}` |" in page
    assert "| `■` |" in page
    cache = KvCache(max_blocks=1)
    cache.num_batches = 1
    source = SimpleNamespace(connection=Connection("tcp://127.0.0.1:1", ConnectionState.LIVE))
    shown = text_of(
        header.totals(cast(KvUiState, SimpleNamespace(cache=cache, source=source)), 200)
    )
    figures = [name.strip() for name in re.findall(r"([a-z ]+) \d", shown)]
    assert "cleared" in figures
    listed = ", ".join(first_cells(page)).split(", ")
    assert set(figures) <= set(listed)


def test_the_readme_s_commands_export_the_newest_recording(recording: str, tmp_path: Path) -> None:
    for number, name in enumerate(("seqtop-old.seqtop", "seqtop-new.seqtop")):
        shutil.copy(recording, tmp_path / name)
        os.utime(tmp_path / name, (number, number))
    tour = read("README.md").split("**Record it.**")[1]
    lines = re.findall(r"^\$ (.*)$", tour.split("```")[1], re.MULTILINE)
    assert lines[0] == ". .venv/bin/activate"
    assert lines[-1].startswith('seqtop replay "$run"'), "needs a terminal"
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    script = "\n".join(lines[1:-1])
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, env=environment, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "seqtop-old.seqtop",
        "seqtop-new.seqtop",
        "seqtop-new.seqtop.json",
        "seqtop-new.seqtop.csv",
    }
