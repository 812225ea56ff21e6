"""Updates of a sequence: its tokens, texts and candidates."""

from typing import Any

import pytest
from msgspec.structs import replace

from seqtop.sequence import Logprob, SequenceStatus
from seqtop.state import EngineState, reducer, sequence_updates
from seqtop.state.model import MAX_SEQUENCES_OF_REQUEST
from seqtop.state.snapshot import take
from seqtop.state.top_logprobs import TopLogprobs
from seqtop.wire.errors import WireError
from seqtop.wire.messages import CachedBlocks, PrefixMiss
from tests.support import events
from tests.support.events import update
from tests.support.reducer_events import arrived, delta, full, prefilled, step

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING


def test_an_update_tells_all_of_a_sequence() -> None:
    state = prefilled()
    misses = [PrefixMiss(cause="new_tokens", num_tokens=2)]
    given: dict[str, Any] = {
        "num_external_tokens": 1,
        "prefix_misses": misses,
        "group_block_tables": [[5], [6]],
        "engine_status": "RUNNING_SLOWLY",
        "stop_reason": "end",
    }
    all_given = update(1, RUNNING, 8, cached=2, table=[4, 9], drafted=3, accepted=1, **given)
    state.apply(step(4, sequences=[all_given]))
    sequence = state.sequences[1]
    given |= {"num_cached_tokens": 2, "block_table": [4, 9]}
    given |= {"num_draft_tokens": 3, "num_accepted_tokens": 1}
    assert {name: getattr(sequence, name) for name in given} == given
    assert (sequence.status, sequence.num_computed_tokens) == (RUNNING, 8)
    assert (sequence.last_step, sequence.num_prompt_hits) == (4, 2)
    # The rest stays as it was, except for the engine's own name for the status.
    state.apply(step(5, sequences=[update(1, blocks=[3])]))
    assert (sequence.status, sequence.num_computed_tokens) == (RUNNING, 8)
    given |= {"engine_status": "", "block_table": [4, 9, 3]}
    assert {name: getattr(sequence, name) for name in given} == given


def test_hits_of_the_prompt_are_those_of_the_first_admission() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    sequence = state.sequences[1]
    state.apply(step(0, sequences=[update(1, WAITING, 0, cached=2)]))
    assert sequence.num_prompt_hits == 0, "it is not admitted"
    for number, hits in enumerate((1, 9)):
        state.apply(step(number, sequences=[update(1, RUNNING, 3, cached=hits)]))
        assert sequence.num_prompt_hits == min(hits, 3)
    preemption = events.preemption("a", lost=3)
    state.apply(step(2, sequences=[update(1, WAITING, 0)], preemptions=[preemption]))
    state.apply(step(3, sequences=[update(1, RUNNING, 3, cached=2)]))
    assert (sequence.num_prompt_hits, sequence.num_cached_tokens) == (3, 2)


def test_drafts_add_up_by_sequence_and_by_position() -> None:
    state = prefilled()
    assert state.sequences[1].num_draft_tokens is state.sequences[1].num_accepted_tokens is None
    for number, (drafted, accepted) in enumerate(((2, 1), (3, 3), (1, None))):
        drafts: dict[str, Any] = {"drafted": drafted, "accepted": accepted}
        state.apply(step(1 + number, sequences=[update(1, RUNNING, 4, **drafts)]))
    assert (state.num_drafted, state.num_accepted) == ([3, 2, 1], [2, 1, 1])
    sequence = state.sequences[1]
    assert (sequence.num_draft_tokens, sequence.num_accepted_tokens) == (6, 4)
    more = update(1, RUNNING, 4, drafted=70, accepted=65)
    state.apply(step(5, sequences=[more]))
    assert state.num_drafted == [4, 3, 2, *[1] * 61]
    assert state.num_accepted == [3, 2, 2, *[1] * 61]


def test_a_removed_sequence_leaves_its_request() -> None:
    state = prefilled()
    state.apply(step(1, sequences=[update(2, RUNNING, 3, request_id="a", parent=1)]))
    assert state.num_by_status[RUNNING] == 2
    assert list(state.apply(step(2, sequences=[update(1, RUNNING, 3, is_removed=True)]))) == [1]
    assert list(state.sequences) == state.requests["a"].seq_ids == [2]
    assert (state.num_by_status[RUNNING], sum(state.num_by_status)) == (1, 1)


