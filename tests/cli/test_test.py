"""`seqtop test`: recordings as tests of the scheduler, and recordings that cannot be tests."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from seqtop.whatif.decision_kinds import kinds_of
from seqtop.wire.messages import EngineInfo, Event
from seqtop.wire.redaction import redact
from tests.support.commands import assert_one_sentence, run, run_here
from tests.support.greedy_runs import NUM_REQUESTS, record_run
from tests.support.mutated_scheduler import Mutant, applied, copy_package
from tests.support.scheduler_recordings import LOADS, record

POLICIES = Path(__file__).parents[2] / "docs" / "policies"


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two recordings, one of them in a folder in it."""
    folder = tmp_path_factory.mktemp("recordings")
    (folder / "more").mkdir()
    (folder / "notes.txt").write_text("no recording")
    record_run(folder / "more" / "usual.seqtop")
    record(folder / "swapping.seqtop", LOADS["swapping"], 3)
    return folder


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the bundled engine for faults."""
    return copy_package(tmp_path_factory.mktemp("package"))


@pytest.fixture
def python(package: Path, tmp_path: Path) -> str:
    """A Python that has the copy."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\ncd {package.parent} && exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_a_scheduler_that_decides_as_it_did(
    recordings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "test", str(recordings), "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["is_equal"]
    usual, other = document["recordings"]
    assert Path(other["path"]).name == "swapping.seqtop"
    assert usual["num_requests"] == NUM_REQUESTS
    for test in (usual, other):
        assert test["outcome"] == "equal"
        assert test["proof"]["num_equal_steps"] == test["proof"]["num_steps"] > 100
    counts = {own["name"]: own["count"] for own in document["decisions"]}
    assert list(counts) == [kind.name for kind in kinds_of("engine_stub 1")]
    assert counts["swapped_in"] > 10
    assert counts["forked"] == counts["drafted"] == 0
    done = run_here(capsys, "test", str(recordings))
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    steps = [f"{test['proof']['num_steps']:,}" for test in (usual, other)]
    assert [row[-4:] for row in rows[1:3]] == [
        [steps[0], "of", steps[0], str(NUM_REQUESTS)],
        [steps[1], "of", steps[1], str(LOADS["swapping"].num_requests)],
    ]
    assert ["swapped", "in", str(counts["swapped_in"]), "1"] in [row[:4] for row in rows]
    assert "not in the recordings: " in done.stdout
    assert done.stdout.endswith("2 of 2 recordings equal\n")
    suite = ET.fromstring(run_here(capsys, "test", str(recordings), "--junit").stdout)
    assert (suite.get("name"), suite.get("tests")) == ("seqtop test", "2")
    assert {suite.get(name) for name in ("failures", "errors", "skipped")} == {"0"}


MUTANTS = (
    (
        Mutant(
            "swapped requests come after all that wait",
            "scheduler",
            "queue = min(queues, key=lambda queue: self._rank(queue.head))",
            "queue = queues[0]",
        ),
        "different",
        "  because the order of the waiting queue differs\n",
    ),
    (
        Mutant("the first behind is preempted", "policy", "return behind[-1]", "return behind[0]"),
        "different",
        "  because the policy that chooses the request to preempt differs\n",
    ),
    (
        Mutant(
            "a swap takes blocks of the host that are not there",
            "block_manager",
            "(host_block[block],) = self.host.get_new_blocks(1, seq.seq_id)",
            "(host_block[block],) = self.host.get_new_blocks(99, seq.seq_id)",
        ),
        "failed",
        ": the scheduler has failed: KeyError: 'dictionary is empty' (block_pool.py, line ",
    ),
    (
        Mutant("it does not compile", "policy", "return behind[-1]", "return behind[-1"),
        "failed",
        "  engine_stub.entrypoints.whatif has failed: SyntaxError: ",
    ),
)


