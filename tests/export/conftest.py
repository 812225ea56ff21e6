"""A recording of the bundled engine, short of blocks, so that it has preemptions."""

from pathlib import Path

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.history import FileWriter
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event


class WritingSink:
    """Writes what an engine publishes to a recording, the way a viewer receives it."""

    def __init__(self, writer: FileWriter) -> None:
        self.state = EngineState()
        self._writer = writer
        self._number = -1

    def publish(self, event: Event) -> None:
        payload = codec.encode(event)
        event = parsing.event(payload)
        self.state.apply(event)
        self._number += 1
        self._writer.append(self._number, payload, event, self.state)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six requests, one of them aborted and one unfinished; some are preempted."""
    path = tmp_path_factory.mktemp("recorded") / "run.seqtop"
    config = EngineConfig(
        device="cpu",
        num_gpu_blocks=14,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        max_model_len=128,
    )
    engine = LLMEngine(config)
    with FileWriter(path) as writer:
        # No request is ever dropped from the state but the first: exports must remember it.
        sink = WritingSink(writer)
        sink.state.max_finished = 1
        sink.publish(engine_info(engine, engine_id="test", control=False))
        steps = StepPublisher(sink)

        def add(name: str, prompt: str, max_tokens: int = 40) -> None:
            params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens)
            for group in engine.add_request(name, prompt, params):
                steps.arrived(group)

        for number in range(4):
            add(f"req-{number}", "Once upon a time there was a fox. " * (number + 1))
        add("-2+3+cmd|' /C calc'!A0", '=HYPERLINK("http://x")\r\n\x1b]52;c;AAAA\x07')
        add("to-abort", "Tell me about a kite.")
        while engine.has_unfinished_requests():
            record = engine.step()
            steps.stepped(record)
            if record.step == 3:
                assert engine.abort_request("to-abort")
        add("unfinished", "One more thing", max_tokens=100)
        for _ in range(5):
            steps.stepped(engine.step())
        assert sink.state.num_finished == 6
        assert len(sink.state.finished) == 1
    return path
