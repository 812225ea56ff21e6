"""The documents that commands print with `--json` are as the published schema says."""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from docs.make_json_schema import DOCUMENTS, PATH, name_of, schema
from seqtop.cli.parser import build_parser
from seqtop.export.follow import JsonLinesWriter
from seqtop.history import FileStore
from seqtop.kv import json_document
from seqtop.text.sanitize import indented_json
from seqtop.transport.connection import Connection
from seqtop.whatif.bisect import Bisection
from tests.support.commands import run_here
from tests.support.greedy_runs import record_run
from tests.support.kv_scene import ScriptedKvSource, scene

jsonschema = pytest.importorskip("jsonschema")

CONNECTION = Connection("tcp://127.0.0.1:5557")
CHANGE = ("--set", "num_gpu_blocks=+50%")
COMMANDS = {
    "show": ("show", "A"),
    "show_compare": ("show", "A", "--at", "10", "--compare", "30"),
    "show_by": ("show", "A", "--by", "prefix"),
    "check": ("check", "A", "--fail-if", "preemptions>0"),
    "check_several": ("check", "A", "B"),
    "diff": ("diff", "A", "B"),
    "explain": ("explain", "A", "req-8"),
    "explain_who": ("explain", "A", "req-8", "--who"),
    "explain_who_totals": ("explain", "A", "--who"),
    "explain_slow": ("explain", "MANY", "--slow"),
    "explain_cache": ("explain", "A", "--cache", "--with-text"),
    "whatif": ("whatif", "A", *CHANGE),
    "whatif_sweep": ("whatif", "A", "--sweep", "max_num_seqs=3,5"),
    "whatif_capacity": ("whatif", "A", "--capacity", "--slo", "ttft=500ms"),
    "advise": ("advise", "A", "--slo", "ttft=500ms"),
    "test": ("test", "A"),
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("json")
    # Few requests, which wait for each reason: the validator takes long for each one.
    few: dict[str, Any] = {"num_requests": 16, "max_num_seqs": 4}
    record_run(folder / "a.seqtop", num_gpu_blocks=16, **few)
    record_run(folder / "b.seqtop", num_gpu_blocks=18, **few)
    record_run(folder / "many.seqtop")
    return {name: str(folder / f"{name.lower()}.seqtop") for name in ("A", "B", "MANY")}


@functools.cache
def definitions() -> dict[str, Any]:
    """The published ones, which another test checks: that takes a second."""
    return dict(json.loads(PATH.read_text(encoding="utf-8"))["$defs"])


def assert_valid(name: str, document: object) -> None:
    schema_ = {"$ref": f"#/$defs/{name}", "$defs": definitions()}
    jsonschema.Draft202012Validator(schema_).validate(document)


def test_the_published_schema_is_that_of_the_documents() -> None:
    assert PATH.read_text(encoding="utf-8") == schema(), "run `make protocol`"
    jsonschema.Draft202012Validator.check_schema(json.loads(schema()))


def test_every_command_with_json_has_a_schema() -> None:
    (commands,) = (
        action.choices
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    with_json = {
        name for name, parser in commands.items() if "--json" in parser._option_string_actions
    }
    assert with_json == DOCUMENTS.keys()


def test_every_document_is_validated_here() -> None:
    names = {name_of(command, word) for command in DOCUMENTS for word in DOCUMENTS[command]}
    assert names - COMMANDS.keys() == {"show_follow", "show_kv_events", "whatif_bisect"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_document_is_valid(
    name: str, recordings: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [recordings.get(own, own) for own in COMMANDS[name]]
    done = run_here(capsys, *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    assert_valid(name, json.loads(done.stdout))


def test_lines_are_valid(recordings: dict[str, str]) -> None:
    writer = JsonLinesWriter()
    with FileStore(recordings["A"]) as recording:
        early, late = recording.at(30), recording.at(recording.last)
    lines = [writer.line(early, CONNECTION, None), writer.line(late, CONNECTION, {*late.sequences})]
    lines.append(writer.end(late, CONNECTION, "interrupted"))
    documents: list[dict[str, Any]] = [json.loads(line or b"") for line in lines]
    assert [document["kind"] for document in documents] == ["state", "change", "end"]
    for document in documents:
        assert_valid("show_follow", document)


def test_the_prefix_cache_is_valid() -> None:
    source = ScriptedKvSource()
    scene(source)
    assert_valid("show_kv_events", json.loads(json_document.encode(source.cache, CONNECTION)))


def test_a_bisection_is_valid() -> None:
    bisection = Bisection("0.1", "0.1", "0.2", None, 30, ["0.1", "0.2"])
    assert_valid("whatif_bisect", json.loads(indented_json(bisection)))


def test_a_document_of_another_shape_is_refused(recordings: dict[str, str]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        assert_valid("explain", {"request_id": Path(recordings["A"]).name})
