"""Searching without hiding, copying, and a detail pane of the size one likes."""

import base64
import json
import random
import re

import pytest
from textual.pilot import Pilot

from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.fields import FIELDS
from seqtop.state.filter import parse
from seqtop.state.ordering import SequenceView, Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import highlighted, line_width, plain
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.settings import SavedState
from tests.support.piloting import play, screen, until
from tests.support.scripted import HOSTILE, MIXED, Script, ScriptedSource


def test_a_search_hides_nothing_and_is_gone_through(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        total = len(app.ui.view)

        def at() -> str:
            assert app.ui.selection is not None
            return app.ui.selection[0].request_id

        await pilot.press("m")
        assert app._notifications
        await pilot.press("backslash", *"done", "enter")
        await pilot.pause()
        assert len(app.ui.view) == total
        assert at() == "done-3"
        assert "1 of 4" in screen(app)
        await pilot.press("m", "m", "m")
        assert at() == "done-4"
        assert "4 of 4" in screen(app)
        await pilot.press("m")
        assert at() == "done-3"
        await pilot.press("M")
        assert at() == "done-4"
        await pilot.press("g")
        await pilot.pause()
        assert "0 of 4" in screen(app)
        await pilot.press("escape")
        assert "of 4" not in screen(app)
        await pilot.press("backslash", *"promt>1")
        assert "no field 'promt': perhaps prompt." in screen(app)
        await pilot.press("escape")

    play(app, act, (100, 30))


def test_what_is_found_is_highlighted(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("backslash", *"eq-1", "enter")
        await pilot.pause()
        ink = app.screen.get_component_rich_style("style--match", partial=True)
        strips = app.screen._compositor.render_strips()
        found = [
            segment.text
            for strip in strips
            for segment in strip
            if segment.style and segment.style.bgcolor == ink.bgcolor and segment.style.underline
        ]
        assert found == ["eq-1", "eq-1"]  # req-1 and req-10

    play(app, act, (100, 30))


@pytest.mark.parametrize("text", [HOSTILE.replace("\ud800", ""), MIXED, "plain words, plain"])
@pytest.mark.parametrize("pattern", ["plain", "o", "", "[a-z]+", "nowhere", "שלום"])
def test_marking_changes_no_cell(text: str, pattern: str) -> None:
    line = ((" ", ""), (text[:9], "dim"), (text[9:], ""))
    done = highlighted(line, [re.compile(pattern)])
    assert plain(done) == plain(line)
    assert line_width(done) == line_width(line)
    assert {ink for _, ink in done} <= {"", "dim", "match"}
    if pattern == "plain" and text.startswith("plain"):
        assert [part for part, ink in done if ink == "match"] == ["plain", "plain"]


def test_updates_keep_the_hits_that_a_new_search_finds() -> None:
    chance = random.Random(2)
    state = EngineState()
    kept = SequenceView()
    kept.sort = Sort("out")
    kept.rebuild(state)
    kept.search(state, parse("text:x"))
    for seq_id in range(60):
        name = f"r{seq_id}"
        state.requests[name] = RequestState(name, RequestMetrics(0, 0, None, None, None), [seq_id])
        state.sequences[seq_id] = SequenceState(seq_id, name)
        touched = {seq_id, *chance.sample(sorted(state.sequences), min(seq_id, 3))}
        for each in touched:
            state.sequences[each].text = chance.choice("xyz")
            state.sequences[each].output_token_ids = [0] * chance.randrange(3)
        if seq_id > 20:
            gone = min(state.sequences)
            del state.requests[state.sequences.pop(gone).request_id]
            touched.add(gone)
        kept.update(state, touched)
        rows = kept.page(0, len(kept))
        hits = [each for each in rows if state.sequences[each].text == "x"]
        assert [each for each in rows if kept.is_hit(each)] == hits
        assert [kept.hit_place(each) for each in hits] == [
            (place, len(hits)) for place in range(1, len(hits) + 1)
        ]
        for row, each in enumerate(rows):
            after = [hit for hit in hits if rows.index(hit) > row]
            before = [hit for hit in hits if rows.index(hit) < row]
            if hits:
                assert kept.next_hit(each, 1) == (after or hits)[0]
                assert kept.next_hit(each, -1) == (before or hits)[-1]


@pytest.mark.parametrize("key", ["t", "r", "j"])
def test_copying(key: str) -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("mine", pieces=[HOSTILE])
    script.step(prefill={"mine": 40})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        written: list[str] = []
        driver = app._driver
        assert driver is not None
        driver.write = written.append  # type: ignore[method-assign]
        await pilot.press("y", "escape", "y", key)
        await until(pilot, lambda: any("\x1b]52;c;" in each for each in written))
        (sent,) = [each for each in written if "\x1b]52;c;" in each]
        text = base64.b64decode(sent.split(";")[2].rstrip("\a")).decode()
        if key == "t":
            assert text == HOSTILE.replace("\ud800", "?")
        elif key == "r":
            assert text == "mine"
        else:
            row = json.loads(text)
            assert row.keys() == FIELDS.keys()
            assert (row["request"], row["status"], row["out"]) == ("mine", "running", 1)
        await until(pilot, lambda: any("Copied the" in each.message for each in app._notifications))

    play(app, act, (80, 24))


@pytest.mark.parametrize(("size", "side"), [((100, 40), "height"), ((200, 40), "width")])
def test_the_detail_pane_has_the_size_one_likes(
    source: ScriptedSource, tmp_path: object, size: tuple[int, int], side: str
) -> None:
    memory = SavedState(tmp_path / "remembered.json")  # type: ignore[operator]
    app = SeqtopApp(source, saved_state=memory)

    async def act(pilot: Pilot[int]) -> None:
        detail = app.screen.query_one(Detail)

        def extent() -> int:
            return int(getattr(detail.outer_size, side))

        before = extent()
        await pilot.press(*["plus", "equals_sign"] * 2)
        await pilot.pause()
        larger = extent()
        assert larger > before
        await pilot.press(*["minus"] * 20)
        await pilot.pause()
        assert extent() < larger
        assert memory.settings.detail_share == 20
        await pilot.press("d", "plus")
        assert memory.settings.detail_share == 20

    play(app, act, size)


def test_copying_nothing_says_so() -> None:
    source = ScriptedSource()
    Script(source)
    app = SeqtopApp(source)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("y")
        assert [each.message for each in app._notifications] == ["No sequence is selected."]

    play(app, act, (80, 24))
