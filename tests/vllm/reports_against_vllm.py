"""A recording of vLLM's EngineCore as a report in a real browser, and in the formats of others.

Run by `make test-vllm`, as `against_vllm.py`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from whatif_against_vllm import record, settings_of

from seqtop.cli.main import main
from seqtop.export.lifecycle import EngineRun, read_runs
from seqtop.history import FileStore

SEED = 1


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vllm") / "run.seqtop"
    record(path, SEED, settings_of(SEED, is_async=False))
    return path


@pytest.fixture(scope="module")
def run(recording: Path) -> EngineRun:
    with FileStore(recording) as store:
        (run,) = read_runs(store)
    return run


def test_a_browser_shows_the_report(recording: Path, run: EngineRun, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    assert main(["report", str(recording), "-o", str(page)]) == 0
    command = [browser, "--headless", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    if os.geteuid() == 0:  # as whom Chromium has no sandbox
        command.append("--no-sandbox")
    options = [f"--screenshot={picture}", "--window-size=1200,4000"]
    done = subprocess.run([*command, *options, page.as_uri()], capture_output=True, check=True)
    shown = done.stdout.decode()
    assert "vLLM" in shown
    assert len(re.findall("<svg", shown)) == len(re.findall("<svg", page.read_text())) >= 12
    assert f"<td>{run.info.num_gpu_blocks}</td>" in shown
    assert picture.stat().st_size > 10_000, "the page is blank"


def test_the_workload_has_the_lengths_and_prefixes_of_the_requests(
    recording: Path, run: EngineRun, tmp_path: Path
) -> None:
    path = tmp_path / "load.jsonl"
    assert main(["export", str(recording), "--mooncake", "-o", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows
    for row in rows:
        request = run.requests[row["request_id"]].request
        assert row["input_length"] == request.num_prompt_tokens
        size = run.info.block_size
        assert len(row["hash_ids"]) == math.ceil(row["input_length"] / size)
        for other in rows:
            tokens = run.requests[other["request_id"]].request.prompt_token_ids.tolist()
            is_same = tokens[:size] == request.prompt_token_ids.tolist()[:size]
            if request.cache_salt == run.requests[other["request_id"]].request.cache_salt:
                assert (row["hash_ids"][0] == other["hash_ids"][0]) == is_same


def test_spans_are_below_those_of_the_clients(
    recording: Path, run: EngineRun, tmp_path: Path
) -> None:
    path = tmp_path / "spans.jsonl"
    assert main(["export", str(recording), "--otlp", "-o", str(path)]) == 0
    for line, name in zip(path.read_text().splitlines(), run.requests, strict=True):
        ((scope,),) = (it["scopeSpans"] for it in json.loads(line)["resourceSpans"])
        client = name.removesuffix("-00000000").encode().hex()
        assert scope["spans"][0]["traceId"] == f"{client:0>32.32}"
        assert scope["spans"][0]["parentSpanId"] == "2" * 16
