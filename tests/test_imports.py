"""The inspector must start on a machine that has never heard of torch."""

import subprocess
import sys

import pytest

INSPECTOR = (
    "seqtop",
    "seqtop.cli.main",
    "seqtop.sequence",
    "seqtop.wire",
    "seqtop.state",
    "seqtop.live.session",
    "seqtop.demo",
    "seqtop.export.json_document",
    "seqtop.tui.app",
)


@pytest.mark.parametrize("forbidden", ["torch", "transformers", "numpy"])
def test_inspector_does_not_load(forbidden: str) -> None:
    program = f"import sys, {', '.join(INSPECTOR)}; sys.exit({forbidden!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_driver_of_predictions_does_not_load_torch() -> None:
    """Two of them start for each prediction, and torch would be most of that time."""
    program = "import sys, engine_stub.entrypoints.whatif; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


ATTACH = (
    "seqtop.cli.main",
    "seqtop.cli.attach",
    "seqtop.live.session",
    "seqtop.history.memory_store",
    "seqtop.tui.app",
    "seqtop.tui.settings",
)
"""The modules that `seqtop attach` loads before its first frame."""
NOT_FOR_ATTACH = (
    "http.client",
    "multiprocessing",
    "rich.markdown",
    "rich.syntax",
    "textual.widgets._data_table",
    "textual.widgets._markdown",
    "tokenizers",
    "zmq.auth.thread",
    "seqtop.adapters",
    "seqtop.checks.report",
    "seqtop.demo",
    "seqtop.export",
    "seqtop.kv.app",
    "seqtop.web",
    "seqtop.kv.subscriber",
    "seqtop.transport.publisher",
    "seqtop.transport.stream_server",
)


def test_attach_loads_nothing_that_it_does_not_show() -> None:
    program = f"import sys, {', '.join(ATTACH)}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert not {*NOT_FOR_ATTACH}.intersection(run.stdout.split())