def test_only_tokens_move_the_time_of_the_last_one() -> None:
    state = prefilled()
    times, deltas = [], []
    given: list[dict[str, Any]] = [{"text": "abc"}, {"tokens": [6]}, {}]
    for number, fields in enumerate(given):
        state.apply(step(1 + number, sequences=[update(1, RUNNING, 4, **fields)]))
        times.append(state.requests["a"].metrics.last_token_time)
        deltas.append(state.sequences[1].last_delta_length)
    assert times == [20.5, 22.5, 22.5]
    assert deltas == [3, 3, 3]
    assert (state.sequences[1].text, state.num_output_tokens) == ("Hiabc", 2)


def test_text_without_a_token_has_no_length() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    state.apply(step(0, sequences=[update(1, RUNNING, 3, text="abc")]))
    assert (state.sequences[1].text, list(state.sequences[1].text_lengths)) == ("abc", [])


def test_candidates_are_kept_by_output_position() -> None:
    state = prefilled()
    candidates = {6: Logprob(-0.1, 1, "x"), 8: Logprob(-2.0, 2, "y")}
    state.apply(
        step(
            1,
            delta("a", 1, [5], 3),
            sequences=[
                update(1, RUNNING, 4, tokens=[6], logprobs=[-0.1],
                       top_logprobs=[candidates])
            ],
        )
    )  # fmt: skip
    assert state.sequences[1].top_logprobs == TopLogprobs.of({1: candidates})


@pytest.mark.parametrize(
    ("tokens", "text", "decoded", "lengths"),
    [
        ([6], "abc", None, [3]),
        ([6], "", None, [0]),
        ([], "abc", None, []),  # held back until now, and so the token's before
        ([6, 7], "abc", None, [-1, 3]),
        ([6, 7], "", None, [0, 0]),
        ([6, 7], "abc", ["a", "bc"], [1, 2]),
        ([6, 7], "abc", ["", "abc"], [0, 3]),
        ([6, 7], "abc", ["a", "b"], [-1, 3]),
        ([6, 7], "abc", ["abc"], [-1, 3]),
    ],
)
def test_ends_of_tokens_are_noted_as_far_as_they_are_known(
    tokens: list[int], text: str, decoded: list[str] | None, lengths: list[int]
) -> None:
    state = prefilled()
    candidates = (
        None
        if decoded is None
        else [{token: Logprob(-0.1, 1, text)} for token, text in zip(tokens, decoded, strict=False)]
    )
    more = update(1, RUNNING, 4, tokens=tokens, text=text, top_logprobs=candidates)
    state.apply(step(1, delta("a", 1, [5], 3), sequences=[more]))
    assert state.sequences[1].text_lengths == ([2, *lengths] if tokens else [5])


def test_fork_appears_under_its_request() -> None:
    state = prefilled()
    parent = state.sequences[1]
    parent.top_logprobs = TopLogprobs.of({0: {5: Logprob(-0.5)}})
    touched = state.apply(
        step(1, sequences=[update(2, RUNNING, 3, parent=1, request_id="a", table=[7])])
    )
    assert list(touched) == [2]
    assert state.requests["a"].seq_ids == [1, 2]
    assert state.sequences[2].parent_seq_id == 1
    assert state.sequences[2].block_table == [7]
    assert state.sequences[2].fork_length == 4
    assert state.sequences[2].top_logprobs == parent.top_logprobs
    assert state.sequences[2].top_logprobs is not parent.top_logprobs
    assert state.sequences[2].text_lengths == [2]


def test_a_fork_starts_with_the_output_of_its_parent_and_goes_on_alone() -> None:
    state = prefilled()
    fork = update(2, RUNNING, 3, request_id="a", parent=1)
    state.apply(step(1, sequences=[fork]))
    decoded = update(1, tokens=[6], text="!", logprobs=[-0.25])
    state.apply(step(2, delta("a", 1, [], 3), sequences=[decoded]))
    output = [
        (list(sequence.output_token_ids), list(sequence.output_logprobs),
         sequence.cumulative_logprob, sequence.text, list(sequence.text_lengths))
        for sequence in state.sequences.values()
    ]  # fmt: skip
    assert output == [([5, 6], [-0.5, -0.25], -0.75, "Hi!", [2, 1]), ([5], [-0.5], -0.5, "Hi", [2])]
    orphan = update(3, RUNNING, 3, request_id="a", parent=99)
    alone = update(4, RUNNING, 3, request_id="a")
    state.apply(step(3, sequences=[orphan, alone]))
    for seq_id, parent in ((3, 99), (4, None)):
        sequence = state.sequences[seq_id]
        assert (sequence.parent_seq_id, sequence.fork_length, sequence.num_tokens) == (
            parent, None, 3
        )  # fmt: skip
    assert state.num_anomalies == 0


