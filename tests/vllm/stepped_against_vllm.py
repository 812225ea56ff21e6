"""A viewer of a real scheduler is right at each step, over the kinds of work that vLLM has.

Run by `make test-vllm`, as `against_vllm.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kv_connector
import pytest
import token_executor
import torch
from stepping import make_core, new_request, stepped
from vllm.config import SchedulerConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from seqtop.adapters.vllm import hook
from seqtop.state.ordering import SequenceView

BLOCK_SIZE = 16


def prompt(number: int, length: int = 40) -> list[int]:
    shared = [300 + position for position in range(16 * (1 + number % 2))]
    return (shared + [900 + number] * length)[:length]


def full() -> Any:
    return FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32
    )


def window(size: int = 48) -> Any:
    return SlidingWindowSpec(
        block_size=BLOCK_SIZE,
        num_kv_heads=1,
        head_size=8,
        dtype=torch.float32,
        sliding_window=size,
    )


def sampling(**options: Any) -> Any:
    from vllm.sampling_params import SamplingParams

    return SamplingParams(temperature=0, ignore_eos=True, detokenize=False, **options)


def version() -> tuple[int, ...]:
    import vllm

    return tuple(map(int, vllm.__version__.split(".")[:2]))


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def is_async(request: pytest.FixtureRequest) -> bool:
    """True for async scheduling."""
    return bool(request.param)


def report(engine: Any, title: str) -> None:
    import vllm

    way = "sync" if engine.core.batch_queue is None else "async"
    print(
        f"\nvLLM {vllm.__version__}, {title}, {way}: {engine.num_compared} steps,"
        f" {len(engine.differences)} differences, {len(engine.watch.findings)} findings,"
        f" reasons to wait {engine.reasons}"
    )


@pytest.mark.parametrize(
    "limits",
    [
        {"num_gpu_blocks_override": 20},
        {"num_gpu_blocks_override": 20, "scheduling_policy": "priority"},
        {"max_num_seqs": 2},
        {"max_num_batched_tokens": 64},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 256},
    ],
    ids=["blocks", "priority", "seats", "budget", "whole prompts"],
)
def test_limits(limits: dict[str, Any], is_async: bool) -> None:
    with stepped(make_core(**limits, async_scheduling=is_async)) as engine:
        for number in range(12):
            priority = number % 3 if "scheduling_policy" in limits else 0
            # Those that stop at a token do so while their next step is in flight.
            name = f"req-{number}"
            stop = token_executor.token(f"{name}-00000000", 49) if number % 2 else None
            params = sampling(max_tokens=30, stop_token_ids=[stop] if stop else None)
            engine.add(name, prompt(number), params=params, priority=priority)
        for _ in range(6):
            engine.step()
        engine.abort("req-3")
        engine.abort("req-11")
        engine.run()
        report(engine, f"{limits}")


@pytest.mark.parametrize("kinds", ["window", "full and window"])
def test_windows(kinds: str, is_async: bool) -> None:
    specs = {"a": window()} | ({"b": full()} if "full" in kinds else {})
    with stepped(
        make_core(kv_cache_specs=specs, num_gpu_blocks_override=48, async_scheduling=is_async)
    ) as engine:
        for number in range(8):
            engine.add(f"req-{number}", prompt(number, 60), max_tokens=100)
        engine.run()
        report(engine, kinds)


@pytest.mark.parametrize("limits", [{}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 64}])
def test_lora_slots(limits: dict[str, int], is_async: bool) -> None:
    from vllm.lora.request import LoRARequest

    core = make_core(enable_lora=True, max_loras=1, async_scheduling=is_async, **limits)
    with stepped(core) as engine:
        for number in range(12):
            lora = LoRARequest(f"lora{number % 3}", 1 + number % 3, "/nowhere")
            adapter = {} if number % 4 == 3 else {"lora_request": lora}
            engine.add(f"req-{number}", prompt(number), **adapter)
        engine.run()
        report(engine, f"one LoRA slot for three adapters, {limits}")
        assert "lora_slots" in engine.reasons


@pytest.mark.parametrize("state", ["PAUSED_NEW", "PAUSED_ALL"])
def test_pause(state: str, is_async: bool) -> None:
    from vllm.v1.core.sched import interface

    if not hasattr(interface, "PauseState"):
        pytest.skip("this version cannot be paused")
    with stepped(make_core(async_scheduling=is_async)) as engine:
        for number in range(3):
            engine.add(f"req-{number}", prompt(number), max_tokens=60)
        engine.step()
        engine.scheduler.set_pause_state(interface.PauseState[state])
        for number in range(3, 6):
            engine.add(f"req-{number}", prompt(number))
        for _ in range(4):
            engine.step()
        if state == "PAUSED_NEW":  # else vLLM makes no steps
            assert engine.reasons.get("paused") == 4
        engine.scheduler.set_pause_state(interface.PauseState.UNPAUSED)
        engine.run()
        report(engine, state)


def test_reset_of_the_prefix_cache_while_requests_run(is_async: bool) -> None:
    with stepped(make_core(async_scheduling=is_async)) as engine:
        for number in range(4):
            engine.add(f"req-{number}", prompt(number), max_tokens=60)
        for _ in range(5):
            engine.step()
        engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        engine.run()
        report(engine, "reset")


def test_streaming_sessions(is_async: bool) -> None:
    with stepped(make_core(async_scheduling=is_async)) as engine:
        for number in range(3):
            engine.add(f"req-{number}", prompt(number), max_tokens=5, resumable=True)
            engine.add(f"req-{number}", [7] * 9, max_tokens=5, resumable=True)
        engine.add("other", prompt(4), max_tokens=90)
        for _ in range(20):
            engine.step()
        engine.add("req-0", [8] * 20, max_tokens=5, resumable=True)
        for _ in range(20):
            engine.step()
        for number in range(3):
            engine.add(f"req-{number}", [], max_tokens=5, resumable=False)
        engine.run()
        assert len(engine.session.state.requests) == 4, "no ghosts"
        report(engine, "streaming sessions")


def test_sessions_that_wait_by_priority(is_async: bool) -> None:
    """Sessions of equal priority wait in the order of their last inputs."""
    core = make_core(scheduling_policy="priority", max_num_seqs=3, async_scheduling=is_async)
    with stepped(core) as engine:
        for number in range(3):
            engine.add(f"req-{number}", prompt(number), max_tokens=5, resumable=True)
        for number in range(4):
            engine.add(f"other-{number}", prompt(4 + number), max_tokens=30)
        for session in (2, 0, 1, 0, 2, 1, 1, 2, 0, 2, 0, 1):  # they keep their seats
            engine.add(f"req-{session}", [7] * 9, max_tokens=5, resumable=True)
            for _ in range(3):
                engine.step()
        for number in range(3):
            engine.add(f"req-{number}", [], max_tokens=5, resumable=False)
        engine.run()
        report(engine, "streaming sessions by priority")


@pytest.mark.parametrize(
    ("kind", "connector", "policy"),
    [
        ("loads, sends", "LoadingConnector", "recompute"),
        ("by priority", "LoadingConnector", "recompute"),
        ("loads in the step", "BlockingConnector", "recompute"),
        ("fails, recomputes", "ReceivingConnector", "recompute"),
        ("fails, ends", "ReceivingConnector", "fail"),
        ("undecided", "ReceivingConnector", "recompute"),
        ("chunks, aborts", "ReceivingConnector", "recompute"),
    ],
    ids=lambda value: value if " " in value or value == "undecided" else "",
)
def test_kv_connector(kind: str, connector: str, policy: str, is_async: bool) -> None:
    from vllm.config import KVTransferConfig

    kv_connector.forget()
    config = KVTransferConfig(
        kv_connector=connector,
        kv_connector_module_path="kv_connector",
        kv_role="kv_both",
        kv_load_failure_policy=policy,
    )
    limits: dict[str, Any] = {"max_num_seqs": 2} if kind in ("by priority", "undecided") else {}
    if kind == "by priority":
        limits["scheduling_policy"] = "priority"
    core = make_core(kv_transfer_config=config, async_scheduling=is_async, **limits)
    with stepped(core) as engine:
        # Older versions do not keep those that hold blocks apart from the others, which decides
        # their order except by priority.
        engine.is_queue_known = kind == "by priority" or hasattr(
            engine.scheduler, "kv_holding_waiting"
        )
        began: dict[str, int] = {}
        """The step at which a load was first seen; below, that of an end with its blocks held."""
        ended: dict[str, int] = {}
        failed: set[str] = set()

        def work(number: int) -> None:
            """The worker's reports in the step of this number."""
            scheduler = engine.scheduler
            for request_id, request in scheduler.requests.items():
                is_loading = request.status.name == "WAITING_FOR_REMOTE_KVS"
                if is_loading and request_id not in scheduler.finished_recving_kv_req_ids:
                    began.setdefault(request_id, number)
                elif request.is_finished():
                    ended.setdefault(request_id, number)
                else:
                    began.pop(request_id, None)
                if number - began.get(request_id, number) == 3:
                    began[request_id] = number + 1
                    kv_connector.LOADED.add(request_id)
                    if "fails" in kind and len(failed) < 3 and request_id not in failed:
                        failed.add(request_id)
                        table = scheduler.kv_cache_manager.get_block_ids(request_id)[0]
                        kv_connector.INVALID.add(table[len(failed) % 2])
                elif request_id not in began and number - ended.get(request_id, number) == 3:
                    kv_connector.SENT.add(request_id)

        length = 150 if "chunks" in kind else 60
        shared = kind in ("loads, sends", "by priority", "undecided")
        for number in range(6):
            tokens = prompt(number, length) if shared else [500 + number] * length
            engine.add(
                f"req-{number}",
                tokens,
                max_tokens=10,
                priority=number % 3 if "scheduling_policy" in limits else 0,
            )
        kv_connector.UNDECIDED.update({"req-1-00000000"} if kind == "undecided" else ())
        engine.add("short", prompt(9, 20), max_tokens=40)
        for number in range(200):
            work(number)
            if number == 9:
                kv_connector.UNDECIDED.clear()
            if number in (15, 25, 27) and connector == "LoadingConnector":
                # The second one loads, and alone holds what the third one finds in the cache.
                tokens = [700] * (60 if number == 25 else 20)
                engine.add(f"again-{number}", tokens, max_tokens=2)
            if number == 2 and limits:  # requests that hold no blocks wait with those that do
                for late in range(3):
                    engine.add(f"late-{late}", prompt(10 + late, 20), max_tokens=5)
            if "aborts" in kind and number in (2, 8):
                engine.abort(f"req-{number % 3}")  # the first one loads, the last one is computed
            if not engine.scheduler.has_requests() and not engine.core.batch_queue:
                break
            engine.step()
        # vLLM makes no steps for the blocks that are still sent.
        assert all(request.is_finished() for request in engine.scheduler.requests.values())
        report(engine, f"KV connector: {kind}")
        sequences = engine.session.state.sequences.values()
        assert max(sequence.num_external_tokens for sequence in sequences) > 0
        if connector == "ReceivingConnector" and policy == "fail":
            assert "FINISHED_ERROR" in {sequence.engine_status for sequence in sequences}


