"""Every code point that a message can have, through each output: nothing invisible gets through.

Of unassigned and private ones, and of letters without case, the suite takes one of fifty.
"""

import copy
import html
import json
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from seqtop.export import json_document, text
from seqtop.export.report import contents, page
from seqtop.history import FileStore
from seqtop.state import EngineState
from seqtop.state.fields import FIELDS
from seqtop.state.slo import Slo
from seqtop.text.invisible import DEFAULT_IGNORABLE, FORMAT
from seqtop.text.sanitize import MAX_LINE, safe_text
from seqtop.transport.connection import Connection
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences import cells
from tests.support.events import arrival, engine_info
from tests.support.greedy_runs import record_run

_INVISIBLE = {
    chr(code) for first, last in DEFAULT_IGNORABLE + FORMAT for code in range(first, last + 1)
}
_CONTROLS = {*map(chr, (*range(10), *range(11, 32), *range(127, 160)))}
_LENGTH = MAX_LINE // 11
"""Code points of a prompt, each after a letter, so that a mark is drawn on one."""
_WIDTH = 11 * _LENGTH
"""Cells of a prompt of escapes."""


def _prompts(share: int) -> Iterator[str]:
    """Yields texts of all code points; of those that are very many, one of `share`."""
    scalars = [
        chr(code)
        for code in range(0x110000)
        if not 0xD800 <= code <= 0xDFFF
        and (
            code % share == 0
            or chr(code) in _INVISIBLE
            or unicodedata.category(chr(code)) not in {"Cn", "Co", "Lo"}
        )
    ]
    for start in range(0, len(scalars), _LENGTH):
        yield "".join(f"a{character}" for character in scalars[start : start + _LENGTH])


@pytest.fixture(
    scope="module",
    params=[50, pytest.param(1, marks=pytest.mark.release("two minutes"))],
    ids=["one of fifty", "all"],
)
def shown(request: pytest.FixtureRequest) -> dict[str, str]:
    """Prompts that have every code point, and each as it is to be drawn."""
    return {prompt: safe_text(prompt) for prompt in _prompts(request.param)}


@pytest.fixture(scope="module")
def state(shown: dict[str, str]) -> EngineState:
    state = EngineState()
    state.apply(engine_info())
    for number, prompt in enumerate(shown):
        event = arrival(number)
        event.prompt = prompt
        state.apply(event)
    return state


def is_visible(output: str) -> bool:
    return not {*output} & (_INVISIBLE | _CONTROLS)


def test_text(state: EngineState, shown: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(_WIDTH))
    output = text.table(state, columns=["prompt_text"])
    _, *lines = output.split("\n")
    assert lines == [line.rstrip() for line in shown.values()]
    assert is_visible(output)


def test_json(state: EngineState, shown: dict[str, str]) -> None:
    output = json_document.encode(state, Connection("ipc:///run/demo")).decode()
    assert [request["prompt"] for request in json.loads(output)["requests"]] == [*shown]
    assert is_visible(output)


def test_html(shown: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    record_run(path, num_requests=1)
    with FileStore(path) as recording:
        run = contents.read(recording, Slo())
    (one,) = run.slowest
    run.slowest.clear()
    for prompt in shown:
        slow = copy.deepcopy(one)
        slow.lifecycle.request.prompt = prompt
        run.slowest.append(slow)
    output = "".join(page.write([run], with_text=True))
    assert is_visible(output)
    output = html.unescape(output)
    assert [prompt for prompt in shown if safe_text(prompt, newline="\n") not in output] == []


def test_cells_of_the_app(state: EngineState, shown: dict[str, str]) -> None:
    column = replace(FIELDS["prompt_text"], width=_WIDTH)
    for request, line in zip(state.requests.values(), shown.values(), strict=True):
        cell = plain(cells.row((column,), request, state.sequences[request.seq_ids[0]], 0.0))
        assert cell.rstrip() == line.rstrip()
        assert is_visible(cell)
