"""Observations that vLLM's scheduler does not cause: swaps, forks, ends between steps, statuses."""

from seqtop.adapters.observations import (
    Admitted,
    AnyObservation,
    Arrived,
    Counts,
    RequestEnded,
    Scheduled,
    Stepped,
    SwappedIn,
    SwappedOut,
)
from seqtop.adapters.translate import Translator, engine_info
from seqtop.checks.checker import Checker
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.snapshot import Snapshot
from tests.support.observed_engine import an_engine_started

STARTED = an_engine_started(policy="preempted_last", num_reserved_blocks=2, num_cpu_blocks=6)


class Viewer:
    """The state and the findings of a viewer of observations."""

    def __init__(self) -> None:
        self.state, self.checker = EngineState(), Checker()
        self.translator, self.time = Translator(STARTED), 0.0
        self.findings = list(self.checker.apply(engine_info(STARTED)))
        self.state.apply(engine_info(STARTED))

    def note(self, observation: AnyObservation) -> None:
        for event in self.translator.events(observation):
            assert not isinstance(event, Snapshot)
            self.findings += self.checker.apply(event)
            self.state.apply(event)

    def arrive(self, name: str, parent: str = "") -> None:
        self.time += 1
        self.note(Arrived(name, self.time, "WAITING", 0, 5, [1, 2, 3, 4, 5], {}, "", parent))

    def step(
        self,
        batch: dict[str, int],
        tokens: dict[str, int],
        computed: dict[str, int],
        *scheduled: Scheduled,
        num_free: int,
        num_free_on_host: int = 6,
        statuses: dict[str, str] | None = None,
    ) -> None:
        start, self.time = self.time + 1, self.time + 2
        self.note(
            Stepped(
                scheduled=[*scheduled],
                start_time=start,
                scheduler_time=0.0,
                execute_time=0.0,
                time=self.time,
                num_scheduled_tokens=batch,
                output_ids=list(tokens),
                output_token_ids=[[token] for token in tokens.values()],
                running=list(computed),
                num_computed_tokens=list(computed.values()),
                counts=Counts(0, num_free, 0, 0, 0, num_free_on_host),
                running_statuses=statuses or {},
            )
        )

    def scheduled(self, admitted: list[Admitted]) -> Scheduled:
        return Scheduled(self.time + 1, admitted=admitted)


def test_a_request_is_swapped_out_and_in_and_runs_on() -> None:
    viewer = Viewer()
    viewer.arrive("a")
    admitted = viewer.scheduled([Admitted("a", 0, ([2, 3],))])
    viewer.step({"a": 5}, {"a": 9}, {"a": 5}, admitted, num_free=8)
    swap = viewer.scheduled([])
    swap.swapped_out = [SwappedOut("a", 5, [(2, 4), (3, 5)])]
    viewer.step({}, {}, {}, swap, num_free=10, num_free_on_host=4)
    (sequence,) = viewer.state.sequences.values()
    assert (sequence.status, sequence.num_computed_tokens) == (SequenceStatus.SWAPPED, 5)
    assert (sequence.block_table, sequence.host_table) == ([], [4, 5])
    assert viewer.state.stats is not None
    assert (viewer.state.stats.num_swapped, viewer.state.stats.num_free_cpu_blocks) == (1, 4)
    swap = viewer.scheduled([])
    swap.swapped_in = [SwappedIn("a", [(4, 6), (5, 7)], ([6, 7],))]
    viewer.step({"a": 1}, {"a": 8}, {"a": 6}, swap, num_free=8)
    (sequence,) = viewer.state.sequences.values()
    assert (sequence.status, sequence.num_computed_tokens) == (SequenceStatus.RUNNING, 6)
    assert (sequence.block_table, sequence.host_table) == ([6, 7], [])
    assert list(sequence.output_token_ids) == [9, 8]
    assert viewer.state.requests["a"].num_preemptions == 1
    assert viewer.findings == []


def test_a_fork_starts_with_the_blocks_of_its_parent() -> None:
    viewer = Viewer()
    viewer.arrive("a")
    admitted = viewer.scheduled([Admitted("a", 0, ([2],))])
    viewer.step({"a": 4}, {}, {"a": 4}, admitted, num_free=9)
    viewer.arrive("a#0", "a")
    fork = viewer.scheduled([Admitted("a#0", 0, ([2],), 0, viewer.time)])
    fork.appended = [("a", ([3],))]
    viewer.step({"a": 1}, {"a": 9}, {"a": 5, "a#0": 4}, fork, num_free=8)
    child = viewer.state.requests["a#0"]
    assert child.parent_request_id == "a"
    assert child.metrics.time_in_queue == 0.0
    sequence = viewer.state.sequences[child.seq_ids[0]]
    assert (sequence.status, sequence.num_computed_tokens) == (SequenceStatus.RUNNING, 4)
    assert viewer.findings == []


def test_a_request_that_ends_between_steps_is_gone_before_the_next_one() -> None:
    viewer = Viewer()
    viewer.arrive("a")
    viewer.arrive("b")
    both = viewer.scheduled([Admitted("a", 0, ([2, 3],)), Admitted("b", 0, ([4, 5],))])
    viewer.step({"a": 5, "b": 5}, {"a": 9, "b": 9}, {"a": 5, "b": 5}, both, num_free=6)
    viewer.note(RequestEnded("b", "FAILED", None, 5, viewer.time + 0.5))
    assert viewer.state.requests["b"].finish_reason == "abort"
    viewer.step({"a": 1}, {"a": 8}, {"a": 6}, viewer.scheduled([]), num_free=8)
    assert viewer.findings == []


def test_the_status_of_a_running_request_ends_with_its_next_batch() -> None:
    viewer = Viewer()
    viewer.arrive("a")
    admitted = viewer.scheduled([Admitted("a", 0, ([2, 3],))])
    viewer.step({"a": 5}, {"a": 9}, {"a": 5}, admitted, num_free=8)
    (sequence,) = viewer.state.sequences.values()
    for batch, statuses, shown in (
        ({}, {"a": "STARVED"}, "STARVED"),
        ({}, {"a": "STARVED"}, "STARVED"),
        ({"a": 1}, {}, ""),
    ):
        computed = 5 + sum(batch.values())
        tokens = dict.fromkeys(batch, 7)
        viewer.step(batch, tokens, {"a": computed}, num_free=8, statuses=statuses)
        (sequence,) = viewer.state.sequences.values()
        assert (sequence.status, sequence.engine_status) == (SequenceStatus.RUNNING, shown)
    assert viewer.findings == []