def test_prompt_logprobs_and_salts(is_async: bool) -> None:
    with stepped(make_core(num_gpu_blocks_override=20, async_scheduling=is_async)) as engine:
        for number in range(10):
            params = sampling(max_tokens=20, prompt_logprobs=1 if number % 3 == 0 else None)
            salt = {"cache_salt": f"salt-{number % 2}"} if number % 4 == 1 else {}
            engine.add(f"req-{number}", prompt(number), params=params, **salt)
        engine.run()
        assert engine.session.state.stats.prefix_cache_hits
        report(engine, "prompt log probabilities and salts")


def test_without_a_prefix_cache(is_async: bool) -> None:
    core = make_core(
        enable_prefix_caching=False, num_gpu_blocks_override=20, async_scheduling=is_async
    )
    with stepped(core) as engine:
        for number in range(10):
            engine.add(f"req-{number}", prompt(number), max_tokens=30)
        engine.run()
        report(engine, "no prefix cache")


@pytest.mark.parametrize("mode", ["none", "align"])
def test_mamba(mode: str, is_async: bool) -> None:
    spec = MambaSpec(
        block_size=BLOCK_SIZE if mode == "align" else 256,
        shapes=((256,),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
    )

    def change(config: Any) -> None:
        config.cache_config.mamba_cache_mode = mode

    core = make_core(
        kv_cache_specs={"a": full(), "b": spec},
        change=change,
        enable_prefix_caching=mode == "align",
        num_gpu_blocks_override=64,
        async_scheduling=is_async,
    )
    # In this version a request is indeed preempted four times without a token in between.
    thrashes = version() < (0, 20) and mode == "none"
    with stepped(core, rules={"thrash"} if thrashes else ()) as engine:
        for number in range(8):
            engine.add(f"req-{number}", prompt(number, 60), max_tokens=60)
        engine.run()
        report(engine, f"full attention and Mamba, {mode}")


def test_ids_used_twice(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1")
    with stepped(make_core(async_scheduling=is_async)) as engine:
        engine.add("other", prompt(0), max_tokens=40, request_id="other")
        for number in range(1, 5):
            shown = "one" if number == 1 else f"one-{number}"
            engine.add("one", prompt(number), request_id="one", shown=shown)
            for _ in range(number % 3):  # the second and the third one wait or have just begun
                engine.step()
            if number < 4:
                engine.core.abort_requests(["one"])
        engine.run()
        report(engine, "ids used twice")


@pytest.mark.parametrize("method", ["ngram", "eagle"])
def test_drafts(method: str, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def change(config: Any) -> None:
        if method == "eagle":  # without its model: the executor makes the drafts up
            config.speculative_config.method = method

    if method == "ngram" and is_async and version() < (0, 20):
        pytest.skip("this version refuses every method that needs no model")
    # vLLM refuses the method `ngram` with async scheduling.
    drafts = {
        "method": "ngram_gpu" if is_async and version() >= (0, 20) else "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_max": 2,
    }
    core = make_core(
        speculative_config=drafts,
        change=change,
        num_gpu_blocks_override=20,
        async_scheduling=is_async,
    )
    drafted_by: dict[str, list[tuple[int, int]]] = {}
    original = Scheduler.make_spec_decoding_stats

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        draft = kwargs["num_draft_tokens"], kwargs["num_accepted_tokens"]
        drafted_by.setdefault(kwargs["request_id"], []).append(draft)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Scheduler, "make_spec_decoding_stats", count)
    with stepped(core) as engine:
        for number in range(10):
            engine.add(f"req-{number}", prompt(number), max_tokens=30)
        engine.run()
        report(engine, f"drafts, {method}")
        sequences = engine.session.state.sequences.values()
        accepted = sum(sequence.num_accepted_tokens or 0 for sequence in sequences)
        assert 0 < accepted < sum(sequence.num_draft_tokens or 0 for sequence in sequences)
        state = engine.session.state
        drafts_of = list(drafted_by.values())
        assert state.num_drafted == by_position(
            [draft[0] for drafts in drafts_of for draft in drafts]
        )
        # vLLM also counts tokens after the end of a request, which are no output.
        most = by_position([draft[1] for drafts in drafts_of for draft in drafts])
        least = by_position([draft[1] for drafts in drafts_of for draft in drafts[:-1]])
        pairs = zip(least, state.num_accepted, most, strict=True)
        assert all(low <= shown <= high for low, shown, high in pairs)
        assert 0 < sum(state.num_accepted) == accepted


def by_position(lengths: list[int]) -> list[int]:
    """Numbers of those that are longer than each of the two positions of a draft."""
    return [sum(length > position for length in lengths) for position in range(2)]


def test_samples_of_one_prompt(is_async: bool) -> None:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.parallel_sampling import ParentRequest

    with stepped(make_core(async_scheduling=is_async)) as engine:
        for number in range(3):
            params = SamplingParams(n=3, temperature=1.0, ignore_eos=True, max_tokens=20)
            whole = new_request(f"req-{number}", prompt(number), params=params)
            assert isinstance(whole, EngineCoreRequest)
            try:
                parent = ParentRequest(whole)
            except TypeError:  # an older version takes the id and the parameters
                parent = ParentRequest(whole.request_id, params)
            for sample in range(3):
                name, child = parent.get_child_info(sample)
                engine.parents[name] = whole.request_id
                external = {"external_req_id": whole.external_req_id}
                engine.add(name[:-9], prompt(number), params=child, **external)
        engine.add("0_alone", prompt(1))  # the id of a client
        engine.step()
        engine.step()  # with async scheduling, nothing is published before
        view = SequenceView()
        view.rebuild(engine.session.state)
        rows = [view.tree_position(seq_id) for seq_id in view.page(0, len(view))]
        assert sum(row.is_parent for row in rows) == 3
        assert sum(row.parent is not None for row in rows) == 6
        engine.run()
        report(engine, "n = 3")


def test_cuda_graphs(is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.compilation.cuda_graph import CUDAGraphStat

    original = token_executor.TokenExecutor._run
    graphs: list[tuple[Any, Any]] = []
    with stepped(make_core(cudagraph_metrics=True, async_scheduling=is_async)) as engine:

        def run(executor: Any, scheduler_output: Any) -> Any:
            result = original(executor, scheduler_output)
            num = scheduler_output.total_num_scheduled_tokens
            stats = CUDAGraphStat(
                num_unpadded_tokens=num,
                num_padded_tokens=-(-num // 8) * 8,
                num_paddings=-num % 8,
                runtime_mode="PIECEWISE" if num > 8 else "FULL",
            )
            graph = stats.runtime_mode, stats.num_unpadded_tokens, stats.num_padded_tokens
            graphs.append((scheduler_output, graph))
            result.cudagraph_stats = stats
            return result

        def truth(output: Any) -> tuple[str, int, int]:
            return next(graph for scheduled, graph in graphs if scheduled is output)

        engine.graph = truth
        monkeypatch.setattr(token_executor.TokenExecutor, "_run", run)
        assert "cuda_graph" not in engine.not_available
        for number in range(4):
            engine.add(f"req-{number}", prompt(number))
        engine.run()
        report(engine, "CUDA graphs")


@pytest.mark.parametrize("budget", [50, 256])
def test_encoder_budget(budget: int, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real scheduler of a text model, with the limits and the cache of a multimodal one."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    length = 24
    core = make_core(max_num_seqs=4, max_num_batched_tokens=budget, async_scheduling=is_async)
    computed: list[int] = []
    outputs: list[tuple[Any, int]] = []
    """Scheduled steps, and the encoder tokens of each."""
    allocate, schedule = EncoderCacheManager.allocate, Scheduler.schedule

    def allocated(manager: Any, request: Any, index: int) -> None:
        computed.append(length)
        allocate(manager, request, index)

    def scheduled(*args: Any, **kwargs: Any) -> Any:
        computed.clear()
        outputs.append((schedule(*args, **kwargs), sum(computed)))
        return outputs[-1][0]

    monkeypatch.setattr(EncoderCacheManager, "allocate", allocated)
    monkeypatch.setattr(Scheduler, "schedule", scheduled)
    cache = EncoderCacheManager(cache_size=4 * length)
    core.scheduler.max_num_encoder_input_tokens = 2 * length
    core.scheduler.encoder_cache_manager = cache
    totals: list[tuple[int, int]] = []
    with stepped(core) as engine:

        def truth(output: Any) -> tuple[int, int]:
            num_tokens = next(number for scheduled, number in outputs if scheduled is output)
            totals.append((num_tokens, length * sum(map(bool, cache.cached.values()))))
            return totals[-1]

        engine.encoder = truth
        for number in range(12):
            images = [
                MultiModalFeatureSpec(
                    data=None,
                    modality="image",
                    identifier=f"image-{(number + image) % 7}",
                    mm_position=PlaceholderRange(offset=8 + 30 * image, length=length),
                )
                for image in range(number % 3)
            ]
            # A prompt without neighbours in the prefix cache, and with each image once.
            engine.add(f"req-{number}", [500 + number] * 80, mm_features=images)
        engine.run()
        info = engine.session.state.info
        assert info is not None
        assert (info.max_num_encoder_input_tokens, info.encoder_cache_size) == (48, 96)
        assert max(totals)[0] == 2 * length, "a step is to use its whole budget"
        # A slot is needed after a step only if its chunk ended within an image, or the next step,
        # which is in flight, needs it.
        is_ahead = is_async and version() >= (0, 20)
        assert any(used for _, used in totals) == (budget == 50 or is_ahead)
        assert totals[-1] == (0, 0)
        report(engine, f"encoder budget, {budget} tokens in a step")


def test_a_scheduler_of_the_users_own(
    is_async: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = AsyncScheduler if is_async else Scheduler

    class Instrumented(base):  # type: ignore[misc, valid-type]
        """As Dynamo's and vllm-ascend's: with a `schedule` and a queue of its own."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.waiting, self.num_calls = create_request_queue(self.policy), 0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            return super().schedule(*args, **kwargs)

    arguments = {"scheduler_cls": Instrumented, "num_gpu_blocks_override": 20}
    with monkeypatch.context() as patch:
        for owner, name in ((SchedulerConfig, "get_scheduler_cls"), (Instrumented, "__init__")):
            patch.setattr(owner, name, getattr(owner, name))  # is restored
        hook.install(f"ipc://{tmp_path}/e")
        core = make_core(**arguments, async_scheduling=is_async)
        assert "schedule" in vars(core.scheduler)
        core.shutdown()
        core.scheduler.shutdown()
    with stepped(make_core(**arguments, async_scheduling=is_async)) as engine:
        for number in range(10):
            engine.add(f"req-{number}", prompt(number), max_tokens=30)
        engine.run()
        assert engine.scheduler.num_calls >= engine.num_compared
        report(engine, "a scheduler of the user's own")


def test_grammars(is_async: bool) -> None:
    from vllm.sampling_params import SamplingParams

    try:
        from vllm.sampling_params import StructuredOutputsParams
    except ImportError:
        pytest.skip("another name in this version")
    core = make_core(async_scheduling=is_async)
    core.structured_output_manager.grammar_init = lambda request: None
    core.scheduler.get_grammar_bitmask = lambda output: None
    with stepped(core) as engine:
        params = SamplingParams(
            max_tokens=9,
            temperature=0,
            ignore_eos=True,
            structured_outputs=StructuredOutputsParams(regex="a*"),
        )
        engine.add("guided", prompt(1), params=params)
        engine.add("plain", prompt(2))
        for _ in range(4):
            engine.step()
        request = engine.scheduler.requests["guided-00000000"]
        assert request.status.name.startswith("WAITING_FOR_")
        request.structured_output_request.grammar = Grammar()
        engine.run()
        report(engine, "grammars")


class Grammar(StructuredOutputGrammar):
    """Accepts everything."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def rollback(self, num_tokens: int) -> None: ...

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None: ...

    def reset(self) -> None: ...


def test_a_request_that_cannot_be_encoded(is_async: bool) -> None:
    with stepped(make_core(async_scheduling=is_async)) as engine:
        engine.add("plain", prompt(1))
        engine.step()
        engine.scheduler.add_request(_request(engine, "big", priority=2**70))
        while engine.scheduler.requests:
            engine.core.step_fn()
        engine.add("after", prompt(2))
        engine.run()
        report(engine, "a priority of 2**70")


def _request(engine: Any, name: str, **more: Any) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, detokenize=False)
    if version() < (0, 20):
        more["eos_token_id"] = None
    return Request(
        request_id=f"{name}-00000000",
        prompt_token_ids=prompt(3),
        sampling_params=params,
        pooling_params=None,
        block_hasher=engine.core.request_block_hasher,
        **more,
    )
