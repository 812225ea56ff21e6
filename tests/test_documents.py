"""The lists in the documents equal those of the programs, and all that they name exists."""

import ast
import fnmatch
import re
import shlex
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import cast, get_args

import pytest

from docs import make_protocol
from docs.make_protocol import STRUCTS
from engine_stub.config import EngineConfig, PreemptionVictim
from engine_stub.entrypoints.cli import _parser as engine_parser
from seqtop.cli.parser import build_parser
from seqtop.kv import cells, header
from seqtop.kv.cache import KvCache
from seqtop.kv.ui_state import KvUiState
from seqtop.state.fields import FIELDS
from seqtop.state.wait_causes import BEHIND, CAUSES, OUTSIDE_STEPS
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.tui.rendering import cell_map, owner_marks
from seqtop.tui.rendering.block_grid import BlockGrid
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.blocks import cells as pool_cells
from seqtop.tui.screens.fleet import cells as fleet_cells
from seqtop.wire import messages, snapshot
from seqtop.wire.messages import Event, SequenceUpdate, WaitCause

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "docs", "engine_stub", "screenshots", "seqtop", "tests")
FILES = [
    str(path.relative_to(ROOT))
    for found in (ROOT.glob("*"), *(ROOT.joinpath(folder).rglob("*") for folder in FOLDERS))
    for path in found
    if path.is_file()
]
FOLDERS_OF_FILES = {f"{parent}/" for file in FILES for parent in PurePath(file).parents}
DOCUMENTS = sorted(file for file in FILES if file.endswith(".md"))
PATH = re.compile(r"[\w*{},.-][\w./{},*-]*(/|\.(css|json|md|py|sh|svg|tcss|toml))")
"""A path between backquotes; one that begins with a slash is part of an address."""
MODULE = re.compile(r"(benchmarks|engine_stub|seqtop|tests)(\.\w+)+")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


ARCHITECTURE = read("docs/architecture.md")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def text_of(line: Line) -> str:
    return "".join(text for text, _ in line)


def first_cells(text: str) -> list[str]:
    """The first cells of the rows of tables."""
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)


def test_the_columns_of_the_fleet() -> None:
    listed = ", ".join(first_cells(section(read("docs/screens.md"), "All engines")))
    for slot in fleet_cells.COLUMNS:
        assert slot.title in listed.replace("Out, In tok/s", "Out tok/s, In tok/s")
    assert "`F`" in first_cells(section(read("docs/commands.md"), "Keys"))


def test_the_cells_of_the_block_map() -> None:
    listed = first_cells(section(read("docs/screens.md"), "Blocks"))
    for glyph, _ in (
        pool_cells.FREE,
        pool_cells.CACHED,
        pool_cells.SHARED,
        pool_cells.SWAPPED,
        pool_cells.RESERVED,
        owner_marks.SELECTED,
        pool_cells.SELECTED_SHARED,
    ):
        assert f"`{glyph}`" in listed
    for sign, glyph in cell_map._REVERSED.items():
        assert f"`{glyph}`" in listed or sign == cell_map.EDGE
    assert f"`{pool_cells.SHADES}`" in listed


def test_the_cells_and_figures_of_a_prefix_cache() -> None:
    page = read("docs/kv-events.md")
    for _, glyph, words in re.findall(
        r"((\S) (.+?))(?:  |$)", text_of(cells.legend(200, BlockGrid((), 10))).strip()
    ):
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


def prose(text: str) -> str:
    """A document without the blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def alternatives(path: str) -> Iterator[str]:
    """The paths that `a/{b,c}.py` stands for."""
    before, brace, rest = path.partition("{")
    if not brace:
        yield path
        return
    inside, _, after = rest.partition("}")
    for alternative in inside.split(","):
        yield from alternatives(before + alternative + after)


def module_file(module: str) -> tuple[Path | None, list[str]]:
    """The file of `package.module.Class.method`, and the names in it."""
    parts = module.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file, parts[count:]
    return None, parts


@cache
def is_there(path: str) -> bool:
    """True if a path names files or folders, from the root or from a folder below it."""
    known = FOLDERS_OF_FILES if path.endswith("/") else FILES
    return any(fnmatch.fnmatch(name, p) for p in (path, f"*/{path}") for name in known)


@cache
def defined_names(file: Path) -> set[str]:
    """The functions, classes and methods of a module, as `name` and `Class.name`."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")

    visit(ast.parse(file.read_text(encoding="utf-8")).body, "")
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_to_documents_and_headings(document: str) -> None:
    text = read(document)
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / document).parent / path if path else ROOT / document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_and_modules_that_are_named_exist(document: str) -> None:
    for span in code_spans(read(document)):
        if PATH.fullmatch(span):
            assert all(map(is_there, alternatives(span))), span
        elif MODULE.fullmatch(span):
            file, names = module_file(span)
            assert file is not None, span
            text = file.read_text(encoding="utf-8")
            assert all(re.search(rf"\b{name}\b", text) for name in names), span


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_has_these_targets(document: str) -> None:
    targets = {*re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)}
    named = re.findall(r"^(?:\$ )?make ([a-z-]+)", read(document), re.MULTILINE)
    spans = [span.split() for span in code_spans(read(document))]
    assert {*named, *(words[1] for words in spans if words[0] == "make" and len(words) > 1)} <= (
        targets
    )


