"""The details of a block: its owners and its tokens."""

from textual.pilot import Pilot

from seqtop.state import EngineState
from seqtop.state.block_index import BlockIndex
from seqtop.tui.app import SeqtopApp
from seqtop.tui.screens.blocks.block_details import holdings
from seqtop.tui.screens.blocks.screen import BlocksScreen
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.wire import parsing
from seqtop.wire.arrays import Ints
from tests.support.block_screen import pool, sequence, table
from tests.support.piloting import play, screen
from tests.support.recordings import encoded
from tests.support.scripted import Script, ScriptedSource


def test_four_keys_say_who_owns_a_block(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        block = table(app, "req-6")[3]
        assert block < 100
        await pilot.press("b", *str(block), "enter")
        await pilot.pause()
        assert isinstance(app.screen, BlocksScreen)
        text = screen(app)
        assert f"Block {block}   " in text
        assert "req-6" in text.split(f"Block {block}")[1].splitlines()[1]
        assert "logical block 3 of 113" in text
        assert "tokens 48 to 63" in text
        assert "16 of 16 slots filled" in text

    play(app, act, (80, 24))


def test_a_shared_block_names_its_owners_in_turn(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        block = table(app, "req-2")[0]
        assert table(app, "req-1")[0] == block
        await pilot.press("G", "b", *str(block), "enter")
        await pilot.pause()
        text = screen(app)
        assert "shared by 2   2 references" in text
        assert "req-1  seq" in text
        assert "req-2  seq" in text
        for name in ("req-1", "req-2", "req-1"):
            await pilot.press("o")
            assert app.ui.cursor.seq_id == sequence(app, name)
            assert pool(app).cursor == block
        await pilot.press("o", "enter")
        await pilot.pause()
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.cursor.seq_id == sequence(app, "req-2")

    play(app, act, (80, 24))


def test_nobodys_block_has_no_owner_to_go_to(app: SeqtopApp) -> None:
    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("b", *"255", "enter")
        await pilot.pause()
        assert "107 are empty and 10 are still in the prefix cache" in " ".join(screen(app).split())
        before = app.ui.cursor.seq_id
        await pilot.press("enter", "o")
        await pilot.pause()
        assert isinstance(app.screen, BlocksScreen)
        assert app.ui.cursor.seq_id == before

    play(app, act, (80, 24))


def test_token_ids_of_a_block_are_told_where_they_are_known() -> None:
    source = ScriptedSource()
    script = Script(source)
    script.arrive("one", num_prompt=20)
    source.state.requests["one"].prompt_token_ids = Ints.of(range(100, 120))
    script.step(prefill={"one": 20})
    app = SeqtopApp(source, clock=lambda: 0.0)

    async def act(pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await pilot.pause()
        assert f"token ids {' '.join(map(str, range(100, 116)))}" in " ".join(screen(app).split())
        await pilot.press("right_square_bracket")
        await pilot.pause()
        assert "token ids 116 117 118 119 1 " in screen(app)
        assert "4 of 16 slots filled" in screen(app)

    play(app, act, (100, 24))


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
