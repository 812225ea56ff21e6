"""Damage of a recording, and steps that it lacks, are named."""

import json
from pathlib import Path

import pytest

from seqtop.cli.main import main
from seqtop.live.playback import Playback
from tests.support.broken_recordings import damage


@pytest.mark.parametrize("form", ["--text", "--json"])
def test_show_says_what_is_lost(
    form: str, pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(pieces, "cut")
    assert main(["show", str(pieces), form]) == 0
    said = capsys.readouterr()
    assert "was cut short or is damaged: its last" in said.err
    if form == "--json":
        assert said.err == f"seqtop: {json.loads(said.out)['connection']['detail']}\n"


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("2", ""),
        ("999999", "seqtop: step 999,999 is not recorded; this is step 5\n"),
        ("-7", "seqtop: step -7 is not recorded; this is the state before the first step\n"),
    ],
)
def test_show_says_which_step_it_shows_instead(
    wanted: str, sentence: str, pieces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(pieces), "--at", wanted]) == 0
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("options", "is_at_the_end", "is_paused"),
    [([], True, True), (["--play"], False, False), (["--at", "2"], False, True)],
)
def test_a_recording_opens_paused_at_its_end_unless_it_shall_play(
    options: list[str],
    is_at_the_end: bool,
    is_paused: bool,
    pieces: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Playback] = []
    monkeypatch.setattr("seqtop.cli.replay.run_app", lambda *those: shown.extend(those[0]) or 0)
    assert main([str(pieces), *options]) == 0
    (playback,) = shown
    assert (playback.first_position == playback.history.last) == is_at_the_end
    assert playback.starts_paused == is_paused


def test_replay_says_which_step_it_begins_at_instead(
    pieces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices: list[object] = []
    monkeypatch.setattr("seqtop.cli.replay.run_app", lambda *those: notices.append(those[2]) or 0)
    assert main(["replay", str(pieces), "--at", "2"]) == 0
    assert main(["replay", str(pieces), "--at", "1000"]) == 0
    assert main(["replay", str(pieces), "--select", "nobody"]) == 0
    assert notices == [
        [],
        ["Step 1,000 is not recorded; this is step 5."],
        ["nobody is not here yet; it is selected when it arrives."],
    ]
