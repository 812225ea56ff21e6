"""Workloads in the Mooncake format, exported from a recording and run by the bundled engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_stub.entrypoints import load

ENGINE = [sys.executable, "-m", "engine_stub", "serve", "--device", "cpu", "--threads", "1"]


ROW = {"timestamp": 0, "input_length": 20, "output_length": 5}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("counts", "size"),
    [
        ([(100, 7), (16, 1)], 16),
        ([(100, 6), (40, 2)], 16),  # without the blocks that are not full
        ([(6755, 14), (7319, 15), (2287, 5)], 512),  # Mooncake's own
        ([(5, 0)], 16),
    ],
)
def test_the_block_size_is_derived_from_the_lengths(
    counts: list[tuple[int, int]], size: int
) -> None:
    rows = [load.LoadRow(0, length, 1, list(range(count))) for length, count in counts]
    assert load.block_size_of(rows, 16) == size


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "it has no requests"),
        ("{}\n", "line 1 is no request of a workload: Object missing required field `timestamp`"),
        (lines(ROW, {**ROW, "input_length": 0}), "line 2 is no request of a workload"),
        (lines({**ROW, "timestamp": -1}), "line 1 is no request of a workload"),
        (lines({**ROW, "hash_ids": ["a"]}), "line 1 is no request of a workload"),
        ("[" * 100_000, "line 1 is no request of a workload"),
        (lines({**ROW, "hash_ids": list(range(30))}), "fit no block size"),
        (lines({**ROW, "input_length": 10**6}), "does not fit the engine's max_model_len"),
    ],
)
def test_a_load_that_cannot_be_run_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "load.jsonl"
    path.write_text(content)
    with pytest.raises(load.LoadError, match=words.replace("[", r"\[")):
        load.LoadSource(
            load.read(str(path)), max_model_len=1_000, vocab_size=9, block_size=16, clock=float
        )


def test_a_wrong_file_is_an_error_of_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [*ENGINE, "--load", str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (
        done.stderr
        == f"engine-stub: --load {tmp_path}/none cannot be read: No such file or directory\n"
    )