@pytest.mark.parametrize("has_text", [False, True])
def test_many_forks_of_a_long_output_cost_little(has_text: bool) -> None:
    """A row of a few bytes may not copy megabytes without end."""
    state = prefilled()
    tokens = [7] if has_text else [7] * 200_000
    text = "x" * 4_000_000 if has_text else ""
    state.apply(step(1, sequences=[update(1, RUNNING, 3, tokens=tokens, text=text)]))
    names = range(10, 1_010)
    forks = [
        update(name, RUNNING, 3, request_id="a", parent=1, tokens=[8], text="y") for name in names
    ]
    for number in (2, 3):  # the second step changes those of the first
        state.apply(step(number, sequences=forks))
    sequences = [state.sequences[name] for name in names]
    assert sum(len(sequence.output_token_ids) for sequence in sequences) < 2_000_000
    assert sum(len(sequence.text) for sequence in sequences) < 20_000_000
    num_short = sum(len(sequence.text) == 2 for sequence in sequences)
    assert num_short == state.num_anomalies > 900
    assert state.last_anomaly is not None
    assert "begins without the output of its parent" in state.last_anomaly


def test_the_beams_of_a_long_search_have_their_outputs() -> None:
    state = prefilled()
    length, width = 3_000, 64
    state.apply(step(1, sequences=[update(1, RUNNING, 3, tokens=[7] * length)]))
    for number in range(2, 4):
        forks = [
            update(number * 100 + beam, RUNNING, 3, request_id="a", parent=1)
            for beam in range(width)
        ]
        removed = [
            update(seq_id, RUNNING, 3, is_removed=True) for seq_id in state.sequences if seq_id > 1
        ]
        state.apply(step(number, sequences=[*forks, *removed]))
    assert len(state.sequences) == 1 + width
    assert {len(sequence.output_token_ids) for sequence in state.sequences.values()} == {length + 1}
    assert state.num_anomalies == 0


def test_a_state_has_the_misses_of_the_last_admission_and_all_totals() -> None:
    state = EngineState()
    state.apply(arrived("a", 1))
    first = [
        PrefixMiss(cause="new_tokens", num_tokens=8),
        PrefixMiss(cause="unknown", num_tokens=2),
    ]
    again = [PrefixMiss(cause="new_tokens", num_tokens=3)]
    for number, misses in enumerate((first, None, again)):
        before = state.num_missed_tokens
        state.apply(step(number, sequences=[update(1, RUNNING, number, prefix_misses=misses)]))
        assert state.sequences[1].prefix_misses == (again if number == 2 else first)
        assert (state.num_missed_tokens == before) == (misses is None)
    assert state.num_missed_tokens == {"new_tokens": 11, "unknown": 2}


def test_a_state_has_a_limited_number_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id in a message takes a byte, and a sequence takes 800."""
    state = EngineState(max_finished=2)
    state.apply(replace(arrived("a", 1), seq_ids=list(range(2_000))))
    assert len(state.sequences) == len(state.requests["a"].seq_ids) == MAX_SEQUENCES_OF_REQUEST
    assert state.num_anomalies == 2_000 - MAX_SEQUENCES_OF_REQUEST
    monkeypatch.setattr(sequence_updates, "MAX_SEQUENCES", 3)
    with pytest.raises(WireError, match="request 'a': there are too many sequences to add 5"):
        EngineState(max_finished=2).apply(take(state))
    state = EngineState(max_finished=2)
    state.apply(replace(arrived("a", 1), seq_ids=[1, 2, 3]))
    state.apply(replace(arrived("b", 5), seq_ids=[5, 6, 7]))
    fork = update(8, RUNNING, 3, request_id="b", parent=5, tokens=[8])
    state.apply(step(0, full("c", 9, [], chunk=3), sequences=[fork]))
    assert list(state.sequences) == [1, 2, 3, 5, 6]
    assert state.requests["b"].seq_ids == [5, 6]
    assert state.num_anomalies == 3
    assert state.last_anomaly == "there are too many sequences to add 8"


def test_a_state_has_a_limited_number_of_cached_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "MAX_CACHED_BLOCKS", 3)
    state = EngineState()
    runs = [CachedBlocks("a", 1, 0, blocks) for blocks in ([1, 2], [3, 4], [5])]
    state.apply(step(0, newly_cached_blocks=runs))
    assert list(state.cached_blocks or ()) == [1, 2, 5]
    assert state.num_anomalies == 1
    assert state.last_anomaly == "the prefix cache has more than 3 blocks"
