"""The table of engines is drawn again when one of them changes."""

from textual.pilot import Pilot

from seqtop.connection import ConnectionState
from seqtop.tui.app import SeqtopApp
from seqtop.wire.messages import RequestArrived
from tests.support.piloting import play, screen, until
from tests.support.scripted import ScriptedSource


def test_what_goes_on_elsewhere_is_seen(fleet: SeqtopApp, sources: list[ScriptedSource]) -> None:
    async def act(pilot: Pilot[int]) -> None:
        def row() -> str:
            return screen(fleet).splitlines()[4]

        sources[1].apply(
            RequestArrived(request_id="second", arrival_time=0.0, seq_ids=[9], num_prompt_tokens=4)
        )
        await until(pilot, lambda: row().split()[3:5] == ["1", "1"])
        sources[1].connection.state = ConnectionState.LOST
        await until(pilot, lambda: "LOST" in row())

    play(fleet, act, (120, 24))
