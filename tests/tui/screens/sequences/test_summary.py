"""The sentence about the selected sequence."""

import pytest

from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.summary import Link, Summary, links
from tests.support.piloting import Pilot, play, screen, words


def _click(pilot: Pilot, text: str) -> None:
    """Click on a text of the sentence."""
    region = pilot.app.screen.query_one(Summary).region
    for y, line in enumerate(screen(pilot.app).splitlines()):
        at = line.find(text, region.x)
        if y in region.line_range and at >= 0:
            pilot.click(offset=(at + len(text) // 2, y))
            return
    raise AssertionError(f"{text!r} is not in the sentence:\n{screen(pilot.app)}")


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("at step 1,069 to make room for a-3; 50 lost", [(3, 13, 1069, ""), (31, 34, None, "a-3")]),
        ("behind a-3, a.b: and (a-3). step", [(7, 10, None, "a-3"), (12, 15, None, "a.b"),
                                              (22, 25, None, "a-3")]),
        ("for step 9,999,999,999 and step " + "9" * 5_000, [(4, 22, 9_999_999_999, "")]),
        ("20 steps for xa-3 in footstep 4", []),
    ],
)  # fmt: skip
def test_the_steps_and_requests_that_a_sentence_names(
    sentence: str, found: list[tuple[int, int, int | None, str]]
) -> None:
    assert list(links(sentence, {"a-3", "a.b"})) == [Link(*link) for link in found]


@pytest.mark.parametrize("size", [(100, 40), (160, 50)])
def test_a_click_on_a_request_selects_it_and_one_on_a_step_goes_there(
    app: SeqtopApp, size: tuple[int, int]
) -> None:
    with play(app, size) as pilot:
        app.ui.select(next(iter(app.ui.state.requests["req-7"].seq_ids)))
        pilot.press("slash", *"req-7", "enter")
        assert "at step 34 to make room for req-6" in words(app)
        _click(pilot, "step ")
        assert app.ui.paused
        assert app.ui.state.step == 34
        _click(pilot, "req-6")
        selection = app.ui.selection
        assert selection is not None
        assert selection[0].request_id == "req-6"
        assert app.ui.view.filter.source == ""  # it would hide the request
