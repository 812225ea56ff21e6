"""The details of a step: its sequences and its events."""

import msgspec
import pytest

from seqtop.sequence import ExecuteModelRequest
from seqtop.tui.app import SeqtopApp
from seqtop.tui.rendering.style import plain
from seqtop.tui.screens.sequences.screen import SequencesScreen
from seqtop.tui.screens.steps.detail import Members, StepDetail, facts, member_line
from seqtop.tui.screens.steps.table import StepRows
from seqtop.wire.batch import members
from seqtop.wire.messages import CudaGraph
from tests.support import events
from tests.support.piloting import play, screen
from tests.support.scripted import ScriptedSource, engine_info
from tests.support.steps_screen import opened


def test_a_member_leads_to_its_sequence(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        opened(app, pilot)
        pilot.press("p")
        assert "req-7 was preempted to make room for req-6; 79 computed tokens" in screen(app)
        pilot.press("tab", "down", "down")
        member = app.screen.query_one(Members).chosen
        assert member.request_id == "req-2"
        pilot.press("tab")
        assert app.screen.query_one(StepRows).has_focus
        pilot.press("tab", "enter")
        assert isinstance(app.screen, SequencesScreen)
        assert app.ui.paused
        assert app.ui.state.step == 34
        assert app.ui.selection[0].request_id == "req-2"


def test_the_detail_can_be_shown_and_hidden(app: SeqtopApp) -> None:
    with play(app, (100, 40)) as pilot:
        opened(app, pilot)
        detail = app.screen.query_one(StepDetail)
        assert detail.display
        pilot.press("tab", "d")
        assert not detail.display
        assert app.screen.query_one(StepRows).has_focus
        pilot.press("d")
        assert detail.display
        assert "req-9 waits: max_num_seqs (8) sequences are running." in screen(app)


@pytest.mark.parametrize("width", [75, 115])
def test_the_members_of_a_step_are_in_columns(width: int) -> None:
    groups = [events.delta(f"req-{seq_id}", seq_id) for seq_id in range(4)]
    blocks: list[list[int]] = [[], [7], list(range(12)), []]
    updates = [
        events.update(seq_id, blocks=blocks[seq_id], text="text", drafted=seq_id == 3 or None)
        for seq_id in range(4)
    ]
    batch = list(members(events.step(1, *groups, sequences=updates)))
    for shown, has_drafts in ((batch[:3], False), (batch, True)):
        lines = [plain(member_line(member, 115, has_drafts=has_drafts)) for member in shown]
        assert len({line.index("text") for line in lines}) == 1
    lines = [plain(member_line(member, width)) for member in batch[:3]]
    assert all(line.rstrip().endswith("text") for line in lines)
    assert "+12 blocks" in lines[2]


def test_the_headline_has_the_encoder_budget(source: ScriptedSource) -> None:
    assert source.state.stats is not None
    execute = ExecuteModelRequest([])
    stats = msgspec.structs.replace(
        source.state.stats, num_encoder_tokens=576, num_used_encoder_slots=1024
    )
    step = events.step(1, start_time=1.0, time=2.0, execute=execute, sequences=[], stats=stats)
    info = engine_info(max_num_encoder_input_tokens=2048, encoder_cache_size=4096)
    (line, *_) = facts(step, info, 300)
    assert "encoder 576 of 2,048 tokens, cache 25%" in plain(line)
    step.stats = source.state.stats
    (line, *_) = facts(step, engine_info(), 300)
    assert "encoder" not in plain(line)


def test_the_headline_has_lora_slots_and_the_cuda_graph(source: ScriptedSource) -> None:
    assert source.state.stats is not None
    execute = ExecuteModelRequest([])
    graph = CudaGraph(mode="FU\x1bLL", num_tokens=12, num_padded_tokens=16)
    stats = msgspec.structs.replace(source.state.stats, num_used_loras=1, cuda_graph=graph)
    step = events.step(1, start_time=1.0, time=2.0, execute=execute, sequences=[], stats=stats)
    (line, *_) = facts(step, engine_info(max_loras=4), 300)
    assert "LoRA 1 of 4" in plain(line)
    assert "LL +4 tokens of padding" in plain(line)
    assert plain(line).isprintable()
    step.stats = source.state.stats
    (line, *_) = facts(step, engine_info(max_loras=4), 300)
    assert "LoRA" not in plain(line)
    assert "graph" not in plain(line)
