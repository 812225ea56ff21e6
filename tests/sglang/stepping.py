"""SGLang's real scheduler in its real event loop, and a viewer that is compared at each step.

Nothing of SGLang's is replaced but the socket that requests come from. The comparison reads the
scheduler itself, slot by slot, which the adapter must not do.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import traceback
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.sglang.hook import follow
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import SequenceState
from seqtop.transport.publisher_settings import PublisherSettings
from tests.support.watch import Row, SteppedViewer, Watch, watched

MODEL = Path(__file__).resolve().parents[2] / "engine_stub" / "weights"


def page_sizes() -> list[int]:
    """The sizes of pages that this version can run on a CPU.

    Until 0.5.20 a Triton kernel allocates larger ones, for which there is a stand-in only.
    """
    (folder,) = importlib.util.find_spec("sglang").submodule_search_locations
    source = Path(folder, "srt/mem_cache/allocator/paged.py").read_text()
    return [1, 16] if "use_triton_kernels" in source else [1]


def alone(function: Callable[..., None], *args: Any, **environment: str) -> None:
    """Calls a function of a module in a process of its own, which can have one scheduler only."""
    context = multiprocessing.get_context("forkserver")  # so that SGLang is imported once
    context.set_forkserver_preload(["sglang.srt.managers.scheduler", "sglang.srt.models.registry"])
    process = context.Process(target=_call, args=(function, args, environment))
    process.start()
    process.join()
    assert process.exitcode == 0


def _call(function: Callable[..., None], args: tuple[Any, ...], environment: Any) -> None:
    os.environ.update(environment)
    status = 1
    try:
        function(*args)
        status = 0
    except BaseException:  # noqa: BLE001 - the exit status says so
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)  # SGLang's threads do not end


def make_scheduler(**options: Any) -> Any:
    """SGLang's scheduler with a small pool, in this process."""
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.server_args import PortArgs, ServerArgs

    defaults: dict[str, Any] = {
        "model_path": str(MODEL),
        "device": "cpu",
        "dtype": "float32",
        "mem_fraction_static": 0.3,
        "grammar_backend": "none",
        "log_level": "error",
        "max_total_tokens": 256,
        "page_size": 1,
        "chunked_prefill_size": 32,
        "max_running_requests": 8,
        "schedule_conservativeness": 0.1,
    }
    arguments = ServerArgs(**(defaults | options))
    try:
        from sglang.srt.runtime_context import SpawnRanks, publish
    except ImportError:  # 0.5.20
        from sglang.srt.runtime_context import publish

        arguments.resolve_once()
        publish(arguments, role="scheduler")
        ports = PortArgs.init_new(arguments)
        return Scheduler(arguments, ports, 0, 0, 0, 0, 0, 0, None)
    arguments.resolve_once()
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
    return Scheduler(arguments, PortArgs.init_new(arguments))


HOST = "2.2.2.2"
"""SGLang's `FAKE_BOOTSTRAP_HOST`, the other side of a transfer that moves nothing."""


def generate(
    scheduler: Any,
    rid: str,
    ids: list[int],
    num_new: int,
    *,
    room: int | None = None,
    session: str = "",
    **params: Any,
) -> Any:
    """A request as SGLang's tokenizer process sends it.

    Args:
        scheduler: The scheduler.
        rid: The request's id.
        ids: Its prompt.
        num_new: The tokens to generate.
        room: The id of the transfer, if prefill and decode are disaggregated.
        session: The id of its session.
        params: Further sampling parameters.
    """
    from sglang.srt.managers.io_struct import SessionParams, TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    options = {"max_new_tokens": num_new, "min_new_tokens": num_new, "temperature": 0.0}
    sampling = SamplingParams(**(options | params))
    sampling.normalize(scheduler.tokenizer)
    return TokenizedGenerateReqInput(
        rid=rid,
        input_text="",
        input_ids=array("q", ids),
        mm_inputs=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=[],
        stream=True,
        input_embeds=None,
        token_type_ids=None,
        session_params=SessionParams(id=session) if session else None,
        bootstrap_host=None if room is None else HOST,
        bootstrap_room=room,
    )


def abort(rid: str) -> Any:
    from sglang.srt.managers.io_struct import AbortReq

    return AbortReq(rid=rid)


