"""Settings: from the command line, the file, and the saved state; none can break the app."""

import json
import os
from pathlib import Path

import pytest

from seqtop.cli import main
from seqtop.state.fields import DEFAULT_COLUMNS, FIELDS
from seqtop.state.ordering import Sort
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.sequences.detail import Detail
from seqtop.tui.settings import (
    SavedState,
    Settings,
    SettingsError,
    parse_columns,
    parse_sort,
    read,
    sort_text,
)
from tests.support.piloting import notices, play, rows, screen, words
from tests.support.scripted import ScriptedSource


def titles(app: SeqtopApp) -> list[str]:
    line = next(line for line in rows(app) if line.startswith(" Request"))
    return line.replace("▼", " ").replace("▲", " ").split()


def test_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('columns = ["request", "e2e"]\nsort = "-ttft"\ntree = false\ntheme = "nord"\n')
    settings, problems = read(path)
    assert problems == []
    assert settings == Settings(columns=("request", "e2e"), sort="-ttft", tree=False, theme="nord")
    assert read(tmp_path / "none") == (Settings(), [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('colums = ["request"]', "no setting 'colums': perhaps columns."),
        ('columns = ["request", "ttf"]', "columns: no column 'ttf': perhaps ttft."),
        ('columns = "request"', "columns: expected `array | null`, got `str`."),
        ("columns = []", "columns: name at least one column, such as request,seq,status."),
        ('sort = "size"', "sort: cannot sort by 'size': there are lifecycle, request,"),
        ('sort = "outt"', "sort: cannot sort by 'outt': perhaps out."),
        ('filter = "promt>5"', "filter: no field 'promt': perhaps prompt."),
        ('theme = "seqtop-ligth"', "theme: no theme 'seqtop-ligth': perhaps seqtop-light."),
        ("[checks]\nthrash = 3", "checks: no threshold 'thrash': there are no_progress_steps,"),
        ("tree = 1", "tree: expected `bool | null`, got `int`."),
        ("tree =", "is not TOML: Invalid value"),
        ("\udcff", "is not TOML: "),
    ],
)
def test_settings_that_cannot_be_are_named_and_the_rest_holds(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(f"detail = true\n{text}\n".encode(errors="surrogateescape"))
    settings, (said,) = read(path)
    assert said.startswith(str(path))
    assert problem in said
    assert settings == (Settings() if "TOML" in problem else Settings(detail=True))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read(tmp_path)[1] == [f"{tmp_path} cannot be read: Is a directory."]


def test_the_command_line_comes_first_then_the_file_then_memory() -> None:
    asked, written = Settings(sort="out"), Settings(sort="ttft", tree=False)
    remembered = Settings(sort="seq", tree=True, theme="nord")
    assert asked.over(written).over(remembered) == Settings(sort="out", tree=False, theme="nord")


@pytest.mark.parametrize("key", ["lifecycle", *FIELDS])
def test_an_order_is_remembered_as_it_is_asked_for(key: str) -> None:
    for text in (key, f"-{key}"):
        assert sort_text(parse_sort(text)) == text
    assert parse_sort("out") == Sort("out", descending=True)
    assert parse_sort("-out") == Sort("out")
    for figure in ("out", "ttft", "total", "lost", "steps", "e2e"):
        assert parse_sort(figure).descending, figure


@pytest.mark.parametrize("text", ["", " , ", "request,request", "sequest"])
def test_columns_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse_columns(text)


def test_memory_is_written_whole_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "new" / "remembered.json"
    memory = SavedState(path)
    assert memory.problems == []
    assert memory.save(sort="out", columns=("request", "out")) is None
    assert json.loads(path.read_text())["sort"] == "out"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert SavedState(path).settings == Settings(sort="out", columns=("request", "out"))
    path.write_text('{"sort": "gone-since", "theme": "nord", "new": 1}')  # of another version
    assert SavedState(path).settings == Settings(theme="nord")
    path.write_text('{"sort": "o')
    assert SavedState(path).problems == [f"{path} is damaged; it is replaced."]
    path.write_text("[1]")
    assert SavedState(path).problems == [f"{path} is damaged; it is replaced."]


def test_a_memory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    memory = SavedState(tmp_path / "file" / "remembered.json")
    said = memory.save(sort="out")
    assert said is not None
    assert "cannot be written: " in said


def test_chosen_settings_are_there_the_next_time(source: ScriptedSource, tmp_path: Path) -> None:
    memory = SavedState(tmp_path / "remembered.json")
    with play(SeqtopApp(source, saved_state=memory), (100, 24)) as pilot:
        pilot.press("greater_than_sign", "r", "t", "T", "d")
        pilot.press("c", "down", "space", "enter")
    later = SavedState(tmp_path / "remembered.json").settings
    assert later == Settings(
        columns=tuple(key for key in DEFAULT_COLUMNS if key != "seq"),
        sort="-request",
        tree=False,
        theme="seqtop-light",
        detail=True,
    )

    app = SeqtopApp(source, settings=later)
    with play(app, (100, 24)):
        assert app.ui.view.sort == Sort("request", descending=True)
        assert app.screen.query_one(Detail).display
        assert not app.current_theme.dark
        assert "▾pair" not in screen(app)


def test_settings_are_seen_from_the_first_frame(source: ScriptedSource) -> None:
    app = SeqtopApp(
        source,
        settings=Settings(columns=("request", "e2e", "out", "text"), filter="status:wait"),
        problems=["config.toml: no setting '[b]colour[/b]'."],
    )
    with play(app, (100, 24)) as pilot:
        assert titles(app) == ["Request", "E2E", "Out", "Text"]
        assert "status:wait" in screen(app)
        assert "5 of 17" in screen(app)
        assert "no setting '[b]colour[/b]'" in screen(app), "it is no markup"
        pilot.press("slash", "end", "n")
        assert "the active filter is status:wait." in words(app)
        pilot.press("less_than_sign", "escape")  # from an order that is no column
        assert "5 of 17" not in screen(app)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--columns", "request,ttf"], "argument --columns: no column 'ttf': perhaps ttft"),
        (["--sort", "tttft"], "argument --sort: cannot sort by 'tttft': perhaps ttft"),
        (["--filter", "promt>1"], "argument --filter: no field 'promt': perhaps prompt"),
        (["--config", "/no/such"], "argument --config: there is no file '/no/such'"),
    ],
)
@pytest.mark.parametrize("command", [["attach"], ["demo"], ["replay", "x.seqtop"]])
def test_the_command_line_names_what_it_does_not_know(
    command: list[str], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*command, *arguments])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_many_problems_are_one_notice() -> None:
    problems = [f"config.toml: no setting 'x{number}'." for number in range(9)]
    app = SeqtopApp(ScriptedSource(), clock=lambda: 0.0, problems=problems)
    with play(app):
        (notice,) = notices(app)
        assert notice.splitlines() == [*problems[:3], "…and 6 more."]


def test_a_file_without_end_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        path = tmp_path / name
        assert read(path) == (Settings(), [f"{path} cannot be read: it is not a file."])
        assert SavedState(path).problems == [f"{path} cannot be read: it is not a file."]


def test_saving_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    path, target = tmp_path / "state.json", tmp_path / "target"
    target.write_text("years of work")
    path.symlink_to(target)
    assert SavedState(path).save(sort="out") is None
    assert target.read_text() == "years of work"
    assert SavedState(path).settings == Settings(sort="out")
