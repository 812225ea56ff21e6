"""The block table of a sequence, and the search for the owners of its blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.state import RequestState, SequenceState
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences.block_table import BlockTablePane, block_lines, shared_owners
from seqtop.tui.ui_state import UiState
from tests.support.piloting import play, until
from tests.support.scripted import Script, ScriptedSource
from tests.support.strategies import COUNTS, REQUESTS, SEQUENCES


@pytest.mark.parametrize("number", [10, 3_000])
def test_shared_blocks_name_another_owner(number: int) -> None:
    script = Script(ScriptedSource(), num_gpu_blocks=100_000)
    for index in range(number):
        script.arrive(f"runs-{index}", num_prompt=160)
    script.step(prefill={f"runs-{index}": 160 for index in range(number)})
    ui = UiState(script.source)
    ui.update()
    mine, other = (ui.state.sequences[seq_id] for seq_id in (1, number))
    other.block_table = [*mine.block_table[:2], *other.block_table[2:]]
    assert shared_owners(ui, mine) == dict.fromkeys(mine.block_table[:2], other.request_id)


def test_a_paused_display_names_shared_blocks() -> None:
    number = 600
    script = Script(ScriptedSource(), num_gpu_blocks=100_000)
    for index in range(number):
        script.arrive(f"runs-{index}", num_prompt=160)
    script.step(prefill={f"runs-{index}": 160 for index in range(number)})
    mine, other = (script.source.state.sequences[seq_id] for seq_id in (1, number))
    other.block_table = [*mine.block_table[:2], *other.block_table[2:]]
    app = SeqtopApp(script.source, clock=lambda: 0.0)
    with play(app, (160, 50)) as pilot:
        pilot.press("space")
        blocks = app.screen.query_one(BlockTablePane)
        until(pilot, lambda: "2 shared" in plain(blocks.visible_lines(0, 1)[0][0]))


@given(
    REQUESTS,
    SEQUENCES,
    st.dictionaries(COUNTS, st.text()),
    st.none() | st.sets(COUNTS),
    COUNTS,
    COUNTS,
)
def test_any_block_table_is_drawn(
    request: RequestState,
    sequence: SequenceState,
    owners: dict[int, str],
    known: set[int] | None,
    block_size: int,
    last_id: int,
) -> None:
    lines = block_lines(request, sequence, owners, known, block_size, last_id, 80)
    assert all(plain(line).isprintable() for line in lines)


def test_blocks_of_one_token_are_shown_as_runs(source: ScriptedSource) -> None:
    request = source.state.requests["req-2"]
    sequence = source.state.sequences[request.seq_ids[0]]
    sequence.block_table = [5, 6, 7, 20, 21, 22, 23, 9]
    sequence.num_cached_tokens, sequence.num_computed_tokens = 2, 8

    def lines(width: int) -> list[str]:
        drawn = block_lines(request, sequence, {21: "req-1"}, None, 1, 255, width)
        return [plain(line).rstrip() for line in drawn]

    assert lines(60) == [
        "8 blocks  8 of 8 slots filled  2 hits  1 shared",
        "0  5-6° 7  20  21≡ 22-23  9",
        "≡ shared with req-1",
        "° found in the prefix cache",
    ]
    assert lines(16)[1:3] == ["0  5-6° 7  20", "4  21≡ 22-23  9"]


def test_a_block_table_marks_shared_cached_and_the_last_block(source: ScriptedSource) -> None:
    request = source.state.requests["req-2"]
    sequence = source.state.sequences[request.seq_ids[0]]
    shared = dict.fromkeys(sequence.block_table[:1], "req-1")
    lines = [plain(line) for line in block_lines(request, sequence, shared, None, 16, 255, 60)]
    assert lines[0] == "6 blocks  87 of 96 slots filled  2 hits  1 shared"
    assert lines[1].split()[:3] == ["0", "0≡", "1°"]
    assert lines[1].endswith("▄")
    assert lines[2:] == [
        "≡ shared with req-1",
        "° found in the prefix cache",
        "▄ last block: 7 of 16 slots",
    ]
    known = {0, 1, *sequence.block_table[2:4]}
    lines = [plain(line) for line in block_lines(request, sequence, shared, known, 16, 255, 80)]
    assert lines[0].endswith("2 hits  1 shared  4 in the prefix cache")
    assert [cell[-1] for cell in lines[1].split()[1:5]] == ["≡", "°", "+", "+"]
    assert "+ in the prefix cache since it was computed" in lines
