"""Faults in the source of the bundled scheduler, and whether `seqtop test` finds them.

python -m tests.release scheduler_mutants                  # each fault, ten recordings
python -m tests.release scheduler_mutants budget           # those with this word in their name
python -m tests.release scheduler_mutants --operators 100  # a sample of changed operators
python -m tests.release scheduler_mutants --runs 100       # random runs without a fault

The recordings (`tests/support/scheduler_recordings.py`) are made by the scheduler as it is. Each
fault is a change of the source in a copy of the package, which `seqtop test` then runs with, as
after an edit. docs/recorded-tests.md has the table.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.commands import SEQTOP, run
from tests.support.mutated_scheduler import (
    Mutant,
    OperatorMutant,
    applied,
    copy_package,
    operator_mutants,
)
from tests.support.random_runs import small_models
from tests.support.replaying import record_random
from tests.support.scheduler_recordings import record_all

_SECONDS = 300.0
"""The limit of a run of the command."""
_MODULES = (
    *("scheduler", "policy", "waiting_queue", "lookahead_slots", "block_manager", "block_pool"),
    "beam_search",
)
_NO_DECISIONS = frozenset({"__post_init__", "check", "load_policy", "stats"})
"""Functions that check or report."""


MUTANTS = (
    # --- Limits
    Mutant("the budget has a token more", "scheduler",
        "budget = self.config.max_num_batched_tokens\n",
        "budget = self.config.max_num_batched_tokens + 1\n"),
    Mutant("decodes take nothing of the budget", "scheduler",
        "budget -= _num_tokens(decodes)", "budget -= 0"),
    Mutant("admissions take nothing of the budget", "scheduler",
        "budget -= result.num_batched_tokens", "budget -= 0"),
    Mutant("a sequence more than max_num_seqs runs", "scheduler",
        "if num_free_seq_slots < 0:", "if num_free_seq_slots < -1:"),
    Mutant("the watermark is a block higher", "scheduler",
        "int(_WATERMARK * block_manager.device.num_blocks)",
        "int(_WATERMARK * block_manager.device.num_blocks) + 1"),
    Mutant("the watermark is ignored", "scheduler",
        "reserve = self._watermark if self.running else 0", "reserve = 0"),
    Mutant("the watermark is kept while nothing runs", "scheduler",
        "reserve = self._watermark if self.running else 0", "reserve = self._watermark"),
    Mutant("the last free block is not given to a decode", "scheduler",
        "manager.num_blocks_to_append(seqs) <= manager.num_available",
        "manager.num_blocks_to_append(seqs) < manager.num_available"),
    Mutant("a step that preempts admits, too", "scheduler",
        "may_admit=not preemptions)", "may_admit=True)"),
    # --- Order
    Mutant("the last to arrive is the first", "scheduler",
        "*self._policy.rank(seq_group), self._num_arrived",
        "*self._policy.rank(seq_group), -self._num_arrived"),
    Mutant("priorities are ignored", "policy",
        "return (seq_group.priority,)", "return (0,)"),
    Mutant("a large number is a high priority", "policy",
        "return (seq_group.priority,)", "return (-seq_group.priority,)"),
    Mutant("the first behind is preempted, not the last", "policy",
        "return behind[-1]", "return behind[0]"),
    Mutant("the smallest is preempted, not the largest", "policy",
        "max(reversed(behind), key=num_blocks)", "min(reversed(behind), key=num_blocks)"),
    Mutant("swapped requests come after all that wait", "scheduler",
        "queue = min(queues, key=lambda queue: self._rank(queue.head))", "queue = queues[0]"),
    Mutant("swapped requests come in the wrong order", "scheduler",
        "self.swapped = WaitingQueue(self._rank)",
        "self.swapped = WaitingQueue(lambda group: tuple(-own for own in self._rank(group)))"),
    # --- Chunks
    Mutant("a first chunk is a token short", "scheduler",
        "chunk = min(num_new, budget // len(seqs))\n",
        "chunk = max(min(num_new, budget // len(seqs)) - 1, 1)\n"),
    Mutant("a further chunk is half of what is left", "scheduler",
        "chunk = min(seq_group.first_seq.get_num_new_tokens(), budget // num_seqs)",
        "chunk = min(seq_group.first_seq.get_num_new_tokens(), budget // num_seqs // 2)"),
    Mutant("whole prompts are computed in chunks", "scheduler",
        "(1 if self.config.enable_chunked_prefill else num_new)", "1"),
    # --- Blocks
    Mutant("an aborted request keeps its blocks", "scheduler",
        "        for seq in seq_group.seqs:\n            self.block_manager.free(seq)\n",
        "        for seq in seq_group.seqs:\n"
        "            if seq.status is not SequenceStatus.FINISHED_ABORTED:\n"
        "                self.block_manager.free(seq)\n"),
    Mutant("a block that is left by a copy is not freed", "block_manager",
        "self.device.free_blocks([shared])", "pass"),
    Mutant("host blocks are not freed by a swap", "block_manager",
        "self.host.free_blocks([block])", "pass"),
    Mutant("the last host block is not used", "block_manager",
        "<= self.host.num_free", "< self.host.num_free"),
    Mutant("a block that is written to is not copied", "block_manager",
        "copies.append((shared, blocks[index]))", "pass"),
    Mutant("a block is copied twice", "scheduler",
        "                        self._moves.copy += manager.append_slots(seqs)\n"
        "                    decodes",
        "                        self._moves.copy += 2 * manager.append_slots(seqs)\n"
        "                    decodes"),
    Mutant("blocks are not copied to the host", "scheduler",
        "self._moves.swap_out += self.block_manager.swap_out(seqs)",
        "self.block_manager.swap_out(seqs)"),
    Mutant("several sequences are not swapped", "scheduler",
        'self.config.preemption_mode == "swap" or len(seqs) > 1',
        'self.config.preemption_mode == "swap"'),
    # --- The prefix cache
    Mutant("the prefix cache is not used", "block_manager",
        "if self.enable_prefix_caching and use_cache:", "if False:"),
    Mutant("the last block of a hit is computed again", "block_manager",
        "return self.device.cached_prefix(table.hashes[:num_blocks])",
        "return self.device.cached_prefix(table.hashes[:num_blocks])[:-1]"),
    Mutant("a block is cached before it is full", "block_manager",
        "num_full = seq.data.get_num_computed_tokens() // self.block_size",
        "num_full = min(-(-seq.data.get_num_computed_tokens() // self.block_size),"
        " seq.get_len() // self.block_size)"),
    Mutant("the most recently used block is evicted", "block_pool",
        "self._cached.popitem(last=False)", "self._cached.popitem(last=True)"),
    Mutant("the first block of a prefix is evicted first", "block_manager",
        "self.device.free_blocks(reversed(table.blocks))",
        "self.device.free_blocks(table.blocks)"),
    Mutant("the cache is used for logprobs of the prompt", "scheduler",
        "return params is not None and params.prompt_logprobs is None",
        "return params is not None"),
    # --- Several tokens a step
    Mutant("lookahead slots exceed the budget", "lookahead_slots",
        "self._config.max_num_batched_tokens // num_tokens - 1",
        "self._config.max_num_batched_tokens"),
    Mutant("the worker runs an iteration less", "scheduler",
        "num_steps=1 if self.config.speculative else 1 + num_lookahead_slots",
        "num_steps=1 if self.config.speculative else max(num_lookahead_slots, 1)"),
    Mutant("lookahead slots go beyond the end", "lookahead_slots",
        "self._num_tokens_to_come(seq_group) - 1", "self._num_tokens_to_come(seq_group)"),
)  # fmt: skip


class Found(NamedTuple):
    """A run of `seqtop test` with a fault."""

    status: int
    by: list[str]
    """The recordings that are not equal."""
    first: str
    """The first difference, or the failure."""


def tested(package: Path, recordings: Path) -> Found:
    """Runs `seqtop test` with the scheduler of a copy of the package."""
    # A module is looked for in the working folder first.
    done = run(
        *SEQTOP, "test", str(recordings), "--json", "--timeout", "60", cwd=package.parent,
        timeout=_SECONDS,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    others = [own for own in document["recordings"] if own["outcome"] != "equal"]
    first = ""
    if others:
        difference = (others[0]["proof"] or {}).get("first_difference") or {}
        first = others[0]["problem"] or f"{difference['kind']}, step {difference['step_a']}"
    by = [Path(own["path"]).stem for own in others]
    return Found(done.returncode, by, first)


def try_random_runs(num_runs: int, folder: Path) -> Counter[str]:
    """Tests the scheduler as it is with recordings of random runs; returns counts."""
    models = small_models(folder)
    counts: Counter[str] = Counter()
    for number, model in enumerate(models):
        recordings = folder / f"random-{model.name}"
        recordings.mkdir()
        for seed in range(number, num_runs, len(models)):
            record_random(recordings / f"{seed}.seqtop", seed, [model])
        command = [*SEQTOP, "test", str(recordings), "--model", str(model), "--json"]
        done = run(*command, timeout=_SECONDS)
        for own in json.loads(done.stdout)["recordings"]:
            proof = own["proof"] or {"num_steps": 0, "num_equal_steps": 0}
            counts["recordings"] += 1
            counts[own["outcome"]] += 1
            counts["steps"] += proof["num_steps"]
            counts["equal steps"] += proof["num_equal_steps"]
            if own["outcome"] != "equal":
                print(own)
    return counts


def operator_faults(count: int, seed: int) -> list[OperatorMutant]:
    """Returns a sample of the faults of single operators, in the order of the source."""
    found = [own for module in _MODULES for own in operator_mutants(module, _NO_DECISIONS)]
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[number] for number in sorted(chosen)]


def measure(
    mutants: Sequence[Mutant | OperatorMutant], folder: Path
) -> Iterator[tuple[Mutant | OperatorMutant | None, Found]]:
    """Yields what is found without a fault, and with each."""
    recordings = folder / "recordings"
    recordings.mkdir()
    record_all(recordings)
    package = copy_package(folder)
    yield None, tested(package, recordings)
    for mutant in mutants:
        with applied(package, mutant):
            yield mutant, tested(package, recordings)


def main(arguments: list[str]) -> None:
    """Prints each fault with the recordings that find it."""
    parser = argparse.ArgumentParser(prog="python -m tests.release scheduler_mutants")
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--operators", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=0)
    options = parser.parse_args(arguments)
    mutants: Sequence[Mutant | OperatorMutant] = [
        own for own in MUTANTS if options.word in own.name
    ]
    if options.operators:
        mutants = operator_faults(options.operators, options.seed)
    with tempfile.TemporaryDirectory() as name:
        if options.runs:
            print(dict(try_random_runs(options.runs, Path(name))))
            return
        begun, num_found = time.perf_counter(), 0
        for mutant, found in measure(mutants, Path(name)):
            num_found += mutant is not None and found.status == 1
            title = "unchanged" if mutant is None else mutant.name
            print(f"{found.status} {len(found.by):2} {title:50}  {found.first}", flush=True)
        seconds = time.perf_counter() - begun
        print(f"{num_found} of {len(mutants)} are found, in {seconds:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
