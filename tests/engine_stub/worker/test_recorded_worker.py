"""The worker without a model: its tokens, drafts and sizes of steps, and the end of an answer."""

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.worker.recorded_worker import RecordedWorker
from seqtop.history.step_time import Size
from seqtop.whatif.workload import Answer, RecordedDraft
from tests.support.running import greedy


def test_a_step_verifies_the_recorded_draft_until_the_answer_is_exhausted() -> None:
    sizes: list[Size] = []

    def ran(size: Size) -> float:
        sizes.append(size)
        return 0.5

    drafts = {1: RecordedDraft(num_tokens=3, num_accepted=2)}
    worker = RecordedWorker(
        {"r": Answer([5, 6, 7, 8, 9], [-1.0] * 5, drafts=drafts)}, ran, is_speculative=True
    )
    config = EngineConfig(
        model=DEFAULT_MODEL, num_gpu_blocks=8, num_cpu_blocks=0, speculative="ngram"
    )
    engine = LLMEngine(config, worker=worker)
    (group,) = engine.add_request("r", [40, 50, 60], greedy(9))
    while not worker.exhausted:
        engine.step()
    assert [*group.first_seq.get_output_token_ids()] == [5, 6, 7, 8, 9]
    assert sizes == [Size(3, 0), Size(0, 4), Size(0, 1), Size(0, 1)]
    assert worker.exhausted == ["r"]
