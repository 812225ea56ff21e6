"""A viewer of SGLang's real scheduler is right at each step, over the kinds of work it has.

Run by `make test-sglang`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from stepping import (
    abort,
    alone,
    generate,
    go_on,
    make_scheduler,
    page_sizes,
    pause,
    run_loop,
    stepped,
)

from seqtop.adapters.sglang.hook import follow
from seqtop.live.session import Session
from seqtop.state.ordering import SequenceView
from seqtop.state.status_sentence import status_sentence
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.waiting import SECONDS

KINDS = {"chunk", "chunk aborted", "prefix hit", "prefix miss"} | {
    "retracted",
    "retracted in a pause",
}
CORES = {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}
HOOKS = (
    "_after_add",
    "_after_input",
    "_before_schedule",
    "_before_run",
    "_after_run",
    "_after_process",
    "_before_abort",
    "_before_retract",
)
HOOKS_OF_THE_TREE = ("_before_caching", "_after_caching", "_after_insert", "_before_frees")


def work(scheduler: Any, name: str = "") -> Iterator[list[Any]]:
    """The inputs of a scheduler, turn by turn: chunks, hits, retractions, aborts and a pause."""
    shared = [100 + i for i in range(40)]

    def new(request: str, ids: list[int], length: int) -> Any:
        return generate(scheduler, f"{name}{request}", ids, length)

    yield [new("first", shared + [300] * 8, 10)]
    for _ in range(14):
        yield []
    yield [new("running", shared + [450] * 5, 60)]
    for _ in range(8):
        yield []
    yield [abort(f"{name}running")]
    for _ in range(3):
        yield []
    yield [new("halved", [850 + i for i in range(150)], 5)]
    yield []
    yield [abort(f"{name}halved")]
    for _ in range(3):
        yield []
    for i in range(4):
        # One by one: of two at once, the admission sees that they do not fit.
        yield [new(f"r{i}", shared + [400 + i] * 10, 90 + 5 * i)]
        yield []
        yield []
    yield [new("late", shared + [500] * 5, 200), new("twin", shared + [500] * 5, 30)]
    yield []
    yield [new("long", [600 + i for i in range(100)], 5)]
    for _ in range(8):
        yield []
    yield [new("queued", [700 + i for i in range(150)], 50)]
    yield []
    yield [abort(f"{name}late"), abort(f"{name}queued")]
    yield []
    yield [new("chunked", [800 + i for i in range(150)], 5)]
    for _ in range(80):
        yield []
    yield [pause()]
    yield []
    yield [go_on()]
    for _ in range(80):
        yield []
    while not scheduler.is_fully_idle():
        yield []


SERVED = {"first", "r0", "r1", "r2", "r3", "twin", "long", "chunked"}
ABORTED = {"halved", "late", "queued", "running"}
NUM_REQUESTS = len(SERVED) + len(ABORTED)


def check_work(page_size: int, overlap: bool, core: str) -> None:
    import sglang

    scheduler = make_scheduler(page_size=page_size, disable_overlap_schedule=not overlap)
    assert scheduler.enable_overlap is overlap
    assert type(scheduler.tree_cache.tree_core).__name__ == core
    with stepped(scheduler) as engine:
        engine.run(work(scheduler))
    assert engine.spy.kinds == KINDS
    num_output = {req.rid: len(req.output_ids) for req in engine.spy.reqs}
    assert [num_output[name] > 0 for name in ("running", "late", "queued")] == [True, False, False]
    assert num_output["running"] < 60
    assert len(engine.spy.reqs) == NUM_REQUESTS
    print(
        f"\nSGLang {sglang.__version__}, pages of {page_size}, overlap {overlap}, {core}:"
        f" {engine.num_compared} steps, {len(engine.spy.reqs)} requests,"
        f" {len(engine.differences)} differences, {len(engine.watch.findings)} findings,"
        f" reasons to wait {engine.reasons}"
    )


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("overlap", [False, True], ids=["no overlap", "overlap"])
@pytest.mark.parametrize("page_size", page_sizes())
def test_a_viewer_shows_what_the_scheduler_has(page_size: int, overlap: bool, core: str) -> None:
    environment = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": core}
    alone(check_work, page_size, overlap, CORES[core], **environment)


def check_drop(turns: int) -> None:
    """A request is rejected, since one waits already, before any step or while others run."""
    scheduler = make_scheduler(max_queued_requests=1, max_running_requests=1)
    with stepped(scheduler) as engine:

        def requests() -> Iterator[list[Any]]:
            yield [generate(scheduler, "runs", [5] * 20, 20)]
            for _ in range(turns):
                yield []
            yield [generate(scheduler, name, [6] * 20, 5) for name in ("waits", "dropped")]

        engine.run(requests())
    state = engine.session.state
    (seq_id,) = state.requests["dropped"].seq_ids
    sentence = status_sentence(state, SequenceView(), state.sequences[seq_id])
    assert sentence.startswith("Aborted after 0 tokens: The request queue is full.")


@pytest.mark.parametrize("turns", [0, 5])
def test_a_dropped_request_says_why(turns: int) -> None:
    alone(check_drop, turns)


def check_leak() -> None:
    scheduler = make_scheduler(max_total_tokens=1024)
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        assert follow(scheduler, PublisherSettings(bind=endpoint, tokenizer="")) is not None
        command = [sys.executable, "-m", "seqtop", "check", "--duration", "2", "--json", endpoint]
        found: dict[str, Any] = {}

        def turns() -> Iterator[list[Any]]:
            yield [generate(scheduler, "one", [5] * 20, 900)]
            for _ in range(10):
                yield []
            assert scheduler.token_to_kv_pool_allocator.alloc(3) is not None
            yield []
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as checker:
                while checker.poll() is None:
                    time.sleep(0.01)  # or the request has all its tokens before
                    yield []
                found.update(json.loads(checker.communicate()[0]), status=checker.returncode)

        run_loop(scheduler, turns())
    print(found)
    assert found["status"] == 1
    assert {finding["rule"] for finding in found["findings"]} == {"block-leak"}


def test_another_process_finds_a_leak() -> None:
    alone(check_leak)


def serve(scheduler: Any, name: str) -> dict[str, int]:
    """Serves every request that its client does not abort; returns the tokens of each."""
    from sglang.srt.managers.schedule_batch import Req

    reqs: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        add = Req.__init__

        def added(req: Any, *args: Any, **kwargs: Any) -> None:
            add(req, *args, **kwargs)
            reqs[req.rid.removeprefix(name)] = req

        patch.setattr(Req, "__init__", added)
        run_loop(scheduler, work(scheduler, name))
    assert reqs.keys() == SERVED | ABORTED
    assert all(
        # After a retraction, SGLang may stop before `min_new_tokens`.
        req.finished_reason.to_json()["type"] in ("length", "stop") and req.output_ids
        for rid, req in reqs.items()
        if rid in SERVED
    )
    return {rid: len(req.output_ids) for rid, req in reqs.items()}


def check_failing_hooks() -> None:
    from seqtop.adapters.sglang.radix_tree import RadixTree
    from seqtop.adapters.sglang.scheduler_observer import SchedulerObserver

    scheduler = make_scheduler()
    hooks = [(SchedulerObserver, name) for name in HOOKS]
    hooks += [(RadixTree, name) for name in HOOKS_OF_THE_TREE]
    for owner, hook in hooks:
        errors: list[str] = []

        def fail(*_: Any, hook: str = hook, errors: list[str] = errors, **__: Any) -> None:
            errors.append(hook)
            raise RuntimeError(f"{hook} fails")

        with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="sq") as directory:
            patch.setattr(owner, hook, fail)
            settings = PublisherSettings(bind=f"ipc://{directory}/e", tokenizer="")
            attachment = follow(scheduler, settings)
            assert attachment is not None
            serve(scheduler, f"{hook}-")
            assert errors == [hook], "the first error restores all methods"
            assert not attachment.is_attached
    print(f"{len(hooks)} failing hooks: {NUM_REQUESTS} requests served with each")


def test_sglang_serves_every_request_whichever_hook_fails() -> None:
    alone(check_failing_hooks)


def check_dead_publisher() -> None:
    scheduler = make_scheduler()
    with TemporaryDirectory(prefix="sq") as directory:
        attachment = follow(scheduler, PublisherSettings(bind=f"ipc://{directory}/e", tokenizer=""))
        assert attachment is not None
        process = attachment._publisher._process._process
        process.kill()
        process.wait()
        serve(scheduler, "")
        assert not attachment.is_attached


def check_full_disk() -> None:
    scheduler = make_scheduler()
    with TemporaryDirectory(prefix="sq") as directory:
        # As on a full disk, neither this process nor those that it starts can write to a file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        endpoint = f"ipc://{directory}/e"
        settings = PublisherSettings(
            bind=endpoint, tokenizer="", flight_recorder=f"{directory}/records"
        )
        attachment = follow(scheduler, settings)
        assert attachment is not None
        with Session(endpoint) as session:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            num_tokens = serve(scheduler, "")
            assert attachment.is_attached
            attachment.close("the test has ended")
            assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
            shown = {
                name: len(session.state.sequences[seq_id].output_token_ids)
                for name, request in session.state.requests.items()
                for seq_id in request.seq_ids
            }
        assert shown == num_tokens
        assert not any(path.stat().st_size for path in Path(directory, "records").rglob("*.seqtop"))


@pytest.mark.parametrize("check", [check_dead_publisher, check_full_disk])
def test_sglang_serves_every_request_without(check: Any) -> None:
    alone(check)


def check_session(page_size: int) -> None:
    """A streaming session keeps its pages between its turns, which is no leak."""
    from sglang.srt.managers.io_struct import CloseSessionReqInput, OpenSessionReqInput

    scheduler = make_scheduler(page_size=page_size, enable_streaming_session=True)
    kept: list[int] = []
    with stepped(scheduler) as engine:

        def turns() -> Iterator[list[Any]]:
            yield [OpenSessionReqInput(capacity_of_str_len=1000, session_id="s", streaming=True)]
            for turn in range(3):
                yield [generate(scheduler, f"turn{turn}", [5 + turn] * 20, 6, session="s")]
                for _ in range(10):
                    yield []
                # Others run, and their steps have to add up.
                yield [generate(scheduler, f"other{turn}", [50 + turn] * 20, 6)]
                for _ in range(10):
                    yield []
                with engine.session.lock:
                    state = engine.session.state
                    (seq_id,) = state.requests[f"turn{turn}"].seq_ids
                    kept.append(len(state.sequences[seq_id].block_table))
            yield [CloseSessionReqInput(session_id="s")]
            yield [generate(scheduler, "after", [99] * 20, 6)]
            for _ in range(10):
                yield []

        engine.run(turns())
    assert kept == sorted({*kept} - {0}), kept
    print(f"\na session, pages of {page_size}: {engine.num_compared} steps, kept {kept}")


@pytest.mark.parametrize("page_size", page_sizes())
def test_the_pages_that_a_session_keeps_are_no_leak(page_size: int) -> None:
    alone(check_session, page_size)


def check_twins(overlap: bool, page_size: int) -> None:
    """Requests with one prompt: a later one finds what an earlier one still computes."""
    from sglang.srt.managers.io_struct import FlushCacheReqInput

    scheduler = make_scheduler(disable_overlap_schedule=not overlap, page_size=page_size)
    # The second chunk of the first twin leaves room for others, which find its first chunk.
    shared = [100 + i for i in range(45)]
    with stepped(scheduler) as engine:

        def turns() -> Iterator[list[Any]]:
            for part in range(3):
                for twin in range(3):
                    yield [generate(scheduler, f"{part}-{twin}", [*shared, twin], 6)]
                for _ in range(25):
                    yield []
                yield [FlushCacheReqInput()]

        engine.run(turns())
    assert "prefix hit" in engine.spy.kinds
    print(f"\ntwins, overlap {overlap}, pages of {page_size}: {engine.num_compared} steps")


@pytest.mark.parametrize("page_size", page_sizes())
@pytest.mark.parametrize("overlap", [False, True], ids=["no overlap", "overlap"])
def test_a_prompt_that_comes_again_while_it_is_computed(overlap: bool, page_size: int) -> None:
    alone(check_twins, overlap, page_size)
