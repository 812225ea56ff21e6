"""The details of a block: its owners and its tokens."""

from seqtop.state import EngineState
from seqtop.state.block_index import BlockIndex
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.owner_marks import OwnerMarks
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.blocks.block_details import holdings, names
from seqtop.tui.screens.blocks.screen import BlocksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire import parsing
from seqtop.wire.arrays import Ints
from tests.support.block_screen import pool, sequence, table
from tests.support.piloting import play, screen, words
from tests.support.recordings import encoded
from tests.support.scripted import Script, ScriptedSource


def test_four_keys_say_who_owns_a_block(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        block = table(app, "req-6")[3]
        assert block < 100
        pilot.press("b", *str(block), "enter")
        assert isinstance(app.screen, BlocksScreen)
        text = screen(app)
        assert f"Block {block}   " in text
        assert "req-6" in text.split(f"Block {block}")[1].splitlines()[1]
        assert "logical block 3 of 113" in text
        assert "tokens 48 to 63" in text
        assert "16 of 16 slots filled" in text


def test_a_shared_block_names_its_owners_in_turn(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        block = table(app, "req-2")[0]
        assert table(app, "req-1")[0] == block
        app.ui.state.sequences[sequence(app, "req-2")].num_computed_tokens = 3
        pilot.press("end", "b", *str(block), "enter")
        text = screen(app)
        assert "shared by 2   2 references   16 of 16 slots filled" in text, "by req-1"
        assert "req-1  seq" in text
        assert "req-2  seq" in text
        for name in ("req-1", "req-2", "req-1"):
            pilot.press("o")
            assert app.ui.cursor.seq_id == sequence(app, name)
            assert pool(app).cursor == block
        pilot.press("o", "enter")
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.cursor.seq_id == sequence(app, "req-2")


def test_owners_without_room_in_the_legend_are_counted() -> None:
    source = ScriptedSource()
    script = Script(source)
    for name in ("one", "two", "three"):
        script.arrive(name)
    script.step(prefill={"one": 4, "two": 4, "three": 4})
    owners = [*source.state.sequences]
    marks = OwnerMarks()
    lines = [plain(names(source.state, owners, width, marks)) for width in (40, 16, 2)]
    assert [line.split()[1::2] for line in lines[:1]] == [["one", "two", "three"]]
    assert lines[1].endswith("two  +1")
    assert lines[2] == "+3"


def test_nobodys_block_has_no_owner_to_go_to(app: SeqtopApp) -> None:
    with play(app, (80, 24)) as pilot:
        pilot.press("b", *"255", "enter")
        assert "107 are empty and 10 are still in the prefix cache" in words(app)
        before = app.ui.cursor.seq_id
        pilot.press("enter", "o")
        assert isinstance(app.screen, BlocksScreen)
        assert app.ui.cursor.seq_id == before


def test_token_ids_of_a_block_are_told_where_they_are_known() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one", num_prompt=20)
    source.state.requests["one"].prompt_token_ids = Ints.of(range(100, 120))
    script.step(prefill={"one": 20})
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press("2")
        assert f"token ids {' '.join(map(str, range(100, 116)))}" in words(app)
        pilot.press("greater_than_sign")
        assert "token ids 116 117 118 119 1 " in screen(app)
        assert "4 of 16 slots filled" in screen(app)
        sequence = source.state.sequences[app.ui.cursor.seq_id or 0]
        assert f"of the prompt {source.state.requests['one'].prompt}" in words(app)
        assert f"output {sequence.text.strip()}" in words(app)


def test_owners_that_have_released_the_block_since_the_last_frame_are_left_out() -> None:
    state, index = EngineState(), BlockIndex()
    num_left_out = 0
    for payload in encoded(8, 80):
        index.rebuild(state)
        state.apply(parsing.event(payload))
        for block in range(len(index)):
            held = holdings(state, index, block)
            num_left_out += len(index.owners(block)) - len(held)
            for holding in held:
                tables = [holding.sequence.block_table, *holding.sequence.group_block_tables]
                if block >= index.num_device:
                    assert holding.sequence.host_table[holding.position] == block - index.num_device
                else:
                    assert tables[holding.group][holding.position] == block
    assert num_left_out


def test_nothing_is_said_about_the_tokens_of_a_block_in_a_ring() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one", num_prompt=20)
    source.state.requests["one"].prompt_token_ids = Ints.of(range(100, 120))
    script.step(prefill={"one": 20})
    source.state.info.kv_cache_specs = [{"kind": "sliding_attention", "has_positions": False}]
    app = SeqtopApp(source, clock=lambda: 0.0)
    with play(app, (100, 24)) as pilot:
        pilot.press("2")
        text = words(app)
        assert "The place of this block in its table does not say which tokens it holds." in text
        assert "logical block 0 of 2" in text
        assert "tokens 0 to 15" not in text
        assert "slots filled" not in text
