"""Examples of documents, help and dialogs run, and each wrong input is one sentence."""

import json
import re
from argparse import _SubParsersAction
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqtop.cli.main import main
from seqtop.history import FileStore
from seqtop.state.slo import words
from seqtop.tui.dialogs import whatif
from tests.support.greedy_runs import record_run
from tests.test_documents import DOCUMENTS, commands, parser_of, read

POLICIES = Path(__file__).parents[2] / "docs" / "policies"
PAGES = [
    "docs/recorded-tests.md",
    "docs/what-if.md",
    *(name for name in DOCUMENTS if name.startswith("docs/tasks/")),
]
NEEDS_MORE = re.compile(
    r"tcp:|attach|--python|^show (?!run)|^(replay|serve|mcp|demo|keygen|completion)"
)
"""The commands that need an engine, a terminal, a client or another environment."""


def examples() -> Iterator[list[str]]:
    """The commands of the documents that need only files, and those of the help."""
    for page in PAGES:
        for (program, *arguments), is_complete in commands(read(page)):
            has_file = any(word.endswith(".seqtop") for word in arguments)
            if program == "seqtop" and (is_complete or has_file):
                yield arguments
    (subparsers,) = (it for it in parser_of("seqtop")._actions if isinstance(it, _SubParsersAction))
    for parser in subparsers.choices.values():
        example = (parser.epilog or "").removeprefix("example: ")
        for (program, *arguments), _ in commands(f"`{example}`"):
            if program == "seqtop":
                yield arguments


EXAMPLES = sorted({tuple(own) for own in examples() if not NEEDS_MORE.search(" ".join(own))})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    record_run(folder / "run.seqtop", num_requests=12)
    record_run(folder / "before.seqtop", num_requests=12, max_num_seqs=4)
    record_run(folder / "after.seqtop", num_requests=12)
    (folder / "recordings").mkdir()
    record_run(folder / "recordings" / "run.seqtop", num_requests=12)
    row = {"input_length": 40, "output_length": 6}
    rows = [json.dumps({"timestamp": 50 * number, **row}) for number in range(12)]
    (folder / "mooncake_trace.jsonl").write_text("\n".join(rows))
    (folder / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        + "".join(f"2024-05-10 00:00:{number:02}.0,40,6\n" for number in range(12))
    )
    (folder / "docs").mkdir()
    (folder / "docs" / "policies").symlink_to(POLICIES)
    (folder / "shortest_prompt_first.py").symlink_to(POLICIES / "shortest_prompt_first.py")
    return folder


@pytest.mark.parametrize("arguments", EXAMPLES, ids=" ".join)
def test_an_example_runs(
    arguments: tuple[str, ...],
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    own = list(arguments)
    if "-o" in own:
        own.append("--force")
    has_gates = own[0] == "check" and not {"--slo", "--fail-if", "--baseline"}.isdisjoint(own)
    wanted = {0, 1} if own[0] == "diff" or has_gates else {0}
    assert main(own) in wanted, capsys.readouterr().err


def test_the_examples_are_those_of_all_pages() -> None:
    named = {own[0] for own in EXAMPLES}
    assert {"whatif", "advise", "diff", "report", "check", "explain", "export"} <= named
    assert len(EXAMPLES) >= 20
    assert sum(own[0] in ("whatif", "advise") for own in EXAMPLES) >= 9


@pytest.mark.parametrize("placeholder", [whatif.EXAMPLE, whatif.OBJECTIVES])
def test_the_placeholder_of_the_dialog_has_an_answer(placeholder: str, files: Path) -> None:
    with FileStore(files / "run.seqtop") as recording:
        moment = recording.at(recording.last)
        text = whatif._answer(
            recording, moment, words(placeholder), lambda *_: None, False, lambda: None
        )
    assert "PREDICTION, of no real run:" in text or "goodput" in text


WRONG = [
    *(f"{name} odd.txt" for name in ("check", "replay", "whatif", "show", "explain --slow")),
    "advise odd.txt --slo ttft=1",
    "export odd.txt --csv",
    "diff odd.txt run.seqtop",
    "report odd.txt -o new.html",
    "replay mooncake_trace.jsonl",
    "check mooncake_trace.jsonl",
    "export mooncake_trace.jsonl --perfetto",
    *(f"{name} none" for name in ("check", "replay", "whatif", "export --csv", "show")),
    *(f"{name} docs" for name in ("check", "whatif", "replay", "test")),
    "test none",
    "whatif mooncake_trace.jsonl",
    "whatif mooncake_trace.jsonl --set num_gpu_blocks=1",
    "whatif run.seqtop --set foo=1",
    "whatif run.seqtop --set max_num_seqs=-3",
    "whatif run.seqtop --set max_num_seqs=many",
    "whatif run.seqtop --sweep max_num_seqs",
    "whatif run.seqtop --sweep max_num_seqs=1..2",
    "whatif run.seqtop --capacity",
    "whatif run.seqtop --step-time bogus",
    "whatif run.seqtop --without nobody",
    "whatif run.seqtop --calibrate odd.txt --set max_num_seqs=4",
    "whatif run.seqtop --policy none.py",
    "advise run.seqtop --slo ttft=1 --policies none",
]


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_input_is_one_sentence(
    command: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    (files / "odd.txt").write_text("hello\n")
    assert main(command.split()) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("seqtop: ")
    if "odd.txt" in command or "trace.jsonl" in command.split("--")[0].split()[-1]:
        assert "Mooncake" in line or "num_gpu_blocks" in line or "fits" in line, line
