import pytest

from seqtop.history import FileWriter
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from tests.support.event_script import EventScript


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file that a run of eighty steps was recorded to."""
    path, state = tmp_path_factory.mktemp("recorded") / "run.seqtop", EngineState()
    with FileWriter(path) as writer:
        for number, event in enumerate(EventScript(8, 80)):
            payload = codec.encode(event)
            event = parsing.event(payload)
            state.apply(event)
            writer.append(number, payload, event, state)
    return str(path)
