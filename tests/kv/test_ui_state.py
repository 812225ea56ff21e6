"""The cursor, the rate and the changes of a source of KV-cache events."""

from seqtop.kv.messages import AllBlocksCleared
from seqtop.kv.ui_state import KvUiState
from tests.support.kv_scene import ScriptedKvSource, digest, run


def test_the_cursor_stays_within_what_is_cached() -> None:
    source = ScriptedKvSource()
    ui = KvUiState(source, clock=lambda: 0.0)
    assert ui.cursor is None
    assert ui.block is None
    source.send(run(1, 0, 4), run(1, 0, 2, medium="CPU"))
    ui.cell = 9
    assert ui.cursor == ("GPU", 3)
    ui.medium = "CPU"
    assert ui.cursor == ("CPU", 1)
    ui.select(source.cache.blocks[(0, digest(1, 0))])
    assert ui.cursor == ("CPU", 0), "the block is in this tier, too"
    ui.select(source.cache.blocks[(0, digest(1, 3))])
    assert ui.cursor == ("GPU", 3)
    source.send(AllBlocksCleared())
    assert ui.block is None


def test_a_change_and_a_new_second_are_drawn_once() -> None:
    clock = [10.0]
    source = ScriptedKvSource()
    ui = KvUiState(source, clock=lambda: clock[0])
    assert ui.poll()
    assert not ui.poll()
    source.send(run(1, 0, 4))
    assert ui.poll()
    assert not ui.poll()
    clock[0] += 1
    assert ui.poll()
    assert not ui.poll()


def test_the_rate_is_that_of_the_last_seconds() -> None:
    clock = [10.0]
    source = ScriptedKvSource()
    ui = KvUiState(source, clock=lambda: clock[0])
    assert ui.rate is None
    for number in range(20):
        source.send(run(number, 0, 1), run(number, 1, 1))
        clock[0] += 1
        ui.poll()
    assert ui.rate == 2.0


def test_a_tokenizer_that_fails_gives_no_text() -> None:
    def fail(_: object) -> str:
        raise OverflowError("an id out of range")

    source = ScriptedKvSource()
    assert KvUiState(source).text([1]) is None
    assert KvUiState(source, decode=fail).text([1]) is None
    assert KvUiState(source, decode=lambda ids: f"{len(ids)}").text([1, 2]) == "2"
    assert KvUiState(source, decode=fail).text(None) is None