def pause() -> Any:
    """Retracts all running requests, until `go_on`."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    return PauseGenerationReqInput(mode="retract")


def go_on() -> Any:
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    return ContinueGenerationReqInput()


def run_loop(
    scheduler: Any, turns: Iterator[list[Any]], finish: Callable[[], None] = lambda: None
) -> None:
    """Runs the scheduler's own event loop; each of `turns` is what it receives in one turn."""

    def receive(*_: Any, **__: Any) -> list[Any]:
        received = next(turns, None)
        if received is None:
            finish()
            scheduler.gracefully_exit = True
            return []
        return received

    scheduler.request_receiver = SimpleNamespace(recv_requests=receive)
    scheduler.gracefully_exit = False
    scheduler.run_event_loop()


class Spy:
    """Records the calls of a scheduler. It wraps the classes, and before the adapter does."""

    def __init__(self, scheduler: Any) -> None:
        from sglang.srt.managers.schedule_batch import Req
        from sglang.srt.managers.schedule_policy import PrefillAdder

        self.scheduler = scheduler
        self.reqs: list[Any] = []
        self.refused: list[str] = []
        """The requests that the last attempt to admit some found no memory for."""
        self.num_processed = 0
        self.is_ahead = False
        """True if a batch was launched before the results of the one before were processed."""
        self.batch: dict[str, int] = {}
        """The tokens of each request in the last batch whose results were processed."""
        self.cached: dict[str, int] = {}
        """By request, the tokens that its last admission found in the radix tree."""
        self.prefix = [0, 0]
        """Tokens that admissions have looked for in the radix tree, and those that were found."""
        self.kinds: set[str] = set()
        """The events so far."""
        self.ends: dict[str, str] = {}
        """The end of each request that was told to the client."""
        self._batches: list[dict[str, int]] = []
        self._patch = pytest.MonkeyPatch()
        kind = type(scheduler)
        add, run, process = (
            kind._add_request_to_queue,
            kind.run_batch,
            kind.process_batch_result,
        )
        retract, admit = Req.reset_for_retract, PrefillAdder.add_one_req

        def added(this: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
            if req not in self.reqs:
                self.reqs.append(req)
            return add(this, req, *args, **kwargs)

        def ran(this: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            self._launch(batch)
            return run(this, batch, *args, **kwargs)

        def processed(this: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = process(this, batch, *args, **kwargs)
            self.batch = self._batches.pop(0)
            self.num_processed += 1
            return result

        def retracted(req: Any) -> Any:
            is_paused = getattr(scheduler, "_engine_paused", False)
            self.kinds.add("retracted in a pause" if is_paused else "retracted")
            self.cached.pop(req.rid, None)
            return retract(req)

        def admitted(adder: Any, req: Any, *args: Any, **kwargs: Any) -> Any:
            result = admit(adder, req, *args, **kwargs)
            self.refused = [req.rid] if result.name == "NO_TOKEN" else []
            return result

        stop = kind.process_pending_chunked_abort

        def stopped(this: Any) -> Any:
            req = this._pending_chunked_abort_req
            if req is not None and req is this.chunked_req:
                self.kinds.add("chunk aborted")
            return stop(this)

        self._patch.setattr(kind, "process_pending_chunked_abort", stopped)
        self._patch.setattr(kind, "_add_request_to_queue", added)
        self._patch.setattr(kind, "run_batch", ran)
        self._patch.setattr(kind, "process_batch_result", processed)
        self._patch.setattr(Req, "reset_for_retract", retracted)
        self._patch.setattr(PrefillAdder, "add_one_req", admitted)

    def _launch(self, batch: Any) -> None:
        self.is_ahead |= bool(self._batches)
        if batch.forward_mode.is_decode():
            for req in batch.reqs:  # those that came with their KV cache
                self.cached.setdefault(req.rid, req.kv.kv_committed_len - 1)
            self._batches.append({req.rid: 1 for req in batch.reqs})
            return
        for req, num_found in zip(batch.reqs, batch.prefix_lens, strict=True):
            if req.rid in self.cached:
                continue
            self.cached[req.rid] = num_found
            self.prefix[0] += len(req.origin_input_ids) + len(req.output_ids)
            # What the session of a request has kept is no prefix hit.
            is_kept = any(slot.kv is req.kv for slot in session_slots(self.scheduler))
            self.prefix[1] += req.kv.cache_protected_len if is_kept else num_found
            self.kinds.add("prefix hit" if num_found else "prefix miss")
        if self.scheduler.chunked_req is not None:
            self.kinds.add("chunk")
        self._batches.append(
            {req.rid: num for req, num in zip(batch.reqs, batch.extend_lens, strict=True)}
        )

    def close(self) -> None:
        self._patch.undo()


QUEUES: dict[str, Callable[[Any], list[Any]]] = {
    "PREFILL_BOOTSTRAP_QUEUE": lambda it: it.disagg_prefill_bootstrap_queue.queue,
    "PREFILL_INFLIGHT_QUEUE": lambda it: it.disagg_prefill_inflight_queue,
    "DECODE_PREALLOC_QUEUE": lambda it: [one.req for one in it.disagg_decode_prealloc_queue.queue],
    "DECODE_RETRACTED_QUEUE": lambda it: it.disagg_decode_prealloc_queue.retracted_queue,
    "DECODE_TRANSFER_QUEUE": lambda it: [one.req for one in it.disagg_decode_transfer_queue.queue],
}


def session_slots(scheduler: Any) -> list[Any]:
    """The records of streaming sessions."""
    session = getattr(scheduler.tree_cache, "session", None)
    return [*session.slots.values()] if session is not None else []


def queued(scheduler: Any) -> dict[Any, str]:
    """The requests in queues of disaggregation, each with the queue's name."""
    found: dict[Any, str] = {}
    for name, reqs in QUEUES.items():
        with suppress(AttributeError):  # those of the other mode do not exist
            found |= dict.fromkeys(reqs(scheduler) or (), name)
    return found


class SteppedScheduler(SteppedViewer):
    """A scheduler and its viewer."""

    def __init__(self, scheduler: Any, session: Session, watch: Watch, spy: Spy) -> None:
        super().__init__(session, watch)
        self.scheduler, self.spy = scheduler, spy
        process = scheduler.process_batch_result

        def processed(*args: Any, **kwargs: Any) -> Any:
            result = process(*args, **kwargs)
            self.compare()
            return result

        scheduler.process_batch_result = processed

    def run(self, turns: Iterator[list[Any]]) -> None:
        """Runs the event loop until all requests have ended."""

        def until_done() -> Iterator[list[Any]]:
            yield from turns
            for _ in range(2_000):
                if not self.live():
                    yield []  # for what happened after the last step
                    return
                yield []
            left = [(req.rid, queued(self.scheduler).get(req)) for req in self.live()]
            raise AssertionError(f"it does not end: {left}")

        run_loop(self.scheduler, until_done())

    def live(self) -> list[Any]:
        waiting = [*self.scheduler.waiting_queue, *queued(self.scheduler)]
        return [
            req
            for req in self.spy.reqs
            if (req.kv.req_pool_idx is not None and not req.finished()) or req in waiting
        ]

    def table(self, req: Any) -> list[int]:
        kv, size = req.kv, self.scheduler.page_size
        if kv.req_pool_idx is None:
            return []
        slots = self.scheduler.req_to_token_pool.req_to_token[kv.req_pool_idx]
        pages = []
        for start in range(0, kv.kv_allocated_len, size):
            page = [int(slot) for slot in slots[start : min(start + size, kv.kv_allocated_len)]]
            assert page == [page[0] + offset for offset in range(len(page))], page
            pages.append(page[0] // size)
        return pages

    def content(self, *, unlocked_only: bool) -> dict[int, int]:
        """The pages of the radix tree, each with its position in the prefix."""
        size, tree = self.scheduler.page_size, self.scheduler.tree_cache
        if not hasattr(tree, "tree_core"):  # a decode instance of 0.5.20 has none
            return {}
        walk = tree.tree_core.walk_for_kv_canary(unlocked_only, False)
        return {
            int(slot) // size: int(position) // size
            for slot, position in zip(walk.slot_indices, walk.positions, strict=True)
        }

    def kept(self) -> set[int]:
        """The pages that streaming sessions keep, whether or not a request runs on them."""
        slots = session_slots(self.scheduler)
        return {page for slot in slots for page in self.table(slot)}

    def truth(self) -> dict[str, Any]:
        scheduler, size = self.scheduler, self.scheduler.page_size
        requests, held, running, queues = {}, set(), set(), queued(scheduler)
        for req in self.live():
            table = self.table(req)
            held |= {*table}
            is_running = req.kv.req_pool_idx is not None and req not in queues
            if is_running:
                running.add(req.rid)
            total = len(req.origin_input_ids) + len(req.output_ids)
            status = "RETRACTED" if req.is_retracted else "WAITING"
            requests[req.rid] = {
                "status": "RUNNING" if is_running else queues.get(req, status),
                "computed": min(req.kv.kv_committed_len, total) if table else 0,
                "table": table,
                "prompt": list(req.origin_input_ids),
                "output": list(req.output_ids),
                "retractions": req.retraction_count,
                "cached": self.spy.cached[req.rid] if is_running else None,
            }
        cached = self.content(unlocked_only=False)
        unlocked = self.content(unlocked_only=True)
        num_free = scheduler.token_to_kv_pool_allocator.available_size() // size
        return {
            "requests": requests,
            "running": running,
            "waiting": [req.rid for req in scheduler.waiting_queue],
            "used": len(held | self.kept()),
            "cached": len(cached.keys() - held - self.kept()),
            "content": cached,
            "protected": cached.keys() - unlocked.keys(),
            "evictable": {*unlocked},
            "free": num_free,
            "prefix": self.spy.prefix,
            "batch": self.spy.batch,
            "tokens": sum(self.spy.batch.values()),
        }

    def shown(self) -> dict[str, Any] | None:
        state = self.session.state
        if state.stats is None:
            return None
        rows = self.rows(state)
        cached = state.cached_blocks or {}
        held = {block for sequence in state.sequences.values() for block in sequence.block_table}
        return {
            "requests": {
                name: {
                    "status": sequence.engine_status or sequence.status.name,
                    "computed": sequence.num_computed_tokens,
                    "table": sequence.block_table.copy(),
                    "prompt": list(request.prompt_token_ids),
                    "output": list(sequence.output_token_ids),
                    "retractions": request.num_preemptions,
                    "cached": sequence.num_cached_tokens
                    if sequence.status is SequenceStatus.RUNNING
                    else None,
                }
                for name, (request, sequence) in rows.items()
            },
            **self.shown_queues(rows, hidden=QUEUES.keys()),
            "used": state.stats.num_used_blocks,
            "cached": state.stats.num_cached_blocks,
            "content": {block: entry.position for block, entry in cached.items()},
            "protected": cached.keys() & held,
            "evictable": cached.keys() - held,
            "free": state.stats.num_free_blocks,
            "prefix": [state.stats.prefix_cache_queries, state.stats.prefix_cache_hits],
        }

    def rows(self, state: EngineState) -> dict[str, Row]:
        """The end of a request is published after the step that its sequence ends in."""
        return {
            name: row
            for name, row in super().rows(state).items()
            if not SequenceStatus.is_finished(row[1].status)
        }

    def compare_reasons(self, given: dict[str, str]) -> None:
        """A reason of no blocks is one where `add_one_req` has said so, and the reverse."""
        causes = ("no_blocks", "reserved_blocks")
        no_blocks = {name for name, cause in given.items() if cause in causes}
        if not no_blocks <= {*self.spy.refused}:
            self.differ(f"reasons {given}, no memory found for {self.spy.refused}")

    def ends(self) -> Iterator[tuple[str, str, list[int]]]:
        kinds = {"stop": "FINISHED_STOPPED", "length": "FINISHED_LENGTH_CAPPED"}
        for req in self.spy.reqs:
            reason = req.finished_reason.to_json()["type"] if req.finished_reason else "abort"
            yield req.rid, kinds.get(reason, "FINISHED_ABORTED"), list(req.output_ids)

    def ended_status(self, sequence: SequenceState) -> str:
        return sequence.status.name


@contextmanager
def stepped(scheduler: Any, rules: Collection[str] = ()) -> Iterator[SteppedScheduler]:
    """A viewer of a scheduler, in which `seqtop check` finds something by these rules alone."""
    with TemporaryDirectory(prefix="sq") as directory:
        endpoint = f"ipc://{directory}/e"
        spy = Spy(scheduler)
        attachment = follow(scheduler, PublisherSettings(bind=endpoint, tokenizer=""))
        assert attachment is not None
        with watched(endpoint) as (session, watch):
            engine = SteppedScheduler(scheduler, session, watch, spy)
            try:
                yield engine
                assert attachment.is_attached
                assert spy.is_ahead is scheduler.enable_overlap
                attachment.close("the test has ended")  # now the last steps arrive, too
                engine.end()
                engine.assert_found(rules)
            finally:
                spy.close()
