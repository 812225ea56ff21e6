"""`seqtop attach`."""

from pathlib import Path

import pytest

from seqtop.cli.found_engines import FoundSessions
from seqtop.cli.main import main
from seqtop.live.session import Session
from tests.support.waiting import wait_until


def test_ranks_are_engines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def run_app(sources: list[Session], options: object) -> int:
        shown.extend(source.connection.endpoint for source in sources)
        return 0

    monkeypatch.setattr("seqtop.cli.attach.run_app", run_app)
    assert main(["attach", "--ranks", "2", "tcp://127.0.0.1:7001", "ipc:///tmp/none"]) == 0
    assert shown == [
        "tcp://127.0.0.1:7001",
        "tcp://127.0.0.1:7003",
        "ipc:///tmp/none",
        "ipc:///tmp/none.dp1",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ray", "--local"), "--ray and --local exclude each other"),
        (("--local", "--targets", "x"), "--targets and --local exclude each other"),
        (
            ("--kubernetes", "app=vllm", "localhost:1"),
            "--kubernetes finds the endpoints: give none",
        ),
        (("--local", "--ranks", "2"), "--local finds each rank by itself: leave --ranks out"),
        (("--namespace", "x"), "--namespace is for --kubernetes"),
        (("--all-namespaces", "--local"), "--all-namespaces is for --kubernetes"),
        (("--port", "5", "--ray"), "--port is for --kubernetes and --targets"),
        (
            ("--kubernetes", "a=b", "-n", "x", "--all-namespaces"),
            "--namespace and --all-namespaces exclude each other",
        ),
        (("--kubernetes", " "), "--kubernetes needs a label selector, such as app=vllm"),
    ],
)
def test_registers_that_do_not_go_together(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attach", *arguments]) == 2
    assert capsys.readouterr().err == f"seqtop: {said}\n"


def test_found_engines_are_shown_and_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "targets.json"
    file.write_text('[{"targets": ["127.0.0.1:1"]}]')
    shown: list[str] = []

    def run_app(sources: list[Session], options: object, *, found: FoundSessions) -> int:
        file.write_text('[{"targets": ["127.0.0.1:1", "127.0.0.1:3"]}]')
        new: list[Session] = []
        wait_until(lambda: new.extend(found.take_new()) or new)
        shown.extend(source.connection.endpoint for source in [*sources, *new])
        return 0

    monkeypatch.setattr("seqtop.cli.attach.run_app", run_app)
    assert main(["attach", "--targets", str(file)]) == 0
    assert shown == ["tcp://127.0.0.1:1", "tcp://127.0.0.1:3"]


def test_no_engine_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "targets.json").write_text("[]")
    assert main(["attach", "--targets", str(tmp_path / "targets.json")]) == 1
    assert capsys.readouterr().err == f"seqtop: {tmp_path}/targets.json lists no targets\n"


def test_more_engines_than_there_are_descriptors_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("seqtop.process.descriptors.raise_limit", lambda _: 160.0)
    assert main(["attach", "--ranks", "3", "localhost:7001"]) == 1
    assert capsys.readouterr().err == (
        "seqtop: 3 engines need more open files than this process may have: 2 engines are possible;"
        " raise the limit, as with `ulimit -n 4096`\n"
    )