@pytest.mark.parametrize(
    ("mutant", "outcome", "said"), MUTANTS, ids=[own.name for own, _, _ in MUTANTS]
)
def test_a_scheduler_with_a_fault(
    mutant: Mutant,
    outcome: str,
    said: str,
    recordings: Path,
    package: Path,
    python: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["test", str(recordings / "swapping.seqtop"), "--python", python]
    with applied(package, mutant):
        done = run_here(capsys, *arguments)
        junit = run_here(capsys, *arguments, "--junit")
    assert done.returncode == junit.returncode == 1
    assert said in done.stdout
    assert done.stdout.endswith(f"0 of 1 recording equal, 1 {outcome}\n")
    (case,) = ET.fromstring(junit.stdout)
    (failure,) = case
    assert (failure.tag, failure.get("type")) == ("failure", outcome)
    assert said.strip() in (failure.text or "")


def test_a_scheduler_that_never_returns(
    recordings: Path, package: Path, python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant = Mutant(
        "a loop has no end",
        "scheduler",
        "preemptions.append(self._preempt(self._victim(seq_group), seq_group))",
        "continue",
    )
    path = str(recordings / "swapping.seqtop")
    with applied(package, mutant):
        done = run_here(capsys, "test", path, "--python", python, "--timeout", "1", "--json")
    assert done.returncode == 1
    (test,) = json.loads(done.stdout)["recordings"]
    assert (test["outcome"], test["problem"]) == ("failed", "no result after 1 seconds")


def of_another_engine(event: Event) -> Event:
    if isinstance(event, EngineInfo):
        return msgspec.structs.replace(event, engine="nano 1.0")
    return event


def test_recordings_that_are_no_tests(
    recordings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has its reason, the others are tested, and the exit status is that of the worst."""
    usual = str(recordings / "more" / "usual.seqtop")
    redacted, other, odd, half = (
        str(tmp_path / f"{name}.seqtop") for name in ("redacted", "other", "odd", "half")
    )
    record_run(Path(redacted), redact)
    record_run(Path(other), of_another_engine)
    Path(odd).write_text("hello")
    whole = Path(usual).read_bytes()
    Path(half).write_bytes(whole[: len(whole) // 2])
    reasons = {
        redacted: "the recording is redacted: without tokens it cannot be replayed",
        other: "the scheduler of nano 1.0 cannot be run again yet",
        half: "only a whole run can be replayed",
        odd: "odd.seqtop",
    }
    done = run_here(capsys, "test", usual, redacted, other, half, "--json")
    assert done.returncode == 3
    outcomes = ["equal", "not replayed", "not replayed", "not replayed"]
    results = json.loads(done.stdout)["recordings"]
    assert [test["outcome"] for test in results] == outcomes
    for test in results[1:]:
        assert reasons[test["path"]] in test["problem"]
    done = run_here(capsys, "test", usual, str(tmp_path))
    assert done.returncode == 2
    for path, reason in reasons.items():
        assert path in done.stdout
        assert reason in done.stdout
    assert done.stdout.endswith("1 of 5 recordings equal, 3 not replayed, 1 unreadable\n")
    suite = ET.fromstring(run_here(capsys, "test", usual, str(tmp_path), "--junit").stdout)
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "0", "4")


def claim_more_blocks(event: Event) -> Event:
    if isinstance(event, EngineInfo):
        return msgspec.structs.replace(event, num_gpu_blocks=64)
    return event


def test_a_difference_is_worse_than_what_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(tmp_path / "run.seqtop", claim_more_blocks)
    (tmp_path / "odd.seqtop").write_text("hello")
    done = run_here(capsys, "test", str(tmp_path))
    assert done.returncode == 1
    assert "0 of 2 recordings equal, 1 different, 1 unreadable" in done.stdout


def test_a_policy_of_one_s_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording does not contain it; what it decides is tested as all else is."""
    policy, path = POLICIES / "shortest_prompt_first.py", str(tmp_path / "run.seqtop")
    record_run(Path(path), scheduling_policy=str(policy))
    done = run_here(capsys, "test", path)
    assert done.returncode == 3
    assert "ran with the policy shortest_prompt_first, which a recording does not" in done.stdout
    assert run_here(capsys, "test", path, "--policy", str(policy)).returncode == 0
    changed = tmp_path / policy.name
    changed.write_text(policy.read_text().replace("num_tokens +", "-num_tokens +"))
    assert changed.read_text() != policy.read_text()
    assert run_here(capsys, "test", path, "--policy", str(changed)).returncode == 1
    other = str(POLICIES / "cost_aware_victim.py")
    done = run_here(capsys, "test", path, "--policy", other)
    assert_one_sentence(done, 2, "no recording ran with the policy cost_aware_victim")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["none"], "there is no file or folder none"),
        (["empty"], "empty has no recording, which is a file *.seqtop"),
        (["run.seqtop", "none"], "there is no file or folder none"),
        (["run.seqtop", "--policy", "none.py"], "there is no policy none.py"),
        (["run.seqtop", "--python", "none/python"], "none/python cannot be started"),
        (["run.seqtop", "--timeout", "0"], "'0' is not a positive number"),
        (["run.seqtop", "--json", "--junit"], "not allowed with argument --json"),
        ([], "the following arguments are required: FILE"),
    ],
)
def test_wrong_usage(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "run.seqtop").write_text("hello")
    assert_one_sentence(run_here(capsys, "test", *arguments), 2, sentence)


def test_a_package_that_is_missing_is_named(
    recordings: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    missing = "raise ModuleNotFoundError(\"No module named 'tokenizers'\", name='tokenizers')"
    (tmp_path / "tokenizers.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = run_here(capsys, "test", str(recordings))
    assert done.returncode == 3
    assert "a replay needs tokenizers, which is not installed" in done.stdout


def test_no_torch_and_no_engine_is_loaded(recordings: Path) -> None:
    program = (
        "import sys; from seqtop.cli.main import main; status = main(sys.argv[1:]);"
        " assert not {'torch', 'engine_stub', 'vllm'} & {*sys.modules}; sys.exit(status)"
    )
    done = run(sys.executable, "-c", program, "test", str(recordings / "more"))
    assert done.returncode == 0, done.stderr
