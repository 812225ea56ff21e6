"""Random work for vLLM's real scheduler, in which `seqtop check` finds nothing.

Run by `make test-vllm`, as `against_vllm.py`, for a few runs; for more, as `NUM_RUNS` says:

    NUM_RUNS=100 pytest --confcutdir tests/vllm -s tests/vllm/random_against_vllm.py
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import vllm
from stepped_against_vllm import version
from whatif_against_vllm import CHANGES, ONLY_NEW, record, settings_of

from seqtop.checks.report import check_recording, sentence
from tests.support.watch import THRESHOLDS

NUM_RUNS = int(os.environ.get("NUM_RUNS", "4"))

EXCLUDED = {"async_scheduling", "block_size", "scheduler_reserve_full_isl"}
"""Without the last one, which is the mend of vllm#25538, requests thrash, and that is found."""


def random_settings(seed: int, *, is_async: bool) -> dict[str, Any]:
    """Settings with some that hurt, and with drafts in every fourth run."""
    rng = random.Random(seed)
    settings = settings_of(seed, is_async=is_async)
    for change in rng.sample(CHANGES, 2):
        if not (EXCLUDED & change.keys()):
            settings |= {name: value for name, value in change.items() if name != "num_gpu_blocks"}
    if version() < (0, 20):
        settings = {name: value for name, value in settings.items() if name not in ONLY_NEW}
    if seed % 8 in (2, 3) and (version() >= (0, 20) or not is_async):
        # The executor makes the drafts up. vLLM refuses the method `ngram` with async scheduling.
        settings["speculative_config"] = {
            "method": "ngram_gpu" if is_async else "ngram",
            "num_speculative_tokens": 2,
            "prompt_lookup_max": 2,
        }
    return settings


@pytest.mark.parametrize("seed", range(NUM_RUNS))
def test_nothing_is_found(seed: int, tmp_path: Path) -> None:
    # Each sixth workload resets the prefix cache and preempts what runs. With async scheduling, the
    # figures of the step that is in flight are then those after the reset, its tables are not.
    settings = random_settings(seed, is_async=seed % 2 == 1 and seed % 6 != 5)
    record(tmp_path / "run.seqtop", seed, settings)
    report = check_recording(tmp_path / "run.seqtop", thresholds=THRESHOLDS)
    findings = [sentence(finding) for finding in report.findings]
    print(
        f"\nvLLM {vllm.__version__}, seed {seed}: {report.num_steps} steps, {findings}, {settings}"
    )
    assert report.complete
    assert not findings
