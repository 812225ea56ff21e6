"""The data of a state; its defaults are golden data, see `tests/golden`."""

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, SequenceState


def test_tokens_of_a_sequence_are_those_of_prompt_and_output() -> None:
    sequence = SequenceState(1, "a", SequenceStatus.WAITING, num_prompt_tokens=8)
    sequence.output_token_ids.extend([5, 6])
    assert sequence.num_tokens == 10


def test_anomalies_are_counted_and_the_last_is_kept() -> None:
    state = EngineState()
    state.report_anomaly("one")
    state.report_anomaly("two")
    assert (state.num_anomalies, state.last_anomaly) == (2, "two")