def test_the_length_of_the_readme() -> None:
    """It is read in two screens; the rest is on pages of its own."""
    assert len(read("README.md").split()) <= 900


def test_each_promise_of_the_security_page_names_tests() -> None:
    table = section(read("SECURITY.md"), "How").split("\n|---|---|---|\n")[1]
    rows = [row.strip("| ").split(" | ") for row in table.strip().splitlines()]
    assert len(rows) > 20
    for promise, bound, tests in rows:
        assert promise.startswith("**"), promise
        assert bound
        named = [
            ROOT / code_span for code_span in code_spans(tests) if code_span.startswith("tests/")
        ]
        assert named, promise
        for file in named:
            assert "\ndef test_" in file.read_text(encoding="utf-8"), file


def commands(text: str) -> Iterator[tuple[list[str], bool]]:
    """The commands in a document as lists of words, and whether they are complete.

    A word in capitals stands for a value.
    """
    blocks = "".join(re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^\w*\$ (.*)$", blocks.replace("\\\n", ""), re.MULTILINE)
    for line, is_complete in (
        *((line, True) for line in lines),
        *((s, False) for s in code_spans(text)),
    ):
        if found := re.match(r"(?:\w+=\S+ )*((seqtop|engine-stub) [a-z].*)", line):
            words = [
                "1" if word.isupper() else word for word in shlex.split(found[1], comments=True)
            ]
            ends = [at for at, word in enumerate(words) if word in ("|", ">")]
            yield words[: min(ends, default=len(words))], is_complete


@cache
def parser_of(program: str) -> ArgumentParser:
    return engine_parser() if program == "engine-stub" else build_parser()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_have_these_options(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    for (program, *arguments), is_complete in commands(read(document)):
        try:
            options = parser_of(program).parse_args(arguments)
            if arguments[0] == "serve" and program == "seqtop" and options.command:
                parser_of("seqtop").parse_args(options.command)
        except SystemExit:
            message = capsys.readouterr().err
            is_unfinished = re.search("required|expected one argument", message) is not None
            if message and not (is_unfinished and not is_complete):
                pytest.fail(message)


def test_the_functions_on_a_token_s_path_exist() -> None:
    row = r"^\| (\d+)(?:-(\d+))? \| .* \| (.*) \| (.*) \| ?(.*)\|$"
    rows = [match for match in re.findall(row, ARCHITECTURE, re.MULTILINE) if ".py`" in match[2]]
    assert len(rows) > 20
    next_number = 1
    for first, last, files, functions, conversions in rows:
        defined = set().union(*(defined_names(ROOT / file) for file in code_spans(files)))
        names = code_spans(functions)
        assert {*names, *code_spans(conversions)} <= defined, {*names} - defined
        assert int(first) in {1, next_number}
        next_number = int(first) + len(names)
        assert int(last or first) == next_number - 1, names


def test_the_floors_of_components() -> None:
    """The table has the layers of import-linter's contract."""
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (
        contract["layers"] for contract in contracts if contract.get("containers") == ["seqtop"]
    )
    floors = {
        f"seqtop.{module}": str(floor)
        for floor, layer in enumerate(reversed(layers), 1)
        for module in layer.split(" | ")
    }
    rows = re.findall(r"^\| (\d+) \| `([\w.]+)` \| .* \| (.*) \|$", ARCHITECTURE, re.MULTILINE)
    assert len(rows) > 15
    for floor, component, below in rows:
        assert floor == floors[component], component
        words = {"1": "nothing of seqtop", "2": "floor 1"}
        assert below == words.get(floor, f"floors 1 to {int(floor) - 1}"), component


def test_the_columns_of_the_sequence_table() -> None:
    table = read("docs/config.md").split("\n| column | shows |\n")[1].split("\n\n")[0]
    listed = [key for cell in first_cells(table) for key in code_spans(cell)]
    assert set(listed) == set(FIELDS)
    assert len(listed) == len(FIELDS), "a column is listed twice"


def test_the_events_on_the_wire() -> None:
    listed = first_cells(section(read("docs/protocol.md"), "Events").split("\n### ")[0])
    events = {f"`{struct.__name__}`" for struct in get_args(Event)}
    assert set(listed) - {"event", "---"} == events


def test_the_fields_on_the_wire() -> None:
    page = read("docs/protocol.md")
    now, wanted = (text.split("\n### ") for text in (page, make_protocol.page(page)))
    changed = {table.partition("\n")[0] for table in {*now} ^ {*wanted}}
    assert not changed, "run `make protocol`"
    assert make_protocol.SCHEMA_PATH.read_text(encoding="utf-8") == make_protocol.schema()


def test_the_viewer_in_javascript_reads_fields_at_their_places() -> None:
    source = read("docs/example_viewer.mjs")
    ended = snapshot.RequestHistory.__struct_fields__.index("finish_reason")
    request, chunk = map(SequenceUpdate.__struct_fields__.index, ("request_id", "chunk"))
    assert f"history?.[{ended}] != null" in source
    assert f"[update[0], update[{request}], update[{chunk}]]" in source


@pytest.mark.parametrize("name", ["docs/protocol.md", "docs/recording.md"])
def test_the_version_of_messages_and_recordings(name: str) -> None:
    assert read(name).splitlines()[0].endswith(f"version {messages.PROTOCOL_VERSION}")


def test_each_number_on_the_wire_has_a_unit() -> None:
    fields = [(struct, field) for struct in STRUCTS for field in make_protocol.fields_of(struct)]
    without = [
        f"{struct.__name__}.{field.name}"
        for struct, field in fields
        if make_protocol.is_numeric(field.type) and not make_protocol.unit_of(struct, field.name)
    ]
    assert not without, "has no unit in UNITS of docs/make_protocol.py"
    names = {name for s, field in fields for name in (field.name, f"{s.__name__}.{field.name}")}
    assert {name for listed in make_protocol.UNITS.values() for name in listed.split()} <= names


def test_all_structs_on_the_wire_are_listed() -> None:
    modules = (messages, snapshot)
    structs = {var for module in modules for var in vars(module).values() if is_struct(var)}
    assert structs - {*STRUCTS} == {messages.Message}


def is_struct(value: object) -> bool:
    return isinstance(value, type) and value.__module__ in {messages.__name__, snapshot.__name__}


def test_the_effect_of_each_field_of_an_update() -> None:
    page = section(read("docs/protocol.md"), "Events").split("### Updates")[1].split("###")[0]
    named = {*code_spans(page), "seq_id", "chunk", "request_id", "parent_seq_id", "is_removed"}
    assert named >= {*SequenceUpdate.__struct_fields__}
    effects = {name for names in make_protocol.EFFECTS.values() for name in names.split()}
    assert effects | {"seq_id", "chunk", "request_id"} == {*SequenceUpdate.__struct_fields__}


def test_the_policies_of_preemption() -> None:
    text = (ROOT / "docs/engine.md").read_text(encoding="utf-8")
    for policy in get_args(PreemptionVictim):
        assert f'`"{policy}"`' in text or f'`preemption_victim="{policy}"`' in text, policy
        assert f'"{policy}"' in (EngineConfig.__doc__ or ""), policy


def test_the_causes_of_waiting() -> None:
    table = section(read("docs/protocol.md"), "Events").split("### Causes of")[1].split("###")[0]
    rows = re.findall(r"^\| (.*) \|$", table, re.MULTILINE)
    listed = [[cell.strip() for cell in row.replace("`", "").split("|")] for row in rows[1:]]
    assert [row[0] for row in listed] == list(CAUSES)
    for name, why, unit, setting, word in listed:
        cause = CAUSES[cast(WaitCause, name)]
        assert why.startswith(cause.limited(None))
        assert unit == (f"{cause.unit}s" if cause.unit else "")
        assert setting == cause.setting
        assert word == ("" if name == "unknown" else cause.word)


@pytest.mark.parametrize("name", ["docs/config.md", "docs/screens.md"])
def test_the_words_for_causes_of_waiting(name: str) -> None:
    words = {cause.word for key, cause in CAUSES.items() if key != "unknown"}
    assert words | {BEHIND} <= {*code_spans(read(name))}


def test_the_causes_that_are_no_turn() -> None:
    sentence = read("docs/checks.md").split("wait for something other than their turn")[1]
    listed = {span for span in code_spans(sentence.split(".")[0]) if span in CAUSES}
    assert listed == {name for name, cause in CAUSES.items() if not cause.is_for_turn}


def test_the_causes_of_an_explained_wait() -> None:
    """The example has the sentences of the table."""
    example = read("docs/explain.md").split("```")[1]
    causes = re.findall(r"queued +(?:behind .* in the queue: )?([^(;\n]*[^(;\n ])", example)
    assert len(causes) > 3
    table = (*CAUSES.values(), *OUTSIDE_STEPS.values())
    sentences = {cause.limited(None) for cause in table}
    assert {cause.split(",")[0] for cause in causes} <= sentences
    parts = read("docs/explain.md").split("| cause | the time of a wait |")[1].split("\n\n")[0]
    assert code_spans(parts) == [*OUTSIDE_STEPS]


def test_docstrings_and_names_of_tests_begin_with_no_question_word() -> None:
    words = "how|what|when|where|whether|which|who|why"
    question = re.compile(rf'(?m)^ *(?:"""(?i:{words})\b.*|(?:async )?def test_(?:{words})_.*)')
    files = [file for file in FILES if file.endswith(".py")]
    assert not {file: found for file in files if (found := question.findall(read(file)))}
