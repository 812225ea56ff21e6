"""`seqtop attach`."""

import pytest

from seqtop.cli.main import main
from seqtop.live.session import Session


def test_ranks_are_engines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    def run_app(sources: list[Session], options: object) -> int:
        shown.extend(source.connection.endpoint for source in sources)
        return 0

    monkeypatch.setattr("seqtop.cli.attach.run_app", run_app)
    assert main(["attach", "--ranks", "2", "tcp://127.0.0.1:7001", "ipc:///tmp/none"]) == 0
    assert shown == [
        "tcp://127.0.0.1:7001",
        "tcp://127.0.0.1:7003",
        "ipc:///tmp/none",
        "ipc:///tmp/none.dp1",
    ]
