"""The adapter of `docs/writing-an-adapter.md`, run with an engine, sockets and viewers."""

import dataclasses
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.live.session import Session
from seqtop.publish import Publisher, RequestDescription, SequenceStatus
from seqtop.publish.comparison import Comparison
from seqtop.transport.connection import ConnectionState
from seqtop.wire.messages import Step
from tests.support.small_engine import Config, Engine, Seq
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs" / "writing-an-adapter.md"
(CODE,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
CLASS, _, _ = CODE.partition("\nwith ")
NAMES: dict[str, Any] = {}
exec(CLASS, NAMES)
MyAdapter: Any = NAMES["MyAdapter"]


class AdapterOfAll(MyAdapter):  # type: ignore[misc]
    """The adapter of the page, for further settings of the engine; it can be made to fail."""

    fails = False

    def describe_engine(self) -> Any:
        config = self.engine.config
        return dataclasses.replace(
            super().describe_engine(),
            enable_chunked_prefill=config.enable_chunked_prefill,
            enable_prefix_caching=config.enable_prefix_caching,
        )

    def describe_request(self, request: Seq) -> Any:
        if self.fails:
            raise RuntimeError("not now")
        description = super().describe_request(request)
        description.text = text_of(request)
        if description.status == SequenceStatus.WAITING:
            description.wait_cause = "unknown"
        return description


class AdapterOfLongQueues(AdapterOfAll):
    """An adapter that describes no request twice while it waits."""

    num_described = 0

    def is_waiting(self, request: Seq) -> bool:
        return request.status.name == "WAITING"

    def describe_request(self, request: Seq) -> Any:
        self.num_described += 1
        description = super().describe_request(request)
        description.wait_cause = None
        return description


def text_of(seq: Seq) -> str:
    return " ".join(map(str, seq.token_ids[seq.num_prompt_tokens :]))


def assert_shows(
    session: Session, engine: Engine, step: int, *, gives_reasons: bool = True
) -> None:
    """Compares what a viewer sees after a step with the engine."""
    expected = {str(seq.seq_id): seq for seq in (*engine.running, *engine.waiting)}

    def shown() -> set[str]:
        return set(session.state.requests) - set(session.state.finished)

    wait_until(lambda: session.state.step == step and shown() == set(expected))
    state = session.state
    for request_id, seq in expected.items():
        request = state.requests[request_id]
        (seq_id,) = request.seq_ids
        sequence = state.sequences[seq_id]
        output = seq.token_ids[seq.num_prompt_tokens :]
        assert sequence.status.name == seq.status.name
        assert sequence.output_token_ids.tolist() == output
        assert sequence.text == text_of(seq)
        assert sequence.num_prompt_tokens == seq.num_prompt_tokens
        assert sequence.num_computed_tokens == seq.num_computed_tokens
        assert sequence.block_table == seq.block_table
    waiting = [str(seq.seq_id) for seq in engine.waiting]
    assert sorted(state.wait_reason_ids) == (sorted(waiting) if gives_reasons else [])
    assert state.stats is not None
    assert state.stats.num_waiting == len(waiting)
    assert state.stats.num_free_blocks == len(engine.blocks.free)
    assert state.num_anomalies == 0, state.last_anomaly


def test_adapter_of_the_page_has_twenty_lines() -> None:
    lines = [line for line in CODE.splitlines() if line.strip()]
    its_own = {"while engine.waiting or engine.running:  # your own loop", "engine.step()"}
    assert len([line for line in lines if line.strip() not in its_own]) <= 20
    assert max(map(len, lines)) <= 100


def test_program_of_the_page_is_published_without_torch(endpoint: str) -> None:
    # A step for each line of input, so that the viewer is there.
    loop = CODE.replace("engine.step()", "engine.step(); sys.stdin.readline()")
    program = f"""
import sys
from tests.support.small_engine import Engine
engine = Engine()
for number in range(3):
    engine.add_request([number] * 5, 25)
{loop}
print({{"torch", "textual", "engine_stub"}} & sys.modules.keys())
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={"SEQTOP_BIND": endpoint},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PAGE.parents[1],
    )
    with Session(endpoint) as session:
        session.await_engine(30)
        printed, _ = process.communicate("\n" * 100)
        assert printed == "set()\n"
        wait_until(lambda: session.connection.state is ConnectionState.STOPPED)
    assert len(session.state.finished) == 3
    assert session.state.num_anomalies == 0


@pytest.mark.parametrize(
    ("status", "computed", "lost"), [("RUNNING", 3, 9), ("WAITING", 3, 6), ("WAITING", 9, 0)]
)
def test_a_request_that_runs_again_has_lost_all_that_it_had_computed(
    status: str, computed: int, lost: int
) -> None:
    request = RequestDescription(
        status=SequenceStatus.RUNNING,
        token_ids=[*range(10)],
        num_prompt_tokens=8,
        num_computed_tokens=9,
        block_table=[1],
    )
    adapter: Any = SimpleNamespace(
        requests=lambda: {"a": request},
        describe_request=lambda request: request,
        num_free_blocks=lambda: 9,
        num_cached_blocks=lambda: None,
        num_unlisted_requests=lambda: 0,
    )
    comparison = Comparison[Any](adapter, MyAdapter(Engine()).describe_engine())
    assert len([*comparison.after_step(1.0, 2.0)]) == 2
    request.status, request.num_computed_tokens = SequenceStatus[status], computed
    (step,) = comparison.after_step(2.0, 3.0)
    assert isinstance(step, Step)
    assert [preemption.num_lost_tokens for preemption in step.preemptions] == [lost]


@pytest.mark.parametrize(
    ("request_id", "changes", "sentence"),
    [
        (7, {}, "a request id is of the type int, and not str"),
        ("a", {"wait_cause": "busy"}, "request 'a' has the wait_cause 'busy': there are no_blocks"),
        ("a", {"status": SequenceStatus.SWAPPED}, "request 'a' is SWAPPED"),
        ("a", {"num_prompt_tokens": 7}, "request 'a' has 7 prompt tokens, and had 8"),
        ("a", {"token_ids": [1, 2]}, "request 'a' has 2 tokens, and had 8"),
    ],
)
def test_a_mistake_of_an_adapter_is_named(
    request_id: Any, changes: dict[str, Any], sentence: str
) -> None:
    description = RequestDescription(
        status=SequenceStatus.WAITING,
        token_ids=[*range(8)],
        num_prompt_tokens=8,
        num_computed_tokens=0,
        block_table=[],
    )
    adapter: Any = SimpleNamespace(
        requests=lambda: {request_id: 0},
        describe_request=lambda _: description,
        is_waiting=lambda _: False,
        num_free_blocks=lambda: 9,
        num_cached_blocks=lambda: None,
        num_unlisted_requests=lambda: 0,
    )
    comparison = Comparison[Any](adapter, MyAdapter(Engine()).describe_engine())

    def publish() -> None:
        nonlocal description
        [*comparison.between_steps(1.0)]
        description = dataclasses.replace(description, **changes)
        [*comparison.after_step(1.0, 2.0)]

    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        publish()


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(enable_chunked_prefill=True, max_num_batched_tokens=11),
        Config(
            enable_chunked_prefill=True,
            max_num_batched_tokens=11,
            enable_prefix_caching=False,
            admits_after_preemption=True,
        ),
    ],
    ids=["whole prompts", "chunks", "admission after preemption"],
)
def test_viewers_see_at_every_step_what_is(
    config: Config, endpoint: str, seqtop_checks: Any
) -> None:
    if config.admits_after_preemption:
        seqtop_checks.fail_on = "error"  # it does preempt a request again and again, a warning
    engine, generator = Engine(config), random.Random(1)
    seen: Counter[str] = Counter()
    with Publisher(AdapterOfAll(engine), endpoint) as publisher:
        early, late = seqtop_checks(endpoint).session, Session(endpoint)
        for step in range(200):
            if generator.random() < 0.3 and len(engine.waiting) < 5:
                shared = [1, 2, 3, 4, 5, 6, 7, 8][: generator.randrange(9)]
                rest = [generator.randrange(9) for _ in range(generator.randint(1, 20))]
                engine.add_request(shared + rest, generator.randint(1, 30))
            if generator.random() < 0.02 and engine.running:
                engine.abort(engine.running[0])
                seen["aborted"] += 1
            if not engine.running and not engine.waiting:
                engine.add_request([1], 1)
            with publisher.step():
                engine.step()
            assert_shows(early, engine, step)
            if step == 100:
                late.start()
                late.await_engine(30)
            if step >= 100:
                assert_shows(late, engine, step)
        assert publisher.num_errors == 0
        stats = early.state.stats
        assert stats is not None
        assert stats.num_preemptions > 0
        if not config.admits_after_preemption:  # between two steps it was not to be seen
            assert stats.num_preemptions == engine.num_preemptions
        assert bool(stats.prefix_cache_hits) == config.enable_prefix_caching
        reasons = Counter(early.state.requests[name].finish_reason for name in early.state.finished)
        assert reasons["abort"] == seen["aborted"] > 0
        assert reasons["length"] > 10
        late.close()


def test_requests_that_wait_as_before_are_not_described(endpoint: str, seqtop_checks: Any) -> None:
    seqtop_checks.fail_on = "error"  # so few blocks that it preempts in vain, a warning
    engine = Engine(Config(num_blocks=9))
    adapter = AdapterOfLongQueues(engine)
    for number in range(40):
        engine.add_request([number, 1, 2, 3, 4], 9)
    with Publisher(adapter, endpoint) as publisher:
        session = seqtop_checks(endpoint).session
        step = 0
        while engine.running or engine.waiting:
            num_waiting, adapter.num_described = len(engine.waiting), 0
            with publisher.step():
                engine.step()
            assert_shows(session, engine, step, gives_reasons=False)
            if step and num_waiting == len(engine.waiting):
                assert adapter.num_described <= len(engine.running) + engine.config.max_num_seqs
            step += 1
        assert publisher.num_errors == 0
        assert session.state.stats.num_preemptions > 0
        assert len(session.state.finished) == 40


def test_engine_runs_on_when_the_adapter_fails_and_viewers_get_the_state_again(
    endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(Config(max_model_len=100_000, num_blocks=10_000))
    adapter, steps = AdapterOfAll(engine), 0
    with Publisher(adapter, endpoint) as publisher, Session(endpoint) as session:
        session.await_engine(30)

        def step() -> None:
            nonlocal steps
            with publisher.step():
                engine.step()
            steps += 1

        engine.add_request([1, 2, 3], 10_000)
        step()
        wait_until(lambda: session.state.step == 0)
        adapter.fails = True
        engine.add_request([4, 5], 10_000)
        step()
        adapter.fails = False
        assert publisher.num_errors >= 1
        assert "not now" in caplog.text

        def is_repaired() -> bool:
            step()
            request = session.state.requests.get("1")
            return request is not None and session.connection.num_resyncs > 0

        wait_until(is_repaired)
        assert_shows(session, engine, publisher._comparison._num_steps - 1)
    assert steps == len(engine.running[0].token_ids) - 3


@pytest.mark.parametrize(
    ("bind", "environment", "warning"),
    [
        ("", {}, ""),
        ("tcp://0.0.0.0:5557", {}, "seqtop is off"),
        ("dormant", {}, "is for vLLM"),
        ("ipc:///nonexistent/e", {}, "seqtop is off"),
        ("ipc:///tmp/e", {"SEQTOP_SERVER_SECRET_KEY": "key"}, "belong together"),
    ],
)
def test_settings_that_cannot_be_used_turn_it_off(
    bind: str,
    environment: dict[str, str],
    warning: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SEQTOP_BIND", bind)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    engine = Engine()
    engine.add_request([1], 2)
    with Publisher(AdapterOfAll(engine)) as publisher:
        assert publisher.endpoint is None
        with publisher.step():
            engine.step()
    assert len(engine.running[0].token_ids) == 2
    assert warning in caplog.text
    assert bool(caplog.records) == bool(warning)


def test_redacts(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEQTOP_REDACT", "1")
    monkeypatch.setenv("SEQTOP_ENGINE_ID", "mine")
    engine = Engine()
    engine.add_request([7, 8, 9], 3)
    with Publisher(AdapterOfAll(engine), endpoint) as publisher, Session(endpoint) as session:
        with publisher.step():
            engine.step()
        wait_until(lambda: session.state.step == 0)
        assert session.state.info is not None
        assert (session.state.info.engine_id, session.state.info.redacted) == ("mine", True)
        assert not any(session.state.requests["0"].prompt_token_ids)
